"""Limits on single subflows' sockets, by BPF: SO_MAX_PACING_RATE and SO_SNDBUF (socket(7)), TCP_NOTSENT_LOWAT (tcp(7)).

No process has a descriptor of a subflow's socket, and options of an MPTCP socket apply to all its subflows. A BPF
*sock_ops* program can set options on one subflow. The kernel calls it on every round trip of connections to the proxy's
ports; it looks up the socket's cookie in our map and sets the limits found. A limit applies one round trip later, or
with the next data if nothing is in flight.

A socket requests these calls, permanently, if such a program runs in this network namespace when it is accepted. Older
connections cannot be limited (``tcp.max_pacing_rate`` of socket diagnostics shows which can). The program ends with the
process; the limits stay until they are lifted or the sockets close.

A second program, an iterator, also reaches sockets that send nothing: to lift limits, and to set rate 0, at which a
subflow rests. It needs Linux 5.16 and CAP_PERFMON.

Send buffers only grow, and only on Linux 6.1 or later, which reports the present size. The kernel immediately adds them
to the connection's buffer (subflow_write_space, net/mptcp/subflow.c). net.core.wmem_max limits half a send buffer; if
that is too small, none is set.

An MPTCP socket refuses TCP_USER_TIMEOUT (tcp(7)), so the program sets it, only while a subflow retransmits: otherwise
data of a vanished client would wait for 15 minutes. It is not set on an idle subflow, where it would replace the number
of unanswered probes (tcp_keepalive_timer(), net/ipv4/tcp_timer.c), nor while the client's window is closed: Squid ends
a paused download.

A second map gives initial options by client prefix (longest match) when a subflow is accepted. So even before the first
sample, little data waits on a subflow that will have a cap, and its first segments are few and use the cap's HTB class
(SO_PRIORITY, tc-htb(8)). The program clears the class after some segments, by when the entry, if any, exists. It raises
the small TCP_NOTSENT_LOWAT after much data without a limit, or a subflow without a verdict would stay slow. Under a
very low cap a join rests (rate 0) from its acceptance, because the scheduler would give it 32 kB at a time at first.
The first subflow never rests, because no other would carry its data. Plain TCP is not changed.
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
"""The first program (and its map), the map of initial options, and the iterator."""
MAX_PREFIXES = 131_072
UNLIMITED = 0xFFFFFFFF
MIN_SEND_BUFFER = 1 << 20
"""Bytes. A smaller buffer does not help, and the socket could not get a larger one after the cap either."""
_COOKIE, _LIMIT = struct.Struct("=Q"), struct.Struct("=III")
_PREFIX, _BIRTH = struct.Struct("=I16s"), struct.Struct("=IIII")
"""Keys and values of the maps: struct limit in ``programs/limits.h``; structs prefix and birth in
``programs/mptcp_throttler.c``."""
_IPPROTO_TCP, _TCP_CONGESTION = 6, 13
USER_TIMEOUT = 300.0
"""Seconds without acknowledgment of data after which the kernel closes a subflow."""


class BpfSocketPacing:
    """The SocketPacing port by a sock_ops program."""

    def __init__(self, ownership: Ownership, user_timeout: float = USER_TIMEOUT, *, for_accepted: bool = True) -> None:
        """*user_timeout*: seconds. Without *for_accepted*, leave newly accepted sockets alone. Raises KernelError."""
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
                # Before Linux 5.19 a program cannot distinguish a subflow from plain TCP.
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
        """Apply the map to all sockets and clear their initial classes, in a few ms; return False if unsupported."""
        try:
            self._bpf.iterate(self._open_iterator())
        except KernelError as error:
            log.info("%s; sockets that send nothing keep their limits until they do", error)
            return False
        return True

    def can_rest(self) -> bool:
        """Tell whether a resting socket can be made to send again: needs the iterator and BBR (the kernel loads it)."""
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
    """Return the largest send buffer in bytes: twice net.core.wmem_max, which not every namespace shows."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, (1 << 30) - 1)
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _value(limit: SocketLimit, most: int) -> tuple[int, int, int]:
    """Return the map value of *limit*; *most* limits the send buffer, bytes."""
    rate, not_sent, send_buffer = limit.rate, limit.not_sent, limit.send_buffer
    return (
        UNLIMITED if rate is None else min(UNLIMITED - 1, -(-rate // 8)),
        0 if not_sent is None else max(1, not_sent),
        0 if send_buffer is None or most < MIN_SEND_BUFFER else min(most, send_buffer) // 2,
    )


def _prefix(network: Network) -> bytes:
    """Return the map key; IPv4 is mapped into IPv6."""
    if isinstance(network, IPv6Network):
        return _PREFIX.pack(network.prefixlen, network.network_address.packed)
    return _PREFIX.pack(96 + network.prefixlen, mapped(network.network_address.packed))


def _options(birth: Birth) -> bytes:
    return _BIRTH.pack(birth.not_sent or 0, birth.initial_window or 0, birth.class_id or 0, birth.rests)


def open_socket_pacing(ownership: Ownership) -> BpfSocketPacing | None:
    """Return the port; log the reason and return None if this host does not support it."""
    try:
        return BpfSocketPacing(ownership)
    except KernelError as error:
        log.warning("%s; caps begin without pacing, which may stall other paths for a moment", error)
        return None
