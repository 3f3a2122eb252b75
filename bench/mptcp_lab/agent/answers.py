"""Whether something takes connections here: ``agent.answers SECONDS GOAL …``.

A GOAL is ``tcp:ADDRESS:PORT`` or ``unix:PATH``. Exit status 0 as soon as all of them answered, 1 where one did not
within SECONDS.
"""

from __future__ import annotations

import socket
import sys
import time

INTERVAL = 0.02
"""Seconds between attempts."""


def answers(goal: str, timeout: float) -> bool:
    """Say whether *goal* takes a connection, and close it again."""
    kind, _, rest = goal.partition(":")
    try:
        if kind == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(timeout)
                client.connect(rest)
        else:
            address, _, port = rest.rpartition(":")
            socket.create_connection((address, int(port)), timeout=timeout).close()
    except OSError:
        return False
    return True


def main(arguments: list[str]) -> int:
    deadline = time.monotonic() + float(arguments[0])
    waiting = arguments[1:]
    while waiting:
        left = deadline - time.monotonic()
        if answers(waiting[0], max(0.1, left)):
            waiting.pop(0)
        elif left <= 0:
            return 1
        else:
            time.sleep(INTERVAL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
