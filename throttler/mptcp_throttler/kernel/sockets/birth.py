"""Options of a socket from its acceptance on, by BPF: TCP_NOTSENT_LOWAT (tcp(7)), initial window, SO_PRIORITY, rest.

A subflow that will have a cap is to take little from the connection at a time: what waits on it cannot go by another
path any more, and its first segments are sent before anybody has measured anything, or made an entry for it. The
program of ``pacing`` sets them when it accepts a subflow whose client address is in one of the prefixes of a map of
ours, the longest prefix first. Plain TCP is left alone.

SO_PRIORITY (socket(7)) names the HTB class of the cap (tc-htb(8): a priority whose upper half is the qdisc's handle),
and an entry of the subflow comes before it. The same program takes it off the socket once that has sent some segments,
for by then there is an entry where there is to be one: what nobody decides about is not capped for good, and a
priority of a former policy does not stay. For the same reason it raises a small TCP_NOTSENT_LOWAT of a socket that has
sent much and has no limit of ours: a connection that nobody decides about would be slower for good.

A join under a cap so low that it is to rest has a pacing rate of 0 from its acceptance on: the scheduler would give it
32 kB at a time until its average of the rate has come to 0. The first subflow never rests from its acceptance on, for
nothing else would carry what it does not. The join is told by the option of the ACK by which it was accepted.

Sources: struct bpf_sock_ops, bpf_setsockopt and bpf_skc_to_mptcp_sock in linux/bpf.h (the last one since Linux 5.19);
bpf_load_hdr_opt there, and RFC 8684, 3.2, for the option.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv6Network

from mptcp_throttler.kernel.bpf import Bpf
from mptcp_throttler.kernel.bpf_code import (
    Instruction,
    Register,
    add,
    call,
    copy,
    jump,
    jump_if,
    jump_unless,
    jump_unless_less,
    load_8,
    load_32,
    load_64,
    map_address,
    number,
    number_64,
    store_32,
    store_64,
)
from mptcp_throttler.kernel.known_map import KnownMap
from mptcp_throttler.kernel.sockets.sock_ops import CONTEXT, END, Lines, get_option, set_option
from mptcp_throttler.mptcp.model import mapped
from mptcp_throttler.policy.model import Network
from mptcp_throttler.shaping.birth import LARGE_BOUND
from mptcp_throttler.shaping.model import Birth

NAME = "mptcp_thr_birth"
MAX_PREFIXES = 131_072
_KEY, _VALUE = struct.Struct("=I16s"), struct.Struct("=IIII")
YOUNG_SEGMENTS = 31
"""After so many with data a socket loses the class with which it began."""
SMALL_SEGMENTS = 310
"""After so many with data, some 450 kB, a socket without a limit of ours loses the small bound with which it began."""
_FAMILY, _REMOTE_IP4, _REMOTE_IP6, _SEGMENTS_SENT, _SOCKET = 20, 24, 32, 152, 184
"""Offsets in struct bpf_sock_ops."""
_PRIORITY = 20
"""Offset in struct bpf_sock."""
_MAP_LOOKUP, _LOAD_HEADER_OPTION, _TO_MPTCP_SOCKET = 1, 142, 196
_TCP_INITIAL_WINDOW = 1001
"""TCP_BPF_IW, segments."""
_IPPROTO_TCP, _TCP_NOTSENT_LOWAT = 6, 25
_SOL_SOCKET, _SO_PRIORITY, _SO_MAX_PACING_RATE = 1, 12, 47
_MPTCP_OPTION, _JOIN, _AFTER_JOIN = 30, 0x10, 0x20
"""The option's kind, and the byte of its subtype from MP_JOIN up to the next one."""
_OPTION_BYTES = 40
_V4_MAPPED = 0xFFFF if struct.pack("=I", 1)[0] == 0 else 0xFFFF0000 - (1 << 32)
"""The third word of ::ffff:0:0/96 as this machine reads it."""


class Births:
    """The map: which prefixes have which options."""

    def __init__(self, bpf: Bpf) -> None:
        """Raises KernelError."""
        self.map = KnownMap(bpf, bpf.prefix_map(NAME, _KEY.size, _VALUE.size, MAX_PREFIXES))

    def set(self, changes: Mapping[Network, Birth | None]) -> None:
        """Give prefixes options, or with None take them away. Raises KernelError."""
        given = {_key(each): _value(birth) for each, birth in changes.items() if birth is not None}
        self.map.update({key: value for key, value in given.items() if self.map.get(key) != value})
        self.map.delete([_key(each) for each, birth in changes.items() if birth is None])


def _key(network: Network) -> bytes:
    if isinstance(network, IPv6Network):
        return _KEY.pack(network.prefixlen, network.network_address.packed)
    return _KEY.pack(96 + network.prefixlen, mapped(network.network_address.packed))


def _value(birth: Birth) -> bytes:
    return _VALUE.pack(birth.not_sent or 0, birth.initial_window or 0, birth.class_id or 0, birth.rests)


