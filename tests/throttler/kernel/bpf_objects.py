# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the BPF objects of a throttler that runs as another process, and the options that it set on sockets."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mptcp_common.bpf import Map
from mptcp_throttler.kernel.bpf import PROGRAMS, Bpf, program_constants

_MAP_INFO = struct.Struct("=6I16s")
"""The first fields of struct bpf_map_info (linux/bpf.h): type, id, key size, value size, maximum entries, flags, name.
"""
_TEST_PROGRAM = Path(__file__).parent / "programs/mptcp_test"


def object_ids(pid: int, kind: str) -> list[int]:
    """Return the ids of the maps or links that the process holds, in the order of its descriptors.

    Iterators are left out, because they are not attached to anything.
    """
    found = []
    for entry in sorted(Path(f"/proc/{pid}/fdinfo").iterdir(), key=lambda entry: int(entry.name)):
        with suppress(OSError):
            text = entry.read_text()
            match = re.search(rf"^{kind}_id:\s*(\d+)", text, re.M)
            if match is not None and not re.search(r"^link_type:\s*iter", text, re.M):
                found.append(int(match[1]))
    return found


@contextmanager
def open_map(pid: int, name: str) -> Iterator[tuple[Bpf, Map]]:
    """Open the map *name* of the throttler *pid*."""
    bpf = Bpf()
    try:
        for number in object_ids(pid, "map"):
            descriptor = bpf.library.bpf_map_get_fd_by_id(number)
            bpf.descriptors.append(descriptor)
            info = ctypes.create_string_buffer(_MAP_INFO.size)
            size = ctypes.c_uint32(_MAP_INFO.size)
            assert bpf.library.bpf_obj_get_info_by_fd(descriptor, info, ctypes.byref(size)) == 0
            _kind, _number, key_bytes, value_bytes, max_entries, _flags, map_name = _MAP_INFO.unpack(info.raw)
            if map_name.rstrip(b"\0").decode() == name:
                yield bpf, Map(descriptor, name, key_bytes, value_bytes, max_entries)
                return
        raise AssertionError(f"process {pid} has no map {name}")
    finally:
        bpf.close()


def detach(link: int) -> None:
    """Detach the program with this link id."""
    library = ctypes.CDLL("libbpf.so.1")
    descriptor = library.bpf_link_get_fd_by_id(link)
    try:
        assert library.bpf_link_detach(descriptor) == 0
    finally:
        os.close(descriptor)


def unsent_limits_of_sockets() -> dict[int, int]:
    """Return TCP_NOTSENT_LOWAT of all sockets in this namespace, by socket cookie."""
    subprocess.run(["sh", PROGRAMS / "build", _TEST_PROGRAM.with_suffix(".c")], check=True)
    bpf = Bpf()
    try:
        table = bpf.hash_map("mptcp_test", 8, 4, 100_000)
        bpf.iterate(bpf.tcp_iterator(str(_TEST_PROGRAM), program_constants(), {"found": table}))
        return {struct.unpack("=Q", key)[0]: struct.unpack("=I", value)[0] for key, value in bpf.entries(table)}
    finally:
        bpf.close()
