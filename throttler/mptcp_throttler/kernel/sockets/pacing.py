"""Limits on single subflows' sockets: SO_MAX_PACING_RATE (socket(7)) and TCP_NOTSENT_LOWAT (tcp(7)), by BPF.

No program holds a descriptor of a subflow's socket, and what is set on an MPTCP socket goes to all its subflows. A
BPF program of the kind *sock_ops* may set both on a single one: it asks for a call at every round trip of the
connections to the proxy's ports, looks the socket up by its cookie in a map of ours, and sets what is there. A limit is
in force a round trip after it was asked for, and on a socket with nothing in flight with its next data.

Only sockets that were accepted in this network namespace while the program ran ask for the call, so that an older
connection cannot be limited (``tcp.max_pacing_rate`` of socket diagnostics shows who is). The program goes with the
process; the limits stay on the sockets until they are lifted or closed.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Mapping

from mptcp_throttler.kernel.bpf import Register, add, call, copy, jump_if, map_address, number, store_64
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.sockets.sock_ops import CONTEXT, END, SOCKET_COOKIE, Calls, Lines, SockOps
from mptcp_throttler.shaping.model import SocketLimit

log = logging.getLogger(__name__)

NAME = "mptcp_throttler"
UNLIMITED = 0xFFFFFFFF
ROUND_TRIPS = Calls(flag=1 << 3, operation=12)
_VALUE = struct.Struct("=II")
_MAP_LOOKUP, _SETSOCKOPT = 1, 49
_SOL_SOCKET, _SO_MAX_PACING_RATE = 1, 47
_IPPROTO_TCP, _TCP_NOTSENT_LOWAT = 6, 25


class BpfSocketPacing:
    """The SocketPacing port by a sock_ops program."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        """Raises KernelError where the kernel, or what may be done in it, does not allow it."""
        self._program = SockOps(NAME, _VALUE, ROUND_TRIPS, _body, listen_ports)

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        numbers = [number for limit in limits.values() for number in _value(limit)]
        values = struct.pack(f"={len(numbers)}I", *numbers)
        self._program.bpf.update_batch(self._program.map, _keys(limits), values)

    def forget(self, cookies: Iterable[int]) -> None:
        self._program.bpf.delete_batch(self._program.map, _keys(cookies))

    def close(self) -> None:
        self._program.close()


def _keys(cookies: Iterable[int]) -> bytes:
    numbers = list(cookies)
    return struct.pack(f"={len(numbers)}Q", *numbers)


def _value(limit: SocketLimit) -> tuple[int, int]:
    """Return what the map has for *limit*: bytes/s and bytes."""
    rate, not_sent = limit.rate, limit.not_sent
    return (
        UNLIMITED if rate is None else min(UNLIMITED - 1, max(1, rate // 8)),
        UNLIMITED if not_sent is None else max(1, not_sent),
    )


def open_socket_pacing(listen_ports: Iterable[int]) -> BpfSocketPacing | None:
    """Return the port, or None, saying why, where this host does not have what it needs."""
    try:
        return BpfSocketPacing(listen_ports)
    except KernelError as error:
        log.warning("%s; caps begin without pacing, which may stall other paths for a moment", error)
        return None


def _body(descriptor: int) -> Lines:
    """Set on the socket what the map has for it."""
    r = Register
    lines: Lines = [
        copy(r.R1, CONTEXT),
        call(SOCKET_COOKIE),
        store_64(r.R10, -8, r.R0),
        map_address(r.R1, descriptor),
        copy(r.R2, r.R10),
        add(r.R2, -8),
        call(_MAP_LOOKUP),
        jump_if(r.R0, 0, END),
        copy(r.R7, r.R0),
    ]
    for place, (level, option) in enumerate(((_SOL_SOCKET, _SO_MAX_PACING_RATE), (_IPPROTO_TCP, _TCP_NOTSENT_LOWAT))):
        lines += [
            copy(r.R1, CONTEXT),
            number(r.R2, level),
            number(r.R3, option),
            copy(r.R4, r.R7),
            add(r.R4, 4 * place),
            number(r.R5, 4),
            call(_SETSOCKOPT),
        ]
    return lines