def on_accept(table: int) -> Lines:
    """Return what the program does when a subflow was accepted; *table* is the map's descriptor."""
    r = Register
    return [
        load_64(r.R1, CONTEXT, _SOCKET),
        jump_if(r.R1, 0, END),
        call(_TO_MPTCP_SOCKET),
        jump_if(r.R0, 0, END),
        # The key: 128 bits, of an IPv4 address mapped into IPv6.
        number(r.R1, 128),
        store_32(r.R10, -20, r.R1),
        load_32(r.R1, CONTEXT, _FAMILY),
        jump_if(r.R1, socket.AF_INET, "v4"),
        *_copied((_REMOTE_IP6 + step, -16 + step) for step in range(0, 16, 4)),
        jump("key"),
        "v4",
        number(r.R1, 0),
        store_32(r.R10, -16, r.R1),
        store_32(r.R10, -12, r.R1),
        number(r.R1, _V4_MAPPED),
        store_32(r.R10, -8, r.R1),
        *_copied([(_REMOTE_IP4, -4)]),
        "key",
        map_address(r.R1, table),
        copy(r.R2, r.R10),
        add(r.R2, -20),
        call(_MAP_LOOKUP),
        jump_if(r.R0, 0, END),
        copy(r.R7, r.R0),
        load_32(r.R1, r.R7, 0),
        jump_if(r.R1, 0, "window"),
        *set_option(_IPPROTO_TCP, _TCP_NOTSENT_LOWAT, r.R7, 0),
        "window",
        load_32(r.R1, r.R7, 4),
        jump_if(r.R1, 0, "class"),
        *set_option(_IPPROTO_TCP, _TCP_INITIAL_WINDOW, r.R7, 4),
        "class",
        load_32(r.R1, r.R7, 8),
        jump_if(r.R1, 0, "rest"),
        *set_option(_SOL_SOCKET, _SO_PRIORITY, r.R7, 8),
        "rest",
        load_32(r.R1, r.R7, 12),
        jump_if(r.R1, 0, END),
        number(r.R8, 0),
        *(store_64(r.R10, -48 + step, r.R8) for step in range(0, _OPTION_BYTES, 8)),
        number(r.R1, _MPTCP_OPTION),
        store_32(r.R10, -48, r.R1),
        copy(r.R1, CONTEXT),
        copy(r.R2, r.R10),
        add(r.R2, -48),
        number(r.R3, _OPTION_BYTES),
        number(r.R4, 0),
        call(_LOAD_HEADER_OPTION),
        load_8(r.R1, r.R10, -46),
        number(r.R2, _JOIN),
        jump_unless_less(r.R1, r.R2, "join"),
        jump(END),
        "join",
        number(r.R2, _AFTER_JOIN),
        jump_unless_less(r.R1, r.R2, END),
        store_32(r.R10, -12, r.R8),
        *set_option(_SOL_SOCKET, _SO_MAX_PACING_RATE, r.R10, -12),
    ]


def end_of_class(htb_major: int) -> Lines:
    """Return what the program does at each round trip: take a class of the qdisc *htb_major* off a socket in time."""
    r = Register
    return [
        load_32(r.R1, CONTEXT, _SEGMENTS_SENT),
        number(r.R2, YOUNG_SEGMENTS),
        jump_unless_less(r.R2, r.R1, "as it is"),
        load_64(r.R1, CONTEXT, _SOCKET),
        jump_if(r.R1, 0, "as it is"),
        load_32(r.R1, r.R1, _PRIORITY),
        *_take_off(htb_major),
        "as it is",
    ]


def end_of_small_bound() -> Lines:
    """Return what the program does at each round trip of a socket without a limit; it needs Linux 6.1."""
    r = Register
    return [
        load_32(r.R1, CONTEXT, _SEGMENTS_SENT),
        number(r.R2, SMALL_SEGMENTS),
        jump_unless_less(r.R2, r.R1, END),
        *get_option(_IPPROTO_TCP, _TCP_NOTSENT_LOWAT, r.R10, -12),
        jump_unless(r.R0, 0, END),
        load_32(r.R1, r.R10, -12),
        # 0 is the kernel's own.
        jump_if(r.R1, 0, END),
        number(r.R2, LARGE_BOUND),
        jump_unless_less(r.R1, r.R2, END),
        store_32(r.R10, -12, r.R2),
        *set_option(_IPPROTO_TCP, _TCP_NOTSENT_LOWAT, r.R10, -12),
    ]


def end_of_every_class(htb_major: int) -> Lines:
    """Return what takes a class of the qdisc *htb_major* off a socket of the iterator; it needs Linux 6.1."""
    r = Register
    return [
        *get_option(_SOL_SOCKET, _SO_PRIORITY, r.R10, -12),
        jump_unless(r.R0, 0, "as it is"),
        load_32(r.R1, r.R10, -12),
        *_take_off(htb_major),
        "as it is",
    ]


def _take_off(htb_major: int) -> Lines:
    """Set the socket's priority to 0 where the one that it has, in R1, is a class of *htb_major*."""
    r, first = Register, htb_major << 16
    return [
        number_64(r.R2, first - 1),
        jump_unless_less(r.R2, r.R1, "as it is"),
        number_64(r.R2, first + 0x10000),
        jump_unless_less(r.R1, r.R2, "as it is"),
        number(r.R1, 0),
        store_32(r.R10, -12, r.R1),
        *set_option(_SOL_SOCKET, _SO_PRIORITY, r.R10, -12),
    ]


def _copied(words: Iterable[tuple[int, int]]) -> Iterator[Instruction]:
    for source, target in words:
        yield load_32(Register.R1, CONTEXT, source)
        yield store_32(Register.R10, target, Register.R1)
