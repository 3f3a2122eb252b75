# SPDX-License-Identifier: GPL-2.0-or-later
"""The client of ``join_probe``: ``python -m … ADDRESS PORT COUNT JOINING``, in the client's namespace.

It opens connections one after another, reads from each until shortly after it has a second subflow, and then aborts it.
After an orderly end, the data left in the proxy's buffers would be sent beside the next connection. *JOINING* is the
address of the second path. Three of four connections join it as soon as they can. For the fourth, the endpoint
(ip-mptcp(8)) is created only when the transfer is well under way.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time

_READ_SECONDS, _LATE_SECONDS, _PAUSE_SECONDS = 0.15, 0.25, 0.05
_JOIN_SECONDS = 5.0
"""Seconds to wait for a second subflow. A lost SYN is sent again after 1 and 3 seconds."""
LISTENS_SECONDS = 60.0
"""Seconds within which the probe must listen. On a busy machine it takes more than ten to start."""
LATE_EVERY = 4
_ID = "99"
"""ID of the only endpoint, which replaces the topology's endpoints."""
_FIRST_PORT, _PORTS, _PORTS_A_SECOND = 10_000, 20_000, 10
"""The range of ports for connections, below the kernel's ephemeral ports, and the ports used per second."""
_SOL_MPTCP, _MPTCP_INFO = 284, 1
_ABORT = struct.pack("ii", 1, 0)
"""A struct linger that makes close(2) abort the connection."""


def read(connection: socket.socket, seconds: float, *, until_joined: bool = False) -> None:
    """Read for *seconds*, or *until_joined* by a second subflow (linux/mptcp.h, struct mptcp_info)."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not (until_joined and connection.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 1)[0]):
        connection.recv(65536)


def port_at(now: float) -> int:
    """Return the port of a connection that begins at *now*, in monotonic seconds. Each takes longer than 0.1 s.

    Thereby another run of this program also uses other ports. The entry of an ended connection stays for ten seconds.
    It would cap a new connection with the same port from its first segment, until the throttler knows of it.
    """
    return _FIRST_PORT + int(now * _PORTS_A_SECOND) % _PORTS


def main(address: str, port: int, count: int, joining: str) -> None:
    until = time.monotonic() + LISTENS_SECONDS
    while True:
        try:
            socket.create_connection((address, port), timeout=1).close()
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    endpoint = ["ip", "mptcp", "endpoint"]
    add = [*endpoint, "add", joining, "dev", "wlan0", "id", _ID, "subflow"]
    # The shell waits, because starting a program in mid-transfer would keep the client from reading.
    add_later = ["sh", "-c", f"sleep {_LATE_SECONDS}; exec {' '.join(add)}"]
    subprocess.run([*endpoint, "flush"], check=True)
    subprocess.run(add, check=True)
    for number in range(count):
        late = number % LATE_EVERY == LATE_EVERY - 1
        if late:
            subprocess.run([*endpoint, "delete", "id", _ID], check=True)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as connection:
            connection.settimeout(5)
            connection.bind(("", port_at(time.monotonic())))
            adding = subprocess.Popen(add_later) if late else None
            connection.connect((address, port))
            read(connection, _JOIN_SECONDS, until_joined=True)
            read(connection, _READ_SECONDS)
            if adding is not None and adding.wait():
                raise SystemExit(f"{' '.join(add)}: exit code {adding.returncode}")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
