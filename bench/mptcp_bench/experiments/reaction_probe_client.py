"""The client of the experiment ``reaction``: ``python -m … ADDRESS PORT COUNT``, in the client's namespace.

Opens connections one after another, reads for a moment from each, and closes it.
"""

from __future__ import annotations

import socket
import sys
import time

_READ_SECONDS, _PAUSE_SECONDS = 0.15, 0.05


def main(address: str, port: int, count: int) -> None:
    for attempt in range(500):
        try:
            socket.create_connection((address, port), timeout=1).close()
            break
        except OSError:
            if attempt == 499:
                raise
            time.sleep(0.02)
    for _ in range(count):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as connection:
            connection.settimeout(5)
            connection.connect((address, port))
            until = time.monotonic() + _READ_SECONDS
            while time.monotonic() < until:
                connection.recv(65536)
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
