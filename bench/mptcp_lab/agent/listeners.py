# SPDX-License-Identifier: GPL-2.0-or-later
"""Test whether servers on this host accept connections: ``agent.listeners SECONDS SERVER …``.

A SERVER is ``tcp:ADDRESS:PORT`` or ``unix:PATH``. The exit status is 0 as soon as all servers have accepted a
connection, and 1 if a server has not accepted one within SECONDS.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence

INTERVAL = 0.02
"""Seconds between two attempts."""


def accepts(server: str, timeout: float) -> bool:
    """Return whether *server* accepts a connection, which is closed again."""
    kind, _, address = server.partition(":")
    try:
        if kind == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(timeout)
                client.connect(address)
        else:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=timeout).close()
    except OSError:
        return False
    return True


def all_accept(servers: Sequence[str], within: float) -> bool:
    """Return whether all *servers* accept connections within *within* seconds."""
    deadline = time.monotonic() + within
    for server in servers:
        while not accepts(server, max(0.1, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                return False
            time.sleep(INTERVAL)
    return True


if __name__ == "__main__":
    sys.exit(not all_accept(sys.argv[2:], float(sys.argv[1])))
