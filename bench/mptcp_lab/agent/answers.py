# SPDX-License-Identifier: GPL-2.0-or-later
"""Test whether servers on this host accept connections: ``agent.answers SECONDS GOAL …``.

A GOAL is ``tcp:ADDRESS:PORT`` or ``unix:PATH``. The exit status is 0 as soon as all servers have accepted a connection,
and 1 if a server has not accepted one within SECONDS.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence

INTERVAL = 0.02
"""Seconds between two attempts."""


def answers(goal: str, timeout: float) -> bool:
    """Return whether *goal* accepts a connection. The connection is closed again."""
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


def all_answer(goals: Sequence[str], within: float) -> bool:
    """Return whether all *goals* accept connections within *within* seconds."""
    deadline = time.monotonic() + within
    waiting = list(goals)
    while waiting:
        left = deadline - time.monotonic()
        if answers(waiting[0], max(0.1, left)):
            waiting.pop(0)
        elif left <= 0:
            return False
        else:
            time.sleep(INTERVAL)
    return True


if __name__ == "__main__":
    sys.exit(not all_answer(sys.argv[2:], float(sys.argv[1])))
