"""BPF by libbpf, which iproute2 brings to every machine: maps, programs on a cgroup, an iterator. bpf(2).

The programs are in ``sockets/programs``, in C, one object file each; ``build`` there compiles them when the virtual
environment or a package is made.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.scheduling import in_turns

_LIBRARY = "libbpf.so.1"
PROGRAMS = Path(__file__).parent / "sockets/programs"
_MAP_HASH = 1
_MAP_LPM_TRIE = 11
_NO_PREALLOCATION = 1
_ATTACH_SOCK_OPS, _ATTACH_ITERATOR = 3, 28
_LINK_INFO_BYTES, _LINK_CGROUP = 128, slice(16, 24)
"""Of struct bpf_link_info: the number of the cgroup, 0 once somebody detached the program."""
_LOG_BYTES = 1 << 16
_BATCH = 4096
"""Entries taken out of a map at a time."""
_SETTINGS = struct.Struct("=QIII8192s4x")
"""struct settings of ``programs/bpf.h``."""
_SOL_SOCKET, _SO_NETNS_COOKIE = 1, 71
_CGROUP2 = "cgroup2"
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""System calls, the same on every architecture (mount_setattr(2) and its siblings)."""
_FSCONFIG_CMD_CREATE, _CLOSE_ON_EXEC = 6, 1


class _Pointer(ctypes.c_void_p):
    """A pointer that libbpf gave; as a type of its own it is not turned into a number."""


@dataclass(frozen=True, slots=True)
class Map:
    """A map of ours."""

    descriptor: int
    name: str
    key_bytes: int
    value_bytes: int
    entries: int
    """How many it holds at most."""


@dataclass(frozen=True, slots=True)
class ProgramConstants:
    """What a program is told when it is loaded; it concerns sockets of the network namespace that this is made in."""

    ports: Iterable[int] = ()
    """Where connections are accepted with which the program is to begin."""
    user_timeout: float = 0.0
    """Seconds for which a socket may go on retransmitting."""
    htb_major: int = 0
    births: bool = False
    """Subflows have options from their acceptance on."""

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
    """A program of ours, and by what it is attached."""

    name: str
    descriptor: int
    link: int | None = None


