# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that small objects are on the C library's heap, and large ones are not, so that their memory is returned."""

from __future__ import annotations

import subprocess
import sys

import pytest

BIG = 4 << 20
"""Size in bytes. Without the setting, the C library puts objects up to this size on its heap after one was freed."""
HEAP_GROWS = f"""
import re
from mptcp_throttler.runtime.event_loop import map_large_objects_separately

def heap():
    begin, end = re.search(r"([0-9a-f]+)-([0-9a-f]+) .*\\[heap\\]", open("/proc/self/maps").read()).groups()
    return int(end, 16) - int(begin, 16)

if {{kept}}:
    map_large_objects_separately()
bytearray({BIG})
before = heap()
large = bytearray({BIG} // 2)
print(heap() - before)
"""


@pytest.mark.parametrize("kept", [True, False])
def test_large_object_is_not_on_the_heap(kept: bool) -> None:
    code = HEAP_GROWS.format(kept=kept)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    if kept:
        assert int(done.stdout) < BIG // 4
    elif int(done.stdout) < BIG // 4:
        pytest.skip("this C library keeps them apart by itself")


TABLE = 132 * 1024
"""Size in bytes of a table in libnftables, which creates some such tables for each entry."""
ON_HEAP = f"""
import ctypes, re
from mptcp_throttler.runtime.event_loop import map_large_objects_separately

map_large_objects_separately()
malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
address = malloc({TABLE})
begin, end = re.search(r"([0-9a-f]+)-([0-9a-f]+) .*\\[heap\\]", open("/proc/self/maps").read()).groups()
print(int(begin, 16) <= address < int(end, 16))
"""


def test_tables_of_libnftables_are_on_the_heap() -> None:
    done = subprocess.run([sys.executable, "-c", ON_HEAP], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "True"
