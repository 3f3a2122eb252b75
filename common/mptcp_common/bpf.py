# SPDX-License-Identifier: GPL-2.0-or-later
"""BPF maps, and programs from object files (bpf(2)), through libbpf, which each host has because iproute2 needs it."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mptcp_common.kernel_error import KernelError

_LIBRARY = "libbpf.so.1"
_MAP_HASH, _MAP_ARRAY = 1, 2
_MAP_LPM_TRIE = 11
_NO_PREALLOCATION = 1
_LOG_BYTES = 1 << 16
_BATCH = 4096


class _Pointer(ctypes.c_void_p):
    """A pointer from libbpf. It is a subclass, because ctypes would convert a plain ``c_void_p`` result to an int."""


@dataclass(frozen=True, slots=True)
class Map:
    """A BPF map that this process created."""

    descriptor: int
    name: str
    key_bytes: int
    value_bytes: int
    entries: int
    """Maximum number of entries."""


class Bpf:
    """libbpf, and the maps and programs created with it. :meth:`close` closes their descriptors, so that the kernel
    frees them."""

    def __init__(self) -> None:
        """Raises :class:`KernelError` without libbpf."""
        try:
            self.library = ctypes.CDLL(_LIBRARY, use_errno=True)
        except OSError as error:
            raise KernelError(f"load {_LIBRARY}: {error}") from error
        for function in ("bpf_object__open_file", "bpf_object__find_map_by_name", "bpf_object__next_program"):
            getattr(self.library, function).restype = _Pointer
        self.library.bpf_program__name.restype = ctypes.c_char_p
        self.library.libbpf_set_print(None)
        self.descriptors: list[int] = []

    def close(self) -> None:
        for descriptor in reversed(self.descriptors):
            os.close(descriptor)
        self.descriptors.clear()

    def hash_map(self, name: str, key_bytes: int, value_bytes: int, entries: int) -> Map:
        """Return a new hash map. Raises KernelError."""
        return self._map(_MAP_HASH, name, key_bytes, value_bytes, entries)

    def prefix_map(self, name: str, key_bytes: int, value_bytes: int, entries: int) -> Map:
        """Return a new map for longest-prefix matches: each key begins with its prefix length in bits. Raises
        KernelError."""
        return self._map(_MAP_LPM_TRIE, name, key_bytes, value_bytes, entries)

    def array(self, name: str, value_bytes: int, entries: int) -> Map:
        """Return a new array of zeros. Raises KernelError."""
        return self._map(_MAP_ARRAY, name, 4, value_bytes, entries)

    def _map(self, kind: int, name: str, key_bytes: int, value_bytes: int, entries: int) -> Map:
        class Options(ctypes.Structure):
            _fields_ = (("size", ctypes.c_size_t), ("btf", ctypes.c_uint32 * 5), ("flags", ctypes.c_uint32))

        options = Options(size=ctypes.sizeof(Options), flags=0 if kind == _MAP_ARRAY else _NO_PREALLOCATION)
        descriptor = self.register(
            self.library.bpf_map_create(kind, name.encode(), key_bytes, value_bytes, entries, ctypes.byref(options)),
            f"create the BPF map {name}",
        )
        return Map(descriptor, name, key_bytes, value_bytes, entries)

    def update_batch(self, table: Map, keys: bytes, values: bytes) -> None:
        """Set entries from concatenated keys and values. Raises KernelError; the entries before the refused entry are
        then set, the others are not."""
        count = ctypes.c_uint32(len(keys) // table.key_bytes)
        if count:
            result = self.library.bpf_map_update_batch(table.descriptor, keys, values, ctypes.byref(count), None)
            _check(result, table)

    def delete_batch(self, table: Map, keys: bytes) -> None:
        """Delete the concatenated *keys*; unknown keys are ignored. Raises KernelError."""
        while keys:
            count = ctypes.c_uint32(len(keys) // table.key_bytes)
            result = self.library.bpf_map_delete_batch(table.descriptor, keys, ctypes.byref(count), None)
            if result != -errno.ENOENT:
                _check(result, table)
                return
            keys = keys[(count.value + 1) * table.key_bytes :]  # the kernel stops at the first unknown key

    def lookup(self, table: Map, key: bytes) -> bytes:
        """Return the value of *key*. Raises KernelError, also if *key* does not exist."""
        value = ctypes.create_string_buffer(table.value_bytes)
        _check(self.library.bpf_map_lookup_elem(table.descriptor, key, value), table)
        return value.raw

    def drain(self, table: Map) -> Iterator[tuple[bytes, bytes]]:
        """Remove all entries of a map, and yield each key with its value."""
        return self._in_batches(table, self.library.bpf_map_lookup_and_delete_batch)

    def entries(self, table: Map) -> Iterator[tuple[bytes, bytes]]:
        """Yield each key with its value. Entries that change at the same time may be missing."""
        return self._in_batches(table, self.library.bpf_map_lookup_batch)

    def _in_batches(self, table: Map, function: Callable[..., int]) -> Iterator[tuple[bytes, bytes]]:
        keys = ctypes.create_string_buffer(table.key_bytes * _BATCH)
        values = ctypes.create_string_buffer(table.value_bytes * _BATCH)
        # The kernel stores its cursor here; for a hash map, the cursor has four bytes.
        next_cursor = ctypes.create_string_buffer(table.key_bytes + 4)
        cursor, result = None, 0
        while result >= 0:
            count = ctypes.c_uint32(_BATCH)
            result = function(table.descriptor, cursor, next_cursor, keys, values, ctypes.byref(count), None)
            if result != -errno.ENOENT:  # ENOENT: this was the last batch
                _check(result, table)
            yield from zip(
                _pieces(keys.raw[: table.key_bytes * count.value], table.key_bytes),
                _pieces(values.raw[: table.value_bytes * count.value], table.value_bytes),
                strict=True,
            )
            cursor = next_cursor

    def load(self, path: Path, constants: bytes, maps: Mapping[str, Map], builder: Path) -> dict[str, int]:
        """Load the programs of an object file and return their descriptors by name.

        *constants*: the value of the variable ``settings`` in the programs; *maps*: the maps to use, by their names in
        the file; *builder*: the tool that builds the file, for messages. Raises KernelError.
        """
        library = self.library
        bpf_object = library.bpf_object__open_file(os.fsencode(path), None)
        if not bpf_object:
            raise KernelError(f"open {path}, which {builder} builds: {os.strerror(ctypes.get_errno())}")
        try:
            settings = library.bpf_object__find_map_by_name(bpf_object, b".rodata.settings")
            size = ctypes.c_size_t(len(constants))
            matches = settings and library.bpf_map__set_initial_value(settings, constants, size) == 0
            for name, table in maps.items():
                found = library.bpf_object__find_map_by_name(bpf_object, name.encode())
                sizes = found and (library.bpf_map__key_size(found), library.bpf_map__value_size(found))
                matches = matches and sizes == (table.key_bytes, table.value_bytes)
                matches = matches and library.bpf_map__reuse_fd(found, table.descriptor) == 0
            if not matches:
                raise KernelError(f"{path} was built for another version; rebuild it with {builder}")
            logs = dict[str, tuple[_Pointer, ctypes.Array[ctypes.c_char]]]()
            program = library.bpf_object__next_program(bpf_object, None)
            while program:
                log = ctypes.create_string_buffer(_LOG_BYTES)
                library.bpf_program__set_log_buf(program, log, ctypes.c_size_t(_LOG_BYTES))
                logs[library.bpf_program__name(program).decode()] = program, log
                program = library.bpf_object__next_program(bpf_object, program)
            result = library.bpf_object__load(bpf_object)
            messages = [
                line for _, log in logs.values() for line in log.value.decode(errors="replace").splitlines()[-1:]
            ]
            action = f"load the BPF program {path.stem}{f' ({messages[-1].strip()})' if messages else ''}"
            if result < 0:
                raise KernelError(f"{action}: {os.strerror(-result)}")
            return {
                name: self.register(os.dup(library.bpf_program__fd(program)), action)
                for name, (program, _) in logs.items()
            }
        finally:
            library.bpf_object__close(bpf_object)

    def register(self, result: int, action: str) -> int:
        """Keep the new descriptor *result* for :meth:`close`, and return it. Raises KernelError if it is negative."""
        if result < 0:
            raise KernelError(f"{action}: {os.strerror(-result)}")
        self.descriptors.append(result)
        return result


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _check(result: int, table: Map) -> None:
    if -result in (errno.E2BIG, errno.ENOSPC):
        raise KernelError(f"the BPF map {table.name} is full: it has room for {table.entries} entries")
    if result < 0:
        raise KernelError(f"read or change the BPF map {table.name}: {os.strerror(-result)}")
