"""The client of the experiment ``reaction``: ``python -m … ADDRESS PORT COUNT JOINING``, in the client's namespace.

Opens connections one after another, reads for a moment from each, and closes it. *JOINING* is the address of the
second path. Three of four connections join it as soon as they can; for the fourth its endpoint (ip-mptcp(8)) is made
only when the transfer is well under way.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time

_READ_SECONDS, _LATE_SECONDS, _PAUSE_SECONDS = 0.15, 0.25, 0.05
LATE_EVERY = 4
_ID = "99"
"""Of the only endpoint, which takes the place of the topology's."""


def read(connection: socket.socket, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        connection.recv(65536)


def endpoint(*words: str) -> None:
    subprocess.run(["ip", "mptcp", "endpoint", *words], check=True)


def main(address: str, port: int, count: int, joining: str) -> None:
    for attempt in range(500):
        try:
            socket.create_connection((address, port), timeout=1).close()
            break
        except OSError:
            if attempt == 499:
                raise
            time.sleep(0.02)
    endpoint("flush")
    endpoint("add", joining, "dev", "wlan0", "id", _ID, "subflow")
    for number in range(count):
        late = number % LATE_EVERY == LATE_EVERY - 1
        if late:
            endpoint("delete", "id", _ID)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as connection:
            connection.settimeout(5)
            connection.connect((address, port))
            if late:
                read(connection, _LATE_SECONDS)
                endpoint("add", joining, "dev", "wlan0", "id", _ID, "subflow")
            read(connection, _READ_SECONDS)
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
