"""Limits on single subflows' sockets, by BPF: SO_MAX_PACING_RATE and SO_SNDBUF (socket(7)), TCP_NOTSENT_LOWAT (tcp(7)).

No program holds a descriptor of a subflow's socket, and what is set on an MPTCP socket goes to all its subflows. A
BPF program of the kind *sock_ops* may set them on a single one: it asks for a call at every round trip of the
connections to the proxy's ports, looks the socket up by its cookie in a map of ours, and sets what is there. A limit is
in force a round trip after it was asked for, and on a socket with nothing in flight with its next data.

Only sockets that were accepted in this network namespace while the program ran ask for the call, so that an older
connection cannot be limited (``tcp.max_pacing_rate`` of socket diagnostics shows who is). The program goes with the
process; the limits stay on the sockets until they are lifted or closed.

A send buffer only grows: the program asks first what the socket has, for which it takes Linux 6.1; older ones leave it.
The kernel takes it over into the connection's buffer, the sum of its subflows', at once (subflow_write_space,
net/mptcp/subflow.c). Half of it may be at most net.core.wmem_max; where that leaves too little, none is set.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterable, Mapping

from mptcp_throttler.kernel.bpf import (
    Instruction,
    Register,
    add,
    add_register,
    call,
    copy,
    jump_if,
    jump_unless,
    jump_unless_less,
    load_32,
    map_address,
    number,
    store_64,
)
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.sockets.sock_ops import CONTEXT, END, SOCKET_COOKIE, Calls, Lines, SockOps
from mptcp_throttler.shaping.model import SocketLimit

log = logging.getLogger(__name__)

NAME = "mptcp_throttler"
UNLIMITED = 0xFFFFFFFF
MIN_SEND_BUFFER = 1 << 20
"""Bytes. Less than that was no help, and the socket could not have more after the cap either."""
ROUND_TRIPS = Calls(flag=1 << 3, operation=12)
_VALUE = struct.Struct("=III")
"""Bytes/s, bytes that may wait, and half of the send buffer, which is how SO_SNDBUF is set; 0 leaves that."""
_MAP_LOOKUP, _SETSOCKOPT, _GETSOCKOPT = 1, 49, 57
_SOL_SOCKET, _SO_SNDBUF, _SO_MAX_PACING_RATE = 1, 7, 47
_IPPROTO_TCP, _TCP_NOTSENT_LOWAT = 6, 25


class BpfSocketPacing:
    """The SocketPacing port by a sock_ops program."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        """Raises KernelError where the kernel, or what may be done in it, does not allow it."""
        self._most = largest_send_buffer()
        if self._most < MIN_SEND_BUFFER:
            log.info("net.core.wmem_max is %d: caps of less than 3 Mbit/s may slow other paths down", self._most // 2)
        self._program = SockOps(NAME, _VALUE, ROUND_TRIPS, _body, listen_ports)

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        numbers = [number for limit in limits.values() for number in _value(limit, self._most)]
        values = struct.pack(f"={len(numbers)}I", *numbers)
        self._program.bpf.update_batch(self._program.map, _keys(limits), values)

    def forget(self, cookies: Iterable[int]) -> None:
        self._program.bpf.delete_batch(self._program.map, _keys(cookies))

    def close(self) -> None:
        self._program.close()


def _keys(cookies: Iterable[int]) -> bytes:
    numbers = list(cookies)
    return struct.pack(f"={len(numbers)}Q", *numbers)


def largest_send_buffer() -> int:
    """Return how many bytes a send buffer may have: twice net.core.wmem_max, which not every namespace shows."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, (1 << 30) - 1)
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _value(limit: SocketLimit, most: int) -> tuple[int, int, int]:
    """Return what the map has for *limit*; no send buffer is larger than *most*."""
    rate, not_sent, send_buffer = limit.rate, limit.not_sent, limit.send_buffer
    return (
        UNLIMITED if rate is None else min(UNLIMITED - 1, max(1, rate // 8)),
        UNLIMITED if not_sent is None else max(1, not_sent),
        0 if send_buffer is None or most < MIN_SEND_BUFFER else min(most, send_buffer) // 2,
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
    return [
        copy(r.R1, CONTEXT),
        call(SOCKET_COOKIE),
        store_64(r.R10, -8, r.R0),
        map_address(r.R1, descriptor),
        copy(r.R2, r.R10),
        add(r.R2, -8),
        call(_MAP_LOOKUP),
        jump_if(r.R0, 0, END),
        copy(r.R7, r.R0),
        *_option(_SETSOCKOPT, _SOL_SOCKET, _SO_MAX_PACING_RATE, r.R7, 0),
        *_option(_SETSOCKOPT, _IPPROTO_TCP, _TCP_NOTSENT_LOWAT, r.R7, 4),
        load_32(r.R8, r.R7, 8),
        jump_if(r.R8, 0, END),
        *_option(_GETSOCKOPT, _SOL_SOCKET, _SO_SNDBUF, r.R10, -12),
        jump_unless(r.R0, 0, END),
        load_32(r.R1, r.R10, -12),
        add_register(r.R8, r.R8),
        jump_unless_less(r.R1, r.R8, END),
        *_option(_SETSOCKOPT, _SOL_SOCKET, _SO_SNDBUF, r.R7, 8),
    ]


def _option(function: int, level: int, name: int, base: Register, offset: int) -> list[Instruction]:
    """Set or get an option of 32 bits, which is kept at *offset* of what *base* points to."""
    r = Register
    return [
        copy(r.R1, CONTEXT),
        number(r.R2, level),
        number(r.R3, name),
        copy(r.R4, base),
        add(r.R4, offset),
        number(r.R5, 4),
        call(function),
    ]