class Bpf:
    """libbpf with what it made; :meth:`close` lets the kernel free it all."""

    def __init__(self) -> None:
        """Raise :class:`KernelError` where there is no libbpf."""
        try:
            self._library = ctypes.CDLL(_LIBRARY, use_errno=True)
        except OSError as error:
            raise KernelError(f"load {_LIBRARY}: {error}") from error
        for function in ("bpf_object__open_file", "bpf_object__find_map_by_name", "bpf_object__next_program"):
            getattr(self._library, function).restype = _Pointer
        self._library.libbpf_set_print(None)
        self._descriptors: list[int] = []

    def close(self) -> None:
        for descriptor in reversed(self._descriptors):
            os.close(descriptor)
        self._descriptors.clear()

    def hash_map(self, name: str, key_bytes: int, value_bytes: int, entries: int) -> Map:
        """Return a new hash map. Raises KernelError."""
        return self._map(_MAP_HASH, name, key_bytes, value_bytes, entries)

    def prefix_map(self, name: str, key_bytes: int, value_bytes: int, entries: int) -> Map:
        """Return a new map that finds the longest prefix: a key begins with its length in bits. Raises KernelError."""
        return self._map(_MAP_LPM_TRIE, name, key_bytes, value_bytes, entries)

    def _map(self, kind: int, name: str, key_bytes: int, value_bytes: int, entries: int) -> Map:
        class Options(ctypes.Structure):
            _fields_ = (("size", ctypes.c_size_t), ("btf", ctypes.c_uint32 * 5), ("flags", ctypes.c_uint32))

        options = Options(size=ctypes.sizeof(Options), flags=_NO_PREALLOCATION)
        descriptor = self._made(
            self._library.bpf_map_create(kind, name.encode(), key_bytes, value_bytes, entries, ctypes.byref(options)),
            f"make the BPF map {name}",
        )
        return Map(descriptor, name, key_bytes, value_bytes, entries)

    def update_batch(self, table: Map, keys: bytes, values: bytes) -> None:
        """Set entries; keys and values stand one after the other.

        Raises KernelError, for one where the map is full; those before the refused one are set.
        """
        count = ctypes.c_uint32(len(keys) // table.key_bytes)
        if count:
            result = self._library.bpf_map_update_batch(table.descriptor, keys, values, ctypes.byref(count), None)
            _check(result, table)

    def delete_batch(self, table: Map, keys: bytes) -> None:
        """Forget keys, which stand one after the other; unknown ones are fine. Raises KernelError."""
        while keys:
            count = ctypes.c_uint32(len(keys) // table.key_bytes)
            result = self._library.bpf_map_delete_batch(table.descriptor, keys, ctypes.byref(count), None)
            if result != -errno.ENOENT:
                _check(result, table)
                return
            keys = keys[(count.value + 1) * table.key_bytes :]  # it ends at the first unknown one

    def drain(self, table: Map) -> Iterator[tuple[bytes, bytes]]:
        """Take all entries out of a map: yield each key with its value."""
        return self._in_batches(table, self._library.bpf_map_lookup_and_delete_batch)

    def entries(self, table: Map) -> Iterator[tuple[bytes, bytes]]:
        """Yield each key with its value; some may be missing that are changed meanwhile."""
        return self._in_batches(table, self._library.bpf_map_lookup_batch)

    def _in_batches(self, table: Map, function: Callable[..., int]) -> Iterator[tuple[bytes, bytes]]:
        keys = ctypes.create_string_buffer(table.key_bytes * _BATCH)
        values = ctypes.create_string_buffer(table.value_bytes * _BATCH)
        # How far it came: the kernel's own, of four bytes for a hash map.
        position = ctypes.create_string_buffer(table.key_bytes + 4)
        before, result = None, 0
        while result >= 0:
            count = ctypes.c_uint32(_BATCH)
            result = function(table.descriptor, before, position, keys, values, ctypes.byref(count), None)
            if result != -errno.ENOENT:  # which says that these are the last
                _check(result, table)
            yield from zip(
                _pieces(keys.raw[: table.key_bytes * count.value], table.key_bytes),
                _pieces(values.raw[: table.value_bytes * count.value], table.value_bytes),
                strict=True,
            )
            before = position

    def attach_sock_ops(self, program: str, told: ProgramConstants, maps: Mapping[str, Map]) -> CgroupProgram:
        """Have the program run for the TCP sockets of the whole cgroup hierarchy, beside programs of others.

        *maps*: by their names in the program. It goes when this object is closed, or its process ends. Raises
        KernelError.
        """
        loaded = CgroupProgram(program, self._load(program, told, maps))
        self._attach(loaded)
        return loaded

    def _attach(self, program: CgroupProgram) -> None:
        with _cgroup_root() as root:
            link = self._made(
                self._library.bpf_link_create(program.descriptor, root, _ATTACH_SOCK_OPS, None),
                f"attach the BPF program {program.name} to the root of the cgroup hierarchy",
            )
        if program.link is not None:
            self._descriptors.remove(program.link)
            os.close(program.link)
        program.link = link

    def put_right(self, program: CgroupProgram) -> list[str]:
        """Attach a program again that somebody detached; return that in words. Raises KernelError."""
        info, size = ctypes.create_string_buffer(_LINK_INFO_BYTES), ctypes.c_uint32(_LINK_INFO_BYTES)
        told = self._library.bpf_obj_get_info_by_fd(program.link, info, ctypes.byref(size)) == 0
        if not told or any(info.raw[_LINK_CGROUP]):
            return []
        self._attach(program)
        return [f"the BPF program {program.name} was detached"]

    def tcp_iterator(self, program: str, told: ProgramConstants, maps: Mapping[str, Map]) -> int:
        """Load a program that :meth:`iterate` runs once for each TCP socket; return what that takes.

        Raises KernelError: it takes Linux 5.16 that knows its own types (BTF), and CAP_PERFMON.
        """
        descriptor = self._load(program, told, maps)
        return self._made(
            self._library.bpf_link_create(descriptor, 0, _ATTACH_ITERATOR, None), f"attach the BPF program {program}"
        )

    def iterate(self, iterator: int) -> None:
        """Run a program for each TCP socket of this thread's network namespace. Raises KernelError."""
        result = self._library.bpf_iter_create(iterator)
        if result < 0:
            raise KernelError(f"go through the TCP sockets: {os.strerror(-result)}")
        try:
            with open(result, "rb", buffering=0) as output:
                while output.read(_LOG_BYTES) != b"":
                    pass  # None: a million sockets are done
        except OSError as error:
            raise KernelError(f"go through the TCP sockets: {error.strerror}") from error

    def _load(self, program: str, told: ProgramConstants, maps: Mapping[str, Map]) -> int:
        """Load the program of ``programs/*program*.o`` and return its descriptor."""
        library, path, data = self._library, PROGRAMS / f"{program}.o", told.packed()
        opened = library.bpf_object__open_file(os.fsencode(path), None)
        if not opened:
            raise KernelError(f"open {path}, which {PROGRAMS / 'build'} makes: {os.strerror(ctypes.get_errno())}")
        try:
            constants = library.bpf_object__find_map_by_name(opened, b".rodata.settings")
            fits = constants and library.bpf_map__set_initial_value(constants, data, ctypes.c_size_t(len(data))) == 0
            for name, table in maps.items():
                found = library.bpf_object__find_map_by_name(opened, name.encode())
                fits = fits and found and library.bpf_map__reuse_fd(found, table.descriptor) == 0
            if not fits:
                raise KernelError(f"{path} is of another version; {PROGRAMS / 'build'} makes it anew")
            code = library.bpf_object__next_program(opened, None)
            log = ctypes.create_string_buffer(_LOG_BYTES)
            library.bpf_program__set_log_buf(code, log, ctypes.c_size_t(_LOG_BYTES))
            result = library.bpf_object__load(opened)
            verdict = log.value.decode(errors="replace").strip().splitlines()
            if result == 0:
                result = os.dup(library.bpf_program__fd(code))
            return self._made(result, f"load the BPF program {program}{f' ({verdict[-1]})' if verdict else ''}")
        finally:
            library.bpf_object__close(opened)

    def _made(self, result: int, what: str) -> int:
        if result < 0:
            raise KernelError(f"{what}: {os.strerror(-result)}")
        self._descriptors.append(result)
        return result


class MirroredMap:
    """A map, empty at first, and what it is to have: others may change it.

    All raise KernelError where it is full or the kernel refuses.
    """

    def __init__(self, bpf: Bpf, table: Map) -> None:
        self._bpf = bpf
        self._table = table
        self._wanted: dict[bytes, bytes] = {}
        self._touched: set[bytes] | None = None
        """What was changed since the comparison began that is under way."""

    def get(self, key: bytes) -> bytes | None:
        """Return what the map is to have for *key*."""
        return self._wanted.get(key)

    def update(self, entries: Mapping[bytes, bytes]) -> None:
        """Set entries; those that are refused are known, and tried again by :meth:`check`."""
        self._wanted.update(entries)
        self._touch(entries)
        self._bpf.update_batch(self._table, b"".join(entries), b"".join(entries.values()))

    def delete(self, keys: Collection[bytes]) -> None:
        """Forget keys; unknown ones are fine."""
        for key in keys:
            self._wanted.pop(key, None)
        self._touch(keys)
        self._bpf.delete_batch(self._table, b"".join(keys))

    async def check(self) -> int:
        """Compare the map with what it is to have, and put right what differs; return how many entries that was."""
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


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _check(result: int, table: Map) -> None:
    if -result in (errno.E2BIG, errno.ENOSPC):
        raise KernelError(f"the BPF map {table.name} is full: it has room for {table.entries} entries")
    if result < 0:
        raise KernelError(f"change the BPF map {table.name}: {os.strerror(-result)}")


def _namespace_cookie() -> int:
    """Return the kernel's number of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return int.from_bytes(probe.getsockopt(_SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
        except OSError as error:
            raise KernelError(f"ask for the network namespace's cookie: {error.strerror}") from error


@contextmanager
def _cgroup_root() -> Iterator[int]:
    """Open the root of the cgroup hierarchy (version 2): where it is mounted, else, as in a namespace with a /sys of
    its own, without mounting it anywhere, which takes CAP_SYS_ADMIN. Raises KernelError.
    """
    root = _open_mounted()
    if root is None:
        root = _open_unmounted()
    try:
        yield root
    finally:
        os.close(root)


def _open_mounted() -> int | None:
    # man proc_pid_mountinfo: the fourth field is what of the hierarchy is mounted, the fifth where.
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
