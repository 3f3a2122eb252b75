"""The little of eBPF that the throttler needs: maps, programs on a cgroup, an iterator. bpf(2), libbpf.

System calls go through libbpf, which iproute2 brings to every machine. The programs' code is from ``bpf_code``.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mptcp_throttler.kernel.bpf_code import INSTRUCTION_BYTES
from mptcp_throttler.kernel.ports import KernelError

_LIBRARY = "libbpf.so.1"
_MAP_HASH = 1
_MAP_LPM_TRIE = 11
_NO_PREALLOCATION = 1
_PROGRAM_SOCK_OPS, _ATTACH_SOCK_OPS = 13, 3
_PROGRAM_TRACING, _ATTACH_ITERATOR = 26, 28
_LINK_INFO_BYTES, _LINK_CGROUP = 128, slice(16, 24)
"""Of struct bpf_link_info: the number of the cgroup, 0 once somebody detached the program."""
_LICENSE = b"GPL"
_LOG_BYTES = 1 << 16
_BATCH = 4096
"""Entries taken out of a map at a time."""
_ENOTSUPP = 524
"""Of the kernel's own, with no name outside."""
_NO_BATCHES = frozenset({errno.EINVAL, errno.EOPNOTSUPP, _ENOTSUPP})
"""What a kernel before 5.6 answers to operations on many entries."""
_CGROUP2 = "cgroup2"
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""System calls, the same on every architecture (mount_setattr(2) and its siblings)."""
_FSCONFIG_CMD_CREATE, _CLOSE_ON_EXEC = 6, 1


class _LoadOptions(ctypes.Structure):
    """struct bpf_prog_load_opts of libbpf 1.0 (bpf/bpf.h)."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_int),
        ("program_btf", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("interface", ctypes.c_uint32),
        ("kernel_version", ctypes.c_uint32),
        ("attach_btf_id", ctypes.c_uint32),
        ("attach_program", ctypes.c_uint32),
        ("attach_btf", ctypes.c_uint32),
        ("descriptors", ctypes.c_void_p),
        ("function_info", ctypes.c_void_p),
        ("function_info_count", ctypes.c_uint32),
        ("function_info_size", ctypes.c_uint32),
        ("line_info", ctypes.c_void_p),
        ("line_info_count", ctypes.c_uint32),
        ("line_info_size", ctypes.c_uint32),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log", ctypes.c_char_p),
    )


