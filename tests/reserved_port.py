# SPDX-License-Identifier: GPL-2.0-or-later
"""Reserves ports for programs that a test starts: no other process gets the port before the program binds it."""

from __future__ import annotations

import socket
from typing import Final

_RESERVED: Final = list[socket.socket]()


def reserved_port() -> int:
    """Return a loopback port that stays reserved until this process ends.

    A socket of this process is bound to the port without listening. Servers with SO_REUSEADDR, such as the project's,
    may still bind it (socket(7)), but the kernel does not assign it to sockets that bind port 0.
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _RESERVED.append(reserved)
    port: int = reserved.getsockname()[1]
    return port
