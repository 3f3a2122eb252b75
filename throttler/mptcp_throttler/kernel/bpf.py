"""BPF programs on a cgroup, an iterator, and maps that others may change. bpf(2).

``build`` in ``sockets/programs`` compiles the C programs there when the virtual environment or a package is made.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mptcp_common import bpf
from mptcp_common.bpf import Map
from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.scheduling import in_turns

PROGRAMS = Path(__file__).parent / "sockets/programs"
_ATTACH_SOCK_OPS, _ATTACH_ITERATOR = 3, 28
_LINK_INFO_BYTES, _LINK_CGROUP = 128, slice(16, 24)
"""In struct bpf_link_info; the cgroup id is 0 after somebody detached the program."""
_LOG_BYTES = 1 << 16
_SETTINGS = struct.Struct("=QIII8192s4x")
"""struct settings of ``programs/bpf.h``."""
_SOL_SOCKET, _SO_NETNS_COOKIE = 1, 71
_CGROUP2 = "cgroup2"
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""System call numbers, the same on every architecture."""
_FSCONFIG_CMD_CREATE, _CLOSE_ON_EXEC = 6, 1


@dataclass(frozen=True, slots=True)
class ProgramConstants:
    """Load-time constants. The program acts on sockets of the network namespace in which :meth:`packed` is called."""

    ports: Iterable[int] = ()
    """Listening ports of the connections to handle."""
    user_timeout: float = 0.0
    """Seconds that a socket may retransmit."""
    htb_major: int = 0
    births: bool = False
    """Whether subflows get initial options on acceptance."""

    def packed(self) -> bytes:
        """Return struct settings. Raises KernelError."""
        ports = bytearray(1 << 13)
        for port in self.ports:
            ports[port // 8] |= 1 << port % 8
        return _SETTINGS.pack(
            _namespace_cookie(), round(1000 * self.user_timeout), self.htb_major << 16, self.births, ports
        )


@dataclass(slots=True)
class CgroupProgram:
    """A loaded program and its link's descriptor."""

    name: str
    descriptor: int
    link: int | None = None


class Bpf(bpf.Bpf):
    """Adds programs on the cgroup hierarchy and iterators."""

    def attach_sock_ops(self, program: str, told: ProgramConstants, maps: Mapping[str, Map]) -> CgroupProgram:
        """Run the program for TCP sockets of the whole cgroup hierarchy, beside other programs. Raises KernelError.

        *maps* are by their names in the program. It is detached when this object is closed or the process ends.
        """
        loaded = CgroupProgram(program, self._load(program, told, maps))
        self._attach(loaded)
        return loaded

    def _attach(self, program: CgroupProgram) -> None:
        with _cgroup_root() as root:
            link = self.made(
                self.library.bpf_link_create(program.descriptor, root, _ATTACH_SOCK_OPS, None),
                f"attach the BPF program {program.name} to the root of the cgroup hierarchy",
            )
        if program.link is not None:
            self.descriptors.remove(program.link)
            os.close(program.link)
        program.link = link

    def put_right(self, program: CgroupProgram) -> list[str]:
        """Attach the program again if somebody detached it; return that as a text. Raises KernelError."""
        info, size = ctypes.create_string_buffer(_LINK_INFO_BYTES), ctypes.c_uint32(_LINK_INFO_BYTES)
        told = self.library.bpf_obj_get_info_by_fd(program.link, info, ctypes.byref(size)) == 0
        if not told or any(info.raw[_LINK_CGROUP]):
            return []
        self._attach(program)
        return [f"the BPF program {program.name} was detached"]

    def tcp_iterator(self, program: str, told: ProgramConstants, maps: Mapping[str, Map]) -> int:
        """Load a program for :meth:`iterate`. Needs Linux 5.16 with BTF and CAP_PERFMON. Raises KernelError."""
        descriptor = self._load(program, told, maps)
        return self.made(
            self.library.bpf_link_create(descriptor, 0, _ATTACH_ITERATOR, None), f"attach the BPF program {program}"
        )

    def iterate(self, iterator: int) -> None:
        """Run the program for each TCP socket of this thread's network namespace. Raises KernelError."""
        result = self.library.bpf_iter_create(iterator)
        if result < 0:
            raise KernelError(f"go through the TCP sockets: {os.strerror(-result)}")
        try:
            with open(result, "rb", buffering=0) as output:
                while output.read(_LOG_BYTES) != b"":
                    pass  # read returns None (EAGAIN) after a million sockets
        except OSError as error:
            raise KernelError(f"go through the TCP sockets: {error.strerror}") from error

    def _load(self, program: str, told: ProgramConstants, maps: Mapping[str, Map]) -> int:
        (descriptor,) = self.load(PROGRAMS / f"{program}.o", told.packed(), maps, PROGRAMS / "build").values()
        return descriptor


class MirroredMap:
    """A map and a copy of its wanted entries, because others may change the map. Methods raise KernelError."""

    def __init__(self, loaded: Bpf, table: Map) -> None:
        self._bpf = loaded
        self._table = table
        self._wanted: dict[bytes, bytes] = {}
        self._touched: set[bytes] | None = None
        """Keys changed since the current comparison began; None without one."""

    def get(self, key: bytes) -> bytes | None:
        """Return the wanted value of *key*."""
        return self._wanted.get(key)

    def update(self, entries: Mapping[bytes, bytes]) -> None:
        """Set entries; :meth:`check` retries those that the kernel refuses."""
        self._wanted.update(entries)
        self._touch(entries)
        self._bpf.update_batch(self._table, b"".join(entries), b"".join(entries.values()))

    def delete(self, keys: Collection[bytes]) -> None:
        """Delete keys; ignore unknown ones."""
        for key in keys:
            self._wanted.pop(key, None)
        self._touch(keys)
        self._bpf.delete_batch(self._table, b"".join(keys))

    async def check(self) -> int:
        """Compare the map with the wanted entries and repair it; return how many entries differed."""
        self._touched = touched = set[bytes]()
        try:
            found = {key: value async for key, value in in_turns(self._bpf.entries(self._table))}
            wanted = in_turns(list(self._wanted.items()))
            wrong = {key: value async for key, value in wanted if found.pop(key, None) != value}
        finally:
            self._touched = None
        wrong = {key: value for key, value in wrong.items() if key not in touched}
        foreign = [key for key in found if key not in self._wanted and key not in touched]
        self._bpf.update_batch(self._table, b"".join(wrong), b"".join(wrong.values()))
        self._bpf.delete_batch(self._table, b"".join(foreign))
        return len(wrong) + len(foreign)

    def _touch(self, keys: Iterable[bytes]) -> None:
        if self._touched is not None:
            self._touched.update(keys)


def _namespace_cookie() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return int.from_bytes(probe.getsockopt(_SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
        except OSError as error:
            raise KernelError(f"ask for the network namespace's cookie: {error.strerror}") from error


@contextmanager
def _cgroup_root() -> Iterator[int]:
    """Open the root of the cgroup2 hierarchy. If it is not mounted, as in a namespace with its own /sys, use a detached
    mount, which needs CAP_SYS_ADMIN. Raises KernelError."""
    root = _open_mounted()
    if root is None:
        root = _open_unmounted()
    try:
        yield root
    finally:
        os.close(root)


def _open_mounted() -> int | None:
    # proc_pid_mountinfo(5): the fourth field is the root of the mount in its file system, the fifth the mount point.
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        mount, _, source = line.partition(" - ")
        words = mount.split()
        if source.startswith(f"{_CGROUP2} ") and words[3] == "/":
            with suppress(OSError):
                return os.open(words[4], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return None


def _open_unmounted() -> int:
    library = ctypes.CDLL(None, use_errno=True)

    def checked(result: int, what: str) -> int:
        if result < 0:
            raise KernelError(f"{what} the cgroup hierarchy: {os.strerror(ctypes.get_errno())}")
        return result

    context = checked(library.syscall(_FSOPEN, _CGROUP2.encode(), _CLOSE_ON_EXEC), "open")
    try:
        checked(library.syscall(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0), "find")
        return checked(library.syscall(_FSMOUNT, context, _CLOSE_ON_EXEC, 0), "reach")
    finally:
        os.close(context)
