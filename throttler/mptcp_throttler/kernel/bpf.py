"""The little of eBPF that the throttler needs: instructions, one map, one program on a cgroup. bpf(2), libbpf.

The program is some forty instructions, so it is assembled here: a compiler for BPF would weigh more than all else that
is installed. System calls go through libbpf, which iproute2 brings to every machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from mptcp_throttler.kernel.ports import KernelError

_LIBRARY = "libbpf.so.1"
_MAP_HASH = 1
_NO_PREALLOCATION = 1
_PROGRAM_SOCK_OPS, _ATTACH_SOCK_OPS = 13, 3
_LICENSE = b"GPL"
_LOG_BYTES = 1 << 16
_BATCH = 4096
"""Entries taken out of a map at a time."""
_ENOTSUPP = 524
"""Of the kernel's own, with no name outside."""
_NO_BATCHES = frozenset({errno.EINVAL, errno.EOPNOTSUPP, _ENOTSUPP})
"""What a kernel before 5.6 answers to operations on many entries."""
_INSTRUCTION = struct.Struct("<BBhi")
_CGROUP2 = "cgroup2"
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""System calls, the same on every architecture (mount_setattr(2) and its siblings)."""
_FSCONFIG_CMD_CREATE, _CLOSE_ON_EXEC = 6, 1


class Register(IntEnum):
    """R0 holds results, R1 to R5 arguments, R6 to R9 survive calls, R10 is the frame."""

    R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of the kernel's Documentation/bpf/instruction-set; a jump names its label."""

    code: int
    destination: int = 0
    source: int = 0
    offset: int = 0
    immediate: int = 0
    label: str | None = None

    @property
    def slots(self) -> int:
        """64-bit words that it takes: two with a 64-bit immediate."""
        return 2 if self.code == _LOAD_IMMEDIATE_64 else 1


_LOAD_IMMEDIATE_64 = 0x18
_FROM_MAP = 1
"""Source of a 64-bit immediate that is the descriptor of a map."""


def copy(destination: Register, source: Register) -> Instruction:
    return Instruction(0xBF, destination, source)


def number(destination: Register, value: int) -> Instruction:
    return Instruction(0xB7, destination, immediate=value)


def number_64(destination: Register, value: int) -> Instruction:
    return Instruction(_LOAD_IMMEDIATE_64, destination, immediate=value)


def map_address(destination: Register, descriptor: int) -> Instruction:
    return Instruction(_LOAD_IMMEDIATE_64, destination, _FROM_MAP, immediate=descriptor)


def add(destination: Register, value: int) -> Instruction:
    return Instruction(0x07, destination, immediate=value)


def add_register(destination: Register, source: Register) -> Instruction:
    return Instruction(0x0F, destination, source)


def bits_or(destination: Register, value: int) -> Instruction:
    return Instruction(0x47, destination, immediate=value)


def load_32(destination: Register, source: Register, offset: int) -> Instruction:
    return Instruction(0x61, destination, source, offset)


def load_64(destination: Register, source: Register, offset: int) -> Instruction:
    return Instruction(0x79, destination, source, offset)


def store_32(destination: Register, offset: int, source: Register) -> Instruction:
    return Instruction(0x63, destination, source, offset)


def store_64(destination: Register, offset: int, source: Register) -> Instruction:
    return Instruction(0x7B, destination, source, offset)


def call(function: int) -> Instruction:
    return Instruction(0x85, immediate=function)


def jump(label: str) -> Instruction:
    return Instruction(0x05, label=label)


def jump_if(register: Register, value: int, label: str) -> Instruction:
    return Instruction(0x15, register, immediate=value, label=label)


def jump_unless(register: Register, value: int, label: str) -> Instruction:
    return Instruction(0x55, register, immediate=value, label=label)


def jump_unless_same(register: Register, other: Register, label: str) -> Instruction:
    return Instruction(0x5D, register, other, label=label)


def jump_unless_less(register: Register, other: Register, label: str) -> Instruction:
    """Jump unless *register* is below *other*, both without sign."""
    return Instruction(0x3D, register, other, label=label)


def leave() -> Instruction:
    return Instruction(0x95)


