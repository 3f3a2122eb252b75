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
import socket
import struct
from collections.abc import Iterable, Mapping

from ..shaping.model import SocketLimit
from .bpf import (
    Bpf,
    Instruction,
    Register,
    add,
    assemble,
    bits_or,
    call,
    copy,
    jump,
    jump_if,
    jump_unless,
    jump_unless_same,
    leave,
    load_32,
    map_address,
    number,
    number_64,
    store_64,
)
from .ports import KernelError

log = logging.getLogger(__name__)

NAME = "mptcp_throttler"
UNLIMITED = 0xFFFFFFFF
_ENTRIES = 131_072
_KEY, _VALUE = struct.Struct("=Q"), struct.Struct("=II")
_OP, _LOCAL_PORT, _CALLBACK_FLAGS = 0, 68, 84
"""Offsets in struct bpf_sock_ops (linux/bpf.h)."""
_PASSIVE_ESTABLISHED, _ROUND_TRIP = 5, 12
_WANT_ROUND_TRIPS = 1 << 3
_MAP_LOOKUP, _SOCKET_COOKIE, _SETSOCKOPT, _SET_CALLBACK_FLAGS, _NETNS_COOKIE = 1, 46, 49, 59, 122
_SOL_SOCKET, _SO_MAX_PACING_RATE, _SO_NETNS_COOKIE = 1, 47, 71
_IPPROTO_TCP, _TCP_NOTSENT_LOWAT = 6, 25


class BpfSocketPacing:
    """The SocketPacing port by a sock_ops program."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        """Raises KernelError where the kernel, or what may be done in it, does not allow it."""
        self._bpf = Bpf()
        try:
            self._map = self._bpf.hash_map(NAME, _KEY.size, _VALUE.size, _ENTRIES)
            code = assemble(program(self._map, namespace_cookie(), listen_ports))
            self._bpf.attach_sock_ops(NAME, code)
        except BaseException:
            self._bpf.close()
            raise

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        for cookie, limit in limits.items():
            rate = UNLIMITED if limit.rate is None else min(UNLIMITED - 1, max(1, limit.rate // 8))
            not_sent = UNLIMITED if limit.not_sent is None else max(1, limit.not_sent)
            self._bpf.update(self._map, _KEY.pack(cookie), _VALUE.pack(rate, not_sent))

    def forget(self, cookies: Iterable[int]) -> None:
        for cookie in cookies:
            self._bpf.delete(self._map, _KEY.pack(cookie))

    def close(self) -> None:
        self._bpf.close()


def open_socket_pacing(listen_ports: Iterable[int]) -> BpfSocketPacing | None:
    """Return the port, or None, saying why, where this host does not have what it needs."""
    try:
        return BpfSocketPacing(listen_ports)
    except KernelError as error:
        log.warning("%s; caps land without pacing, which may stall other paths for a moment", error)
        return None


def program(map_descriptor: int, namespace_cookie: int, listen_ports: Iterable[int]) -> list[Instruction | str]:
    """Return the program for the sockets of one network namespace that are accepted on *listen_ports*."""
    r = Register
    lines: list[Instruction | str] = [
        copy(r.R6, r.R1),
        load_32(r.R7, r.R6, _OP),
        jump_if(r.R7, _ROUND_TRIP, "limit"),
        jump_unless(r.R7, _PASSIVE_ESTABLISHED, "end"),
        load_32(r.R8, r.R6, _LOCAL_PORT),
        *(jump_if(r.R8, port, "accepted") for port in listen_ports),
        jump("end"),
        "accepted",
        copy(r.R1, r.R6),
        call(_NETNS_COOKIE),
        number_64(r.R1, namespace_cookie),
        jump_unless_same(r.R0, r.R1, "end"),
        copy(r.R1, r.R6),
        load_32(r.R2, r.R6, _CALLBACK_FLAGS),
        bits_or(r.R2, _WANT_ROUND_TRIPS),
        call(_SET_CALLBACK_FLAGS),
        jump("end"),
        "limit",
        copy(r.R1, r.R6),
        call(_SOCKET_COOKIE),
        store_64(r.R10, -8, r.R0),
        map_address(r.R1, map_descriptor),
        copy(r.R2, r.R10),
        add(r.R2, -8),
        call(_MAP_LOOKUP),
        jump_if(r.R0, 0, "end"),
        copy(r.R7, r.R0),
    ]
    for place, (level, option) in enumerate(((_SOL_SOCKET, _SO_MAX_PACING_RATE), (_IPPROTO_TCP, _TCP_NOTSENT_LOWAT))):
        lines += [
            copy(r.R1, r.R6),
            number(r.R2, level),
            number(r.R3, option),
            copy(r.R4, r.R7),
            add(r.R4, 4 * place),
            number(r.R5, 4),
            call(_SETSOCKOPT),
        ]
    return [*lines, "end", number(r.R0, 1), leave()]


def namespace_cookie() -> int:
    """Return the kernel's number of this network namespace. Raises KernelError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return int(_KEY.unpack(probe.getsockopt(_SOL_SOCKET, _SO_NETNS_COOKIE, _KEY.size))[0])
        except OSError as error:
            raise KernelError(f"ask for the network namespace's cookie: {error.strerror}") from error