@dataclass(frozen=True, slots=True)
class Map:
    """A map of ours."""

    descriptor: int
    name: str
    key_bytes: int
    value_bytes: int
    entries: int
    """How many it holds at most."""


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
        self._library.libbpf_set_print(None)
        self._descriptors: list[int] = []
        self._batches = True
        """This kernel has operations on many entries, for all we know."""

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
        if not count:
            return
        if self._batches and self._did(
            self._library.bpf_map_update_batch(table.descriptor, keys, values, ctypes.byref(count), None), table
        ):
            return
        for key, value in zip(_pieces(keys, table.key_bytes), _pieces(values, table.value_bytes), strict=True):
            result = self._library.bpf_map_update_elem(table.descriptor, key, value, ctypes.c_uint64(0))
            if result < 0:
                raise _refused(-result, table)

    def delete_batch(self, table: Map, keys: bytes) -> None:
        """Forget keys, which stand one after the other; unknown ones are fine. Raises KernelError."""
        start, size = 0, table.key_bytes
        while start < len(keys) and self._batches:
            count = ctypes.c_uint32((len(keys) - start) // size)
            rest = keys[start:] if start else keys
            result = self._library.bpf_map_delete_batch(table.descriptor, rest, ctypes.byref(count), None)
            if result == -errno.ENOENT:
                start += (count.value + 1) * size  # it ends at the first unknown one
            elif self._did(result, table):
                return
        for key in _pieces(keys[start:], size):
            self._library.bpf_map_delete_elem(table.descriptor, key)

    def drain(self, table: Map) -> Iterator[tuple[bytes, bytes]]:
        """Take all entries out of a map: yield each key with its value."""
        if (yield from self._in_batches(table, "bpf_map_lookup_and_delete_batch")):
            return
        for key, value in self._one_by_one(table):
            self._library.bpf_map_delete_elem(table.descriptor, key)
            yield key, value

    def entries(self, table: Map) -> Iterator[tuple[bytes, bytes]]:
        """Yield each key with its value; some may be missing that are changed meanwhile."""
        if not (yield from self._in_batches(table, "bpf_map_lookup_batch")):
            yield from self._one_by_one(table)

    def _in_batches(self, table: Map, function: str) -> Generator[tuple[bytes, bytes], None, bool]:
        """Yield what *function* gives; return whether that is all, False where this kernel has no such function."""
        keys = ctypes.create_string_buffer(table.key_bytes * _BATCH)
        values = ctypes.create_string_buffer(table.value_bytes * _BATCH)
        # How far it came: the kernel's own, of four bytes for a hash map.
        position = ctypes.create_string_buffer(table.key_bytes + 4)
        begun = False
        while self._batches:
            count = ctypes.c_uint32(_BATCH)
            result = getattr(self._library, function)(
                table.descriptor, position if begun else None, position, keys, values, ctypes.byref(count), None
            )
            if result != -errno.ENOENT and not self._did(result, table):
                break
            yield from zip(
                _pieces(keys.raw[: table.key_bytes * count.value], table.key_bytes),
                _pieces(values.raw[: table.value_bytes * count.value], table.value_bytes),
                strict=True,
            )
            if result < 0:
                return True
            begun = True
        return False

    def _one_by_one(self, table: Map) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries; each may be deleted before the next is asked for."""
        keys: list[bytes] = []
        key = ctypes.create_string_buffer(table.key_bytes)
        value = ctypes.create_string_buffer(table.value_bytes)
        while self._library.bpf_map_get_next_key(table.descriptor, keys[-1] if keys else None, key) == 0:
            keys.append(key.raw)
        for each in keys:
            if self._library.bpf_map_lookup_elem(table.descriptor, each, value) == 0:
                yield each, value.raw

    def _did(self, result: int, table: Map) -> bool:
        """Return whether an operation on many entries was done; False where this kernel has none.

        Raises KernelError where it has, and refused.
        """
        if result >= 0:
            return True
        if -result not in _NO_BATCHES:
            raise _refused(-result, table)
        self._batches = False
        return False

    def attach_sock_ops(self, name: str, code: bytes) -> CgroupProgram:
        """Have the program run for the TCP sockets of the whole cgroup hierarchy, beside programs of others.

        It goes when this object is closed, or its process ends. Raises KernelError.
        """
        program = CgroupProgram(name, self._load(_PROGRAM_SOCK_OPS, _ATTACH_SOCK_OPS, name, code))
        self.attach_again(program)
        return program

    def attach_again(self, program: CgroupProgram) -> None:
        """Attach a program that somebody detached. Raises KernelError."""
        with _cgroup_root() as root:
            link = self._made(
                self._library.bpf_link_create(program.descriptor, root, _ATTACH_SOCK_OPS, None),
                f"attach the BPF program {program.name} to the root of the cgroup hierarchy",
            )
        if program.link is not None:
            self._descriptors.remove(program.link)
            os.close(program.link)
        program.link = link

    def is_attached(self, program: CgroupProgram) -> bool:
        """Tell whether a program still runs, for all that this kernel says."""
        info, size = ctypes.create_string_buffer(_LINK_INFO_BYTES), ctypes.c_uint32(_LINK_INFO_BYTES)
        if self._library.bpf_obj_get_info_by_fd(program.link, info, ctypes.byref(size)) < 0:
            return True
        return any(info.raw[_LINK_CGROUP])

    def tcp_iterator(self, name: str, code: bytes) -> int:
        """Load a program that :meth:`iterate` runs once for each TCP socket; return what that takes.

        Raises KernelError: it takes Linux 5.16 that knows its own types (BTF), and CAP_PERFMON.
        """
        what = f"find the kernel's iterator of TCP sockets for the BPF program {name}"
        try:
            number = self._library.libbpf_find_vmlinux_btf_id(b"tcp", _ATTACH_ITERATOR)
        except AttributeError as error:
            raise KernelError(f"{what}: {error}") from error
        if number < 0:
            raise KernelError(f"{what}: {os.strerror(-number)}")
        program = self._load(_PROGRAM_TRACING, _ATTACH_ITERATOR, name, code, number)
        return self._made(
            self._library.bpf_link_create(program, 0, _ATTACH_ITERATOR, None), f"attach the BPF program {name}"
        )

    def iterate(self, iterator: int) -> None:
        """Run a program for each TCP socket of this thread's network namespace. Raises KernelError."""
        result = self._library.bpf_iter_create(iterator)
        if result < 0:
            raise KernelError(f"go through the TCP sockets: {os.strerror(-result)}")
        try:
            while True:
                try:
                    if not os.read(result, _LOG_BYTES):
                        return
                except BlockingIOError:
                    continue  # a million sockets are done
        except OSError as error:
            raise KernelError(f"go through the TCP sockets: {error.strerror}") from error
        finally:
            os.close(result)

    def _load(self, kind: int, attach_type: int, name: str, code: bytes, attach_btf_id: int = 0) -> int:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = _LoadOptions(
            size=ctypes.sizeof(_LoadOptions),
            attempts=1,
            expected_attach_type=attach_type,
            attach_btf_id=attach_btf_id,
            log_level=1,
            log_size=_LOG_BYTES,
            log=ctypes.cast(log, ctypes.c_char_p),
        )
        load = self._library.bpf_prog_load
        load.argtypes = [
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        ]
        result = load(kind, name.encode(), _LICENSE, code, len(code) // INSTRUCTION_BYTES, ctypes.byref(options))
        verdict = log.value.decode(errors="replace").strip().splitlines()
        return self._made(result, f"load the BPF program {name}{f' ({verdict[-1]})' if verdict else ''}")

    def _made(self, result: int, what: str) -> int:
        if result < 0:
            raise KernelError(f"{what}: {os.strerror(-result)}")
        self._descriptors.append(result)
        return result


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _refused(code: int, table: Map) -> KernelError:
    if code in (errno.E2BIG, errno.ENOSPC):
        return KernelError(f"the BPF map {table.name} is full: it has room for {table.entries} entries")
    return KernelError(f"change the BPF map {table.name}: {os.strerror(code)}")


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
