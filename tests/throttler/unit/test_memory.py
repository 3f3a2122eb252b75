# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that only small objects are on the C library's heap, so that the kernel gets back the memory of large ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

LARGE_BYTES = 4 << 20
"""Size in bytes. By default, after an object of this size was freed, the C library puts smaller objects on its heap."""
PRINT_HEAP_GROWTH = f"""
import re
from mptcp_throttler.runtime.event_loop import map_large_objects_separately

def heap():
    begin, end = re.search(r"([0-9a-f]+)-([0-9a-f]+) .*\\[heap\\]", open("/proc/self/maps").read()).groups()
    return int(end, 16) - int(begin, 16)

if {{is_mapped_separately}}:
    map_large_objects_separately()
bytearray({LARGE_BYTES})
before = heap()
large = bytearray({LARGE_BYTES} // 2)
print(heap() - before)
"""


@pytest.mark.parametrize("is_mapped_separately", [True, False])
def test_large_object_is_not_on_the_heap(is_mapped_separately: bool) -> None:
    code = PRINT_HEAP_GROWTH.format(is_mapped_separately=is_mapped_separately)
    completed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    if is_mapped_separately:
        assert int(completed.stdout) < LARGE_BYTES // 4
    elif int(completed.stdout) < LARGE_BYTES // 4:
        pytest.skip("this C library maps large objects separately by default")


TABLE_BYTES = 132 * 1024
"""Size in bytes of a table in libnftables, which creates some such tables for each entry."""
PRINT_IS_ON_HEAP = f"""
import ctypes, re
from mptcp_throttler.runtime.event_loop import map_large_objects_separately

map_large_objects_separately()
malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
address = malloc({TABLE_BYTES})
begin, end = re.search(r"([0-9a-f]+)-([0-9a-f]+) .*\\[heap\\]", open("/proc/self/maps").read()).groups()
print(int(begin, 16) <= address < int(end, 16))
"""


def test_tables_of_libnftables_are_on_the_heap() -> None:
    completed = subprocess.run([sys.executable, "-c", PRINT_IS_ON_HEAP], check=True, capture_output=True, text=True)
    assert completed.stdout.strip() == "True"