def assemble(lines: Iterable[Instruction | str]) -> bytes:
    """Return the machine code of *lines*; a string is a label for what follows. Raises KeyError for an unknown one."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    position = 0
    for line in lines:
        if isinstance(line, str):
            labels[line] = position
        else:
            code.append(line)
            position += line.slots
    return b"".join(_encoded(code, labels))


def _encoded(code: Iterable[Instruction], labels: dict[str, int]) -> Iterator[bytes]:
    position = 0
    for each in code:
        position += each.slots
        offset = each.offset if each.label is None else labels[each.label] - position
        low = each.immediate & 0xFFFFFFFF
        signed = low - (1 << 32) if low >> 31 else low
        yield _INSTRUCTION.pack(each.code, each.source << 4 | each.destination, offset, signed)
        if each.slots == 2:
            high = each.immediate >> 32 & 0xFFFFFFFF
            yield _INSTRUCTION.pack(0, 0, 0, high - (1 << 32) if high >> 31 else high)


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
class HashMap:
    """A map of ours."""

    descriptor: int
    name: str
    key_bytes: int
    value_bytes: int
    entries: int
    """How many it holds at most."""


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

    def hash_map(self, name: str, key_bytes: int, value_bytes: int, entries: int) -> HashMap:
        """Return a new hash map. Raises KernelError."""

        class Options(ctypes.Structure):
            _fields_ = (("size", ctypes.c_size_t), ("btf", ctypes.c_uint32 * 4), ("flags", ctypes.c_uint32))

        options = Options(size=ctypes.sizeof(Options), flags=_NO_PREALLOCATION)
        descriptor = self._made(
            self._library.bpf_map_create(
                _MAP_HASH, name.encode(), key_bytes, value_bytes, entries, ctypes.byref(options)
            ),
            f"make the BPF map {name}",
        )
        return HashMap(descriptor, name, key_bytes, value_bytes, entries)

    def update_batch(self, table: HashMap, keys: bytes, values: bytes) -> None:
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

    def delete_batch(self, table: HashMap, keys: bytes) -> None:
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

    def drain(self, table: HashMap) -> Iterator[tuple[bytes, bytes]]:
        """Take all entries out of a map: yield each key with its value."""
        keys = ctypes.create_string_buffer(table.key_bytes * _BATCH)
        values = ctypes.create_string_buffer(table.value_bytes * _BATCH)
        # How far it came: the kernel's own, of four bytes for a hash map.
        position = ctypes.create_string_buffer(table.key_bytes + 4)
        begun = False
        while self._batches:
            count = ctypes.c_uint32(_BATCH)
            result = self._library.bpf_map_lookup_and_delete_batch(
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
                return
            begun = True
        while self._library.bpf_map_get_next_key(table.descriptor, None, keys) == 0:
            found = self._library.bpf_map_lookup_elem(table.descriptor, keys, values) == 0
            self._library.bpf_map_delete_elem(table.descriptor, keys)
            if found:
                yield keys.raw[: table.key_bytes], values.raw[: table.value_bytes]

    def _did(self, result: int, table: HashMap) -> bool:
        """Return whether an operation on many entries was done; False where this kernel has none.

        Raises KernelError where it has, and refused.
        """
        if result >= 0:
            return True
        if -result not in _NO_BATCHES:
            raise _refused(-result, table)
        self._batches = False
        return False

    def attach_sock_ops(self, name: str, code: bytes) -> None:
        """Have the program run for the TCP sockets of the whole cgroup hierarchy, beside programs of others.

        It goes when this object is closed, or its process ends. Raises KernelError.
        """
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = _LoadOptions(
            size=ctypes.sizeof(_LoadOptions),
            attempts=1,
            expected_attach_type=_ATTACH_SOCK_OPS,
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
        result = load(
            _PROGRAM_SOCK_OPS, name.encode(), _LICENSE, code, len(code) // _INSTRUCTION.size, ctypes.byref(options)
        )
        verdict = log.value.decode(errors="replace").strip().splitlines()
        program = self._made(result, f"load the BPF program {name}{f' ({verdict[-1]})' if verdict else ''}")
        with _cgroup_root() as root:
            self._made(
                self._library.bpf_link_create(program, root, _ATTACH_SOCK_OPS, None),
                f"attach the BPF program {name} to the root of the cgroup hierarchy",
            )

    def _made(self, result: int, what: str) -> int:
        if result < 0:
            raise KernelError(f"{what}: {os.strerror(-result)}")
        self._descriptors.append(result)
        return result


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _refused(code: int, table: HashMap) -> KernelError:
    if code == errno.E2BIG:
        return KernelError(f"the BPF map {table.name} is full: it has room for {table.entries} sockets")
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
