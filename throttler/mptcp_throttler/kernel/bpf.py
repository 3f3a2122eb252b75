# SPDX-License-Identifier: GPL-2.0-or-later
"""BPF programs on the proxy's sockets: limits, initial options, and counters of closed sockets. bpf(2).

No process has a descriptor of a subflow's socket, and options of an MPTCP socket apply to all its subflows. A BPF
*sock_ops* program can set options on one subflow: SO_MAX_PACING_RATE and SO_SNDBUF (socket(7)), TCP_NOTSENT_LOWAT
(tcp(7)). The kernel calls it on every round trip of connections to the proxy's ports, so an idle socket is not reached.
The program looks up the socket's cookie in our map and sets the limits of the entry. Only sockets accepted while it
runs request these calls. The program ends with the process; the limits stay.

A second program, an iterator, also reaches sockets that send nothing. It lifts limits, and sets the rate 0, at which a
subflow rests. It needs Linux 5.16 and CAP_PERFMON.

Send buffers are only enlarged, on Linux 6.1 or later, to at most twice net.core.wmem_max (docs/soft-start.md).

An MPTCP socket refuses TCP_USER_TIMEOUT (tcp(7)), so the program sets it on a subflow that retransmits: otherwise data
of a vanished client would wait for 15 minutes. On an idle subflow, the option would override the number of
unanswered probes (tcp_keepalive_timer(), net/ipv4/tcp_timer.c).

A second map has initial options by client prefix (``shaping.initial_options``), set when a subflow is accepted. A
connection's first subflow never rests, because no other would carry its data.

A third program puts the counters of a closing connection into a map, because a dump does not show sockets that have
closed since the last dump.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv6Network
from pathlib import Path

from mptcp_common import bpf
from mptcp_common.bpf import Map
from mptcp_common.kernel_error import KernelError
from mptcp_throttler.mptcp.model import ClosedSocket, map_to_ipv6, unmap
from mptcp_throttler.policy.values import Network
from mptcp_throttler.shaping.model import MAX_ENTRIES, InitialOptions, Ownership, SocketLimit

log = logging.getLogger(__name__)

PROGRAMS = Path(__file__).parent / "sockets/programs"  # sources; ``build`` compiles them when a package is built
LIMITS, INITIAL_OPTIONS, ALL_SOCKETS, METER = "mptcp_throttler", "mptcp_thr_birth", "mptcp_thr_all", "mptcp_thr_meter"
MAX_PREFIXES = 131_072
UNLIMITED = 0xFFFFFFFF
MIN_SEND_BUFFER = 1 << 20  # bytes; send buffers stay as they are if the host does not allow this size: less is useless
USER_TIMEOUT = 300.0  # seconds without acknowledgment of data after which the kernel closes a subflow
_COOKIE, _LIMIT = struct.Struct("=Q"), struct.Struct("=III")  # struct limit of ``programs/limits.h``
_PREFIX, _OPTIONS = struct.Struct("=I16s"), struct.Struct("=IIII")  # structs of ``programs/mptcp_throttler.c``
_CLOSED = struct.Struct("=QQI4s16sII")  # struct of ``programs/mptcp_thr_meter.c``
_SETTINGS = struct.Struct("=QIII8192s4x")  # struct settings of ``programs/bpf.h``
_ATTACH_SOCK_OPS, _ATTACH_ITERATOR = 3, 28
_LINK_INFO_BYTES, _LINK_CGROUP = 128, slice(16, 24)  # struct bpf_link_info; its cgroup id is 0 if ours was detached
_ITERATOR_BYTES = 1 << 16
_SO_NETNS_COOKIE = 71
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # system call numbers, the same on every architecture
_FSCONFIG_CMD_CREATE, _CLOSE_ON_EXEC = 6, 1


def program_constants(
    ports: Iterable[int] = (), user_timeout: float = 0.0, htb_major: int = 0, *, initial_options: bool = False
) -> bytes:
    """Return the load-time constants of a program for the sockets of this network namespace. Raises KernelError.
    *user_timeout*: seconds that a socket may retransmit; *initial_options*: whether subflows get initial options."""
    bits = bytearray(1 << 13)
    for port in ports:
        bits[port // 8] |= 1 << port % 8
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            cookie = int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
        except OSError as error:
            raise KernelError(f"get the network namespace's cookie: {error.strerror}") from error
    return _SETTINGS.pack(cookie, round(1000 * user_timeout), htb_major << 16, initial_options, bits)


class Bpf(bpf.Bpf):
    """Adds to the base class one program on the cgroup hierarchy, and iterators."""

    _name: str
    _program: int
    _link: int | None = None

    def attach_sock_ops(self, program: str, constants: bytes, maps: Mapping[str, Map]) -> None:
        """Run the program for TCP sockets of the whole cgroup hierarchy until this object is closed or the process
        ends; other programs still run. *maps* has the maps by their names in the program. Raises KernelError."""
        self._name, self._program = program, self._load(program, constants, maps)
        self._attach()

    def _attach(self) -> None:
        root = _open_cgroup_root()
        try:
            link = self.register(
                self.library.bpf_link_create(self._program, root, _ATTACH_SOCK_OPS, None),
                f"attach the BPF program {self._name} to the root of the cgroup hierarchy",
            )
        finally:
            os.close(root)
        if self._link is not None:
            self.descriptors.remove(self._link)
            os.close(self._link)
        self._link = link

    def check(self) -> list[str]:
        """Attach the program again if it was detached; return texts that report this. Raises KernelError."""
        info, size = ctypes.create_string_buffer(_LINK_INFO_BYTES), ctypes.c_uint32(_LINK_INFO_BYTES)
        has_info = self.library.bpf_obj_get_info_by_fd(self._link, info, ctypes.byref(size)) == 0
        if not has_info or any(info.raw[_LINK_CGROUP]):
            return []
        self._attach()
        return [f"the BPF program {self._name} was detached"]

    def tcp_iterator(self, program: str, constants: bytes, maps: Mapping[str, Map]) -> int:
        """Load a program for :meth:`iterate`. Needs Linux 5.16 with BTF and CAP_PERFMON. Raises KernelError."""
        descriptor = self._load(program, constants, maps)
        return self.register(
            self.library.bpf_link_create(descriptor, 0, _ATTACH_ITERATOR, None), f"attach the BPF program {program}"
        )

    def iterate(self, iterator: int) -> None:
        """Run the program for each TCP socket of this thread's network namespace. Raises KernelError."""
        result = self.library.bpf_iter_create(iterator)
        if result < 0:
            raise KernelError(f"iterate over the TCP sockets: {os.strerror(-result)}")
        try:
            with open(result, "rb", buffering=0) as output:
                while output.read(_ITERATOR_BYTES) != b"":
                    pass  # read returns None (EAGAIN) after a million sockets
        except OSError as error:
            raise KernelError(f"iterate over the TCP sockets: {error.strerror}") from error

    def _load(self, program: str, constants: bytes, maps: Mapping[str, Map]) -> int:
        (descriptor,) = self.load(PROGRAMS / f"{program}.o", constants, maps, PROGRAMS / "build").values()
        return descriptor


