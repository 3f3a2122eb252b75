"""Limits on single subflows' sockets, by BPF: SO_MAX_PACING_RATE and SO_SNDBUF (socket(7)), TCP_NOTSENT_LOWAT (tcp(7)).

No program holds a descriptor of a subflow's socket, and what is set on an MPTCP socket goes to all its subflows. A BPF
program of the kind *sock_ops* may set options on a single one: it is called at every round trip of the connections to
the proxy's ports, looks the socket up by its cookie in a map of ours, and sets what is there. A limit is in force a
round trip after it was asked for, and on a socket with nothing in flight with its next data.

Only sockets that were accepted in this network namespace while such a program ran ask for the call, for good; an older
connection cannot be limited (``tcp.max_pacing_rate`` of socket diagnostics shows which can). The program goes with the
process; the limits stay on the sockets until they are lifted or closed.

A second program, an iterator, does the same on all sockets at once, for what must be in force on sockets that send
nothing, too: what is taken back, and a rate of 0, with which a subflow rests. It takes Linux 5.16 and CAP_PERFMON.

A send buffer only grows, from Linux 6.1 on, which says how large it is. The kernel takes it over into the connection's
buffer, the sum of its subflows', at once (subflow_write_space, net/mptcp/subflow.c). Half of it may be at most
net.core.wmem_max; where that leaves too little, none is set.

TCP_USER_TIMEOUT (tcp(7)), which an MPTCP socket refuses, is set while a subflow retransmits: the data of a client that
vanished would wait for a quarter of an hour. Not while it is idle: there the option takes the place of the number of
unanswered probes (tcp_keepalive_timer(), net/ipv4/tcp_timer.c); and not while the client's window is closed: Squid ends
a download that is paused.

A subflow whose client address is in a prefix of a second map, the longest first, gets its first options as it is
accepted: before anybody has measured anything, little of the connection waits on a subflow that will have a cap, and
its first segments are few and in the cap's HTB class (SO_PRIORITY, tc-htb(8)). The program takes the class off once the
socket has sent some segments, when there is an entry if there is to be one, and the small bound once it has sent much
without a limit: a subflow that nobody decides about would be slower for good. A join under a cap so low that it is to
rest has a rate of 0 from its acceptance on, for the scheduler would give it 32 kB at a time at first; never the first
subflow, for nothing else would carry what it does not. Plain TCP is left alone.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv6Network

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.bpf import Bpf, MirroredMap, ProgramConstants
from mptcp_throttler.mptcp.model import mapped
from mptcp_throttler.policy.values import Network
from mptcp_throttler.shaping.model import MAX_ENTRIES, Birth, Ownership, SocketLimit

log = logging.getLogger(__name__)

NAME, BIRTHS, ALL_SOCKETS = "mptcp_throttler", "mptcp_thr_birth", "mptcp_thr_all"
"""The first program, which has the name of its map, the map of first options, and the second program."""
MAX_PREFIXES = 131_072
UNLIMITED = 0xFFFFFFFF
MIN_SEND_BUFFER = 1 << 20
"""Bytes. Less than that was no help, and the socket could not have more after the cap either."""
_COOKIE, _LIMIT = struct.Struct("=Q"), struct.Struct("=III")
_PREFIX, _BIRTH = struct.Struct("=I16s"), struct.Struct("=IIII")
"""Key and value of either map: struct limit of ``programs/limits.h``, struct prefix and birth of
``programs/mptcp_throttler.c``."""
_IPPROTO_TCP, _TCP_CONGESTION = 6, 13
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
        self._constants = ProgramConstants(ports, user_timeout, ownership.htb_major, births=True)
        self._iterator: int | None = None
        self._bpf = bpf = Bpf()
        try:
            limits = bpf.hash_map(NAME, _COOKIE.size, _LIMIT.size, MAX_ENTRIES)
            births = bpf.prefix_map(BIRTHS, _PREFIX.size, _BIRTH.size, MAX_PREFIXES)
            self._limits, self._births = MirroredMap(bpf, limits), MirroredMap(bpf, births)
            self._maps = {"limits": limits, "births": births}
            try:
                self._program = bpf.attach_sock_ops(NAME, self._constants, self._maps)
            except KernelError as error:
                # Linux before 5.19 does not tell a subflow from plain TCP.
                self._constants = replace(self._constants, births=False)
                self._program = bpf.attach_sock_ops(NAME, self._constants, self._maps)
                log.warning("%s; short downloads under a cap use the other paths less", error)
        except BaseException:
            bpf.close()
            raise

    def set_births(self, changes: Mapping[Network, Birth | None]) -> bool:
        if not self._constants.births:
            return False
        given = {_prefix(each): _options(birth) for each, birth in changes.items() if birth is not None}
        self._births.update({key: value for key, value in given.items() if self._births.get(key) != value})
        self._births.delete([_prefix(each) for each, birth in changes.items() if birth is None])
        return True

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        self._limits.update({_COOKIE.pack(each): _LIMIT.pack(*_value(limits[each], self._most)) for each in limits})

    def forget(self, cookies: Iterable[int]) -> None:
        self._limits.delete([_COOKIE.pack(each) for each in cookies])

    async def check(self) -> list[str]:
        problems = self._bpf.put_right(self._program)
        for name, known in {NAME: self._limits, BIRTHS: self._births}.items():
            wrong = await known.check()
            if wrong:
                problems.append(f"{wrong} entries of the BPF map {name} were not as we left them")
        return problems

    def limit_at_once(self) -> bool:
        """Set what the map has on all sockets now, and take the classes off them with which they were accepted.

        Return False where this host cannot. It takes some milliseconds.
        """
        try:
            self._bpf.iterate(self._open_iterator())
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
            self._iterator = self._bpf.tcp_iterator(ALL_SOCKETS, self._constants, {"limits": self._maps["limits"]})
        return self._iterator

    def close(self) -> None:
        self._bpf.close()


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


def _prefix(network: Network) -> bytes:
    """Return the key of a prefix; IPv4 is mapped into IPv6."""
    if isinstance(network, IPv6Network):
        return _PREFIX.pack(network.prefixlen, network.network_address.packed)
    return _PREFIX.pack(96 + network.prefixlen, mapped(network.network_address.packed))


def _options(birth: Birth) -> bytes:
    return _BIRTH.pack(birth.not_sent or 0, birth.initial_window or 0, birth.class_id or 0, birth.rests)


def open_socket_pacing(ownership: Ownership) -> BpfSocketPacing | None:
    """Return the port, or None, saying why, where this host does not have what it needs."""
    try:
        return BpfSocketPacing(ownership)
    except KernelError as error:
        log.warning("%s; caps begin without pacing, which may stall other paths for a moment", error)
        return None
