"""Limits on single subflows' sockets, by BPF: SO_MAX_PACING_RATE and SO_SNDBUF (socket(7)), TCP_NOTSENT_LOWAT (tcp(7)).

No program holds a descriptor of a subflow's socket, and what is set on an MPTCP socket goes to all its subflows. A
BPF program of the kind *sock_ops* may set them on a single one: it asks for a call at every round trip of the
connections to the proxy's ports, looks the socket up by its cookie in a map of ours, and sets what is there. A limit is
in force a round trip after it was asked for, and on a socket with nothing in flight with its next data.

Only sockets that were accepted in this network namespace while such a program ran ask for the call, so that an older
connection cannot be limited (``tcp.max_pacing_rate`` of socket diagnostics shows who is). They ask for it for good. The
program goes with the process; the limits stay on the sockets until they are lifted or closed.

The same body is run for all sockets at once by a second program, an iterator, where something is to be in force on
sockets that send nothing, too: what is taken back, and a rate of 0, with which a subflow rests. It takes Linux 5.16 and
CAP_PERFMON. A socket that rested has no pacing rate until data are acknowledged: the body has BBR begin on it, and
gives it back the congestion control that it had.

A send buffer only grows: the program asks first what the socket has, for which it takes Linux 6.1; older ones leave it.
The kernel takes it over into the connection's buffer, the sum of its subflows', at once (subflow_write_space,
net/mptcp/subflow.c). Half of it may be at most net.core.wmem_max; where that leaves too little, none is set.

The same program sets TCP_USER_TIMEOUT (tcp(7)) while a subflow retransmits, which an MPTCP socket refuses: the data of
a client that vanished would wait for a quarter of an hour, in a larger send buffer if it has one. Not while it is
idle: there the option takes the place of the number of unanswered probes (tcp_keepalive_timer(), net/ipv4/tcp_timer.c);
and not while the client's window is closed: Squid ends a download that is paused. What a subflow begins with is in
``birth``.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterable, Mapping

from mptcp_throttler.kernel.bpf import Bpf
from mptcp_throttler.kernel.bpf_code import (
    Instruction,
    Register,
    add,
    add_register,
    assemble,
    call,
    copy,
    jump,
    jump_if,
    jump_unless,
    jump_unless_less,
    load_32,
    map_address,
    number,
    store_32,
    store_64,
)
from mptcp_throttler.kernel.known_map import KnownMap
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.sockets.birth import NAME as BIRTHS
from mptcp_throttler.kernel.sockets.birth import Births, end_of_class, end_of_every_class, end_of_small_bound, on_accept
from mptcp_throttler.kernel.sockets.sock_ops import (
    CONTEXT,
    END,
    SOCKET_COOKIE,
    Calls,
    Lines,
    SockOps,
    get_option,
    on_every_socket,
    set_option,
)
from mptcp_throttler.policy.model import Network
from mptcp_throttler.shaping.model import Birth, Ownership, SocketLimit

log = logging.getLogger(__name__)

NAME = "mptcp_throttler"
UNLIMITED = 0xFFFFFFFF
MIN_SEND_BUFFER = 1 << 20
"""Bytes. Less than that was no help, and the socket could not have more after the cap either."""
ROUND_TRIPS = Calls(flag=1 << 3, operation=12)
RETRANSMISSION_TIMEOUTS = Calls(flag=1 << 0, operation=8)
_VALUE = struct.Struct("=III")
"""Bytes/s, bytes that may wait (0: the kernel's own), and half of the send buffer, which is how SO_SNDBUF is set; 0
leaves that."""
_MAP_LOOKUP = 1
_SOL_SOCKET, _SO_SNDBUF, _SO_MAX_PACING_RATE = 1, 7, 47
_IPPROTO_TCP, _TCP_CONGESTION, _TCP_USER_TIMEOUT, _TCP_NOTSENT_LOWAT = 6, 13, 18, 25
USER_TIMEOUT = 300.0
"""Seconds for which data may go unacknowledged until a subflow is closed."""


class BpfSocketPacing:
    """The SocketPacing port by a sock_ops program."""

    def __init__(self, ownership: Ownership, user_timeout: float = USER_TIMEOUT, *, for_accepted: bool = True) -> None:
        """*user_timeout* is in seconds. Not *for_accepted*: nothing is done to sockets that are accepted from here on.

        Raises KernelError where the kernel, or what may be done in it, does not allow it.
        """
        self._most = largest_send_buffer()
        self.has_buffers = self._most >= MIN_SEND_BUFFER
        if not self.has_buffers:
            log.info("net.core.wmem_max is %d: caps of 1 to 3 Mbit/s may slow other paths down", self._most // 2)
        ports = ownership.listen_ports if for_accepted else ()
        self._htb_major = ownership.htb_major
        others = {RETRANSMISSION_TIMEOUTS: _user_timeout(user_timeout)}
        self._births: Births | None = None
        self._iterator: int | None = None

        def accepted(bpf: Bpf) -> Lines:
            self._births = Births(bpf)
            return on_accept(self._births.map.descriptor)

        def at_round_trip(descriptor: int) -> Lines:
            return [*_user_timeout(0), *end_of_class(ownership.htb_major), *_body(descriptor, end_of_small_bound())]

        def without_births(descriptor: int) -> Lines:
            return [*_user_timeout(0), *_body(descriptor)]

        try:
            self._program = SockOps(NAME, _VALUE, ROUND_TRIPS, at_round_trip, ports, accepted, others=others)
        except KernelError as error:
            # Linux before 5.19 does not tell a subflow from plain TCP.
            self._births = None
            self._program = SockOps(NAME, _VALUE, ROUND_TRIPS, without_births, ports, others=others)
            log.warning("%s; short downloads under a cap use the other paths less", error)
        self._limits = KnownMap(self._program.bpf, self._program.map)

    def set_births(self, changes: Mapping[Network, Birth | None]) -> bool:
        if self._births is None:
            return False
        self._births.set(changes)
        return True

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        self._limits.update(
            {SockOps.key.pack(each): _VALUE.pack(*_value(limit, self._most)) for each, limit in limits.items()}
        )

    def forget(self, cookies: Iterable[int]) -> None:
        self._limits.delete([SockOps.key.pack(each) for each in cookies])

    async def check(self) -> list[str]:
        problems = self._program.check()
        maps = {NAME: self._limits} if self._births is None else {NAME: self._limits, BIRTHS: self._births.map}
        for name, known in maps.items():
            wrong = await known.check()
            if wrong:
                problems.append(f"{wrong} entries of the BPF map {name} were not as we left them")
        return problems

    def limit_at_once(self) -> bool:
        """Set what the map has on all sockets now, and take the classes off them with which they were accepted.

        Return False where this host cannot. It takes some milliseconds.
        """
        try:
            self._program.bpf.iterate(self._open_iterator())
        except KernelError as error:
            log.info("%s; sockets that send nothing keep their limits until they do", error)
            return False
        return True

    def can_rest(self) -> bool:
        """Tell whether a socket that rests can be made to send again: it takes the iterator, and BBR.

        The kernel loads that where it is a module.
        """
        try:
            self._open_iterator()
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(_IPPROTO_TCP, _TCP_CONGESTION, b"bbr")
            return True
        except (KernelError, OSError) as error:
            log.info("%s; low caps may slow other paths down", error)
            return False

    def _open_iterator(self) -> int:
        if self._iterator is None:
            body = [*end_of_every_class(self._htb_major), *_body(self._program.map.descriptor)]
            self._iterator = self._program.bpf.tcp_iterator(NAME, assemble(on_every_socket(body)))
        return self._iterator

    def close(self) -> None:
        self._program.close()


def largest_send_buffer() -> int:
    """Return how many bytes a send buffer may have: twice net.core.wmem_max, which not every namespace shows."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, (1 << 30) - 1)
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _value(limit: SocketLimit, most: int) -> tuple[int, int, int]:
    """Return what the map has for *limit*; no send buffer is larger than *most*."""
    rate, not_sent, send_buffer = limit.rate, limit.not_sent, limit.send_buffer
    return (
        UNLIMITED if rate is None else min(UNLIMITED - 1, -(-rate // 8)),
        0 if not_sent is None else max(1, not_sent),
        0 if send_buffer is None or most < MIN_SEND_BUFFER else min(most, send_buffer) // 2,
    )


def open_socket_pacing(ownership: Ownership) -> BpfSocketPacing | None:
    """Return the port, or None, saying why, where this host does not have what it needs."""
    try:
        return BpfSocketPacing(ownership)
    except KernelError as error:
        log.warning("%s; caps begin without pacing, which may stall other paths for a moment", error)
        return None


def _body(descriptor: int, without: Iterable[Instruction | str] = ()) -> Lines:
    """Set on the socket what the map has for it; *without* an entry do that."""
    r = Register
    return [
        copy(r.R1, CONTEXT),
        call(SOCKET_COOKIE),
        store_64(r.R10, -8, r.R0),
        map_address(r.R1, descriptor),
        copy(r.R2, r.R10),
        add(r.R2, -8),
        call(_MAP_LOOKUP),
        jump_if(r.R0, 0, "no limit"),
        copy(r.R7, r.R0),
        number(r.R9, 1),
        *get_option(_SOL_SOCKET, _SO_MAX_PACING_RATE, r.R10, -16),
        jump_unless(r.R0, 0, "not known"),
        load_32(r.R9, r.R10, -16),
        "not known",
        *set_option(_SOL_SOCKET, _SO_MAX_PACING_RATE, r.R7, 0),
        *set_option(_IPPROTO_TCP, _TCP_NOTSENT_LOWAT, r.R7, 4),
        jump_unless(r.R9, 0, "buffer"),
        load_32(r.R9, r.R7, 0),
        jump_if(r.R9, 0, "buffer"),
        *_begin_anew(),
        "buffer",
        load_32(r.R8, r.R7, 8),
        jump_if(r.R8, 0, END),
        *get_option(_SOL_SOCKET, _SO_SNDBUF, r.R10, -12),
        jump_unless(r.R0, 0, END),
        load_32(r.R1, r.R10, -12),
        add_register(r.R8, r.R8),
        jump_unless_less(r.R1, r.R8, END),
        *set_option(_SOL_SOCKET, _SO_SNDBUF, r.R7, 8),
        jump(END),
        "no limit",
        *without,
    ]


def _begin_anew() -> Lines:
    """Give a socket that rested a pacing rate again, which the kernel takes from acknowledgements alone: BBR does when
    it begins. Afterwards the socket has the congestion control that it had."""
    r = Register
    lines: Lines = [*get_option(_IPPROTO_TCP, _TCP_CONGESTION, r.R10, -40, size=16), jump_unless(r.R0, 0, "buffer")]
    for name in (b"reno", b"bbr"):
        lines += [
            number(r.R1, int.from_bytes(name, "little")),
            store_32(r.R10, -20, r.R1),
            *set_option(_IPPROTO_TCP, _TCP_CONGESTION, r.R10, -20),
        ]
    return [*lines, *set_option(_IPPROTO_TCP, _TCP_CONGESTION, r.R10, -40, size=16)]


def _user_timeout(seconds: float) -> Lines:
    """Set it on the socket; 0 is the kernel's own."""
    r = Register
    return [
        number(r.R1, round(1000 * seconds)),
        store_32(r.R10, -4, r.R1),
        *set_option(_IPPROTO_TCP, _TCP_USER_TIMEOUT, r.R10, -4),
    ]