def _open_cgroup_root() -> int:
    """Open the root of the cgroup2 hierarchy. If it is not mounted, as in a namespace with its own /sys, use a detached
    mount, which needs CAP_SYS_ADMIN. Raises KernelError."""
    # proc_pid_mountinfo(5): the fourth field is the root of the mount in its file system, the fifth the mount point.
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        mount, _, source = line.partition(" - ")
        words = mount.split()
        if source.startswith("cgroup2 ") and words[3] == "/":
            with suppress(OSError):
                return os.open(words[4], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    library = ctypes.CDLL(None, use_errno=True)

    def check_result(result: int, operation: str) -> int:
        if result < 0:
            raise KernelError(f"{operation} the cgroup hierarchy: {os.strerror(ctypes.get_errno())}")
        return result

    context = check_result(library.syscall(_FSOPEN, b"cgroup2", _CLOSE_ON_EXEC), "open")
    try:
        check_result(library.syscall(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0), "configure")
        return check_result(library.syscall(_FSMOUNT, context, _CLOSE_ON_EXEC, 0), "mount")
    finally:
        os.close(context)


class SocketPacing(Bpf):
    """Limits on the sockets of single subflows, by socket cookie. Methods raise KernelError."""

    def __init__(self, ownership: Ownership, user_timeout: float = USER_TIMEOUT, *, for_accepted: bool = True) -> None:
        """*user_timeout*: seconds. Without *for_accepted*, do not change newly accepted sockets. Raises KernelError."""
        self._max_buffer = largest_send_buffer()
        self.has_buffers = self._max_buffer >= MIN_SEND_BUFFER  # whether sockets can have larger send buffers
        if not self.has_buffers:
            log.info("net.core.wmem_max is %d: caps of 1 to 3 Mbit/s may slow other paths down", self._max_buffer // 2)
        super().__init__()
        self._iterator: int | None = None
        try:
            self._limits = self.hash_map(LIMITS, _COOKIE.size, _LIMIT.size, MAX_ENTRIES)
            self._initial_options = self.prefix_map(INITIAL_OPTIONS, _PREFIX.size, _OPTIONS.size, MAX_PREFIXES)
            maps = {"limits": self._limits, "initial_options": self._initial_options}
            settings = ownership.listen_ports if for_accepted else (), user_timeout, ownership.htb_major
            self._constants, self.sets_initial_options = program_constants(*settings), True
            try:
                self.attach_sock_ops(LIMITS, program_constants(*settings, initial_options=True), maps)
            except KernelError as error:
                # Before Linux 5.19 a program cannot distinguish a subflow from plain TCP.
                self.sets_initial_options = False
                self.attach_sock_ops(LIMITS, self._constants, maps)
                log.warning("%s; short downloads under a cap use the other paths less", error)
        except BaseException:
            self.close()
            raise

    def set_initial_options(self, changes: Mapping[Network, InitialOptions | None]) -> None:
        """Set initial options of future subflows by client prefix (longest match; None removes)."""
        values = {_map_key(each): _pack(options) for each, options in changes.items() if options is not None}
        self.update_batch(self._initial_options, b"".join(values), b"".join(values.values()))
        self.delete_batch(self._initial_options, b"".join(_map_key(each) for each in changes if changes[each] is None))

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        """Set limits, which apply about one round trip later. The map keeps them until :meth:`forget`."""
        values = b"".join(_LIMIT.pack(*_limit_value(each, self._max_buffer)) for each in limits.values())
        self.update_batch(self._limits, b"".join(map(_COOKIE.pack, limits)), values)

    def forget(self, cookies: Iterable[int]) -> None:
        """Remove the limits of sockets from the map; the options that are already set on the sockets stay."""
        self.delete_batch(self._limits, b"".join(map(_COOKIE.pack, cookies)))

    def limit_at_once(self) -> bool:
        """Apply the map to all sockets and clear their initial classes; return False if unsupported. May run in a
        thread; takes about 1 µs per TCP socket of the namespace."""
        try:
            self.iterate(self._open_iterator())
        except KernelError as error:
            log.info("%s; sockets that send nothing keep their limits until they send", error)
            return False
        return True

    def can_rest(self) -> bool:
        """Return whether a resting socket can wake: this needs the iterator and BBR. Loads BBR's kernel module."""
        try:
            self._open_iterator()
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
            return True
        except (KernelError, OSError) as error:
            log.info("%s; low caps may slow other paths down", error)
            return False

    def _open_iterator(self) -> int:
        if self._iterator is None:
            self._iterator = self.tcp_iterator(ALL_SOCKETS, self._constants, {"limits": self._limits})
        return self._iterator


def open_socket_pacing(ownership: Ownership) -> SocketPacing | None:
    """Open the limits on sockets; log the reason and return None if this host does not support them."""
    try:
        return SocketPacing(ownership)
    except KernelError as error:
        log.warning("%s; caps begin without pacing, which may stall other paths for a moment", error)
        return None


def largest_send_buffer() -> int:
    """Return the largest send buffer in bytes: twice net.core.wmem_max, which not every namespace shows."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, (1 << 30) - 1)
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _limit_value(limit: SocketLimit, maximum: int) -> tuple[int, int, int]:
    rate, not_sent, send_buffer = limit.rate, limit.not_sent, limit.send_buffer
    return (
        UNLIMITED if rate is None else min(UNLIMITED - 1, -(-rate // 8)),
        0 if not_sent is None else max(1, not_sent),
        0 if send_buffer is None or maximum < MIN_SEND_BUFFER else min(maximum, send_buffer) // 2,
    )


def _map_key(network: Network) -> bytes:
    """Return the map key; IPv4 is mapped into IPv6."""
    if isinstance(network, IPv6Network):
        return _PREFIX.pack(network.prefixlen, network.network_address.packed)
    return _PREFIX.pack(96 + network.prefixlen, map_to_ipv6(network.network_address.packed))


def _pack(options: InitialOptions) -> bytes:
    return _OPTIONS.pack(options.not_sent or 0, options.initial_window or 0, options.class_id or 0, options.rests)


class SocketMeter(Bpf):
    """Byte counters of sockets accepted on *listen_ports* and closed since this object was created."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        """Raises KernelError if kernel or privileges do not suffice."""
        super().__init__()
        try:
            self._closed = self.hash_map(METER, _COOKIE.size, _CLOSED.size, MAX_ENTRIES)
            self.attach_sock_ops(METER, program_constants(listen_ports), {"closed": self._closed})
        except BaseException:
            self.close()
            raise

    def closed(self) -> Iterator[ClosedSocket]:
        """Yield each closed socket once. Raises KernelError."""
        for key, value in self.drain(self._closed):
            acked, received, family, remote4, remote6, remote_port, local_port = _CLOSED.unpack(value)
            remote = remote4 if family == socket.AF_INET else unmap(remote6)
            # The port is in network byte order, in the lower or, on some kernels, the upper half of the word.
            port = socket.ntohs(remote_port & 0xFFFF or remote_port >> 16)
            yield ClosedSocket(_COOKIE.unpack(key)[0], (remote, port, local_port), acked, received)


def open_socket_meter(listen_ports: Iterable[int]) -> SocketMeter | None:
    """Return the meter; log the reason and return None if this host does not support it."""
    try:
        return SocketMeter(listen_ports)
    except KernelError as error:
        log.warning("%s; bytes after a subflow's last sample are not counted", error)
        return None
