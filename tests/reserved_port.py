# SPDX-License-Identifier: GPL-2.0-or-later
"""Ports for programs that a test starts: nobody else gets one between its choice and the program's own bind(2)."""

from __future__ import annotations

import socket
from typing import Final

_RESERVED: Final = list[socket.socket]()


def reserved_port() -> int:
    """Return a port of loopback that is this process's until it ends.

    It is bound, and does not listen: with SO_REUSEADDR, which our servers have, another socket may bind it as well
    (socket(7)), and no socket is given it that asks for any.
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _RESERVED.append(reserved)
    port: int = reserved.getsockname()[1]
    return port
