# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the TCP sockets of this network namespace from /proc/net/tcp and tcp6, proc_pid_net(5)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

TABLES: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
ESTABLISHED, LISTEN = "01", "0A"
"""TCP states, as the kernel prints them: include/net/tcp_states.h."""
_WORD: Final = 8
"""Hexadecimal digits of 32 bits, in this host's byte order."""


class Ends(NamedTuple):
    """Both ends of a socket, with packed addresses. A dual-stack socket shows IPv4 addresses as IPv4-mapped IPv6."""

    local: bytes
    local_port: int
    remote: bytes
    remote_port: int


def sockets(state: str) -> Iterator[Ends]:
    """Yield the ends of the sockets in *state*. Raises OSError."""
    for table in TABLES:
        with suppress(FileNotFoundError), table.open() as lines:  # tcp6 is missing if the kernel has no IPv6
            for line in lines:
                fields = line.split(None, 4)
                if len(fields) > 3 and fields[3] == state:
                    yield Ends(*_end(fields[1]), *_end(fields[2]))


def _end(text: str) -> tuple[bytes, int]:
    address, _, port = text.partition(":")
    words = (address[start : start + _WORD] for start in range(0, len(address), _WORD))
    return b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words), int(port, 16)
