# SPDX-License-Identifier: GPL-2.0-or-later
"""Memory of a proxy's connections: proportional set sizes, slabs and socket buffers; see proc(5) and ss(8)."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from mptcp_lab.agent.processes import descendants

_BUFFERS = re.compile(r"skmem:\(r(\d+),rb\d+,t\d+,tb\d+,f(\d+),w(\d+),")

_SIGN = 1 << 31


def octets(text: str, name: str) -> int:
    """Return the bytes of *name* in the text of meminfo or smaps_rollup, proc(5). Raises ValueError if it is absent."""
    found = re.search(rf"^{name}: +(\d+) kB", text, re.MULTILINE)
    if not found:
        raise ValueError(f"no {name} among memory")
    return int(found[1]) * 1024


def buffers(text: str) -> int:
    """Return the bytes of all socket buffers in the output of ``ss -m``: received, to be sent, forward-allocated."""
    return sum(sum(map(_signed, each)) for each in _BUFFERS.findall(text))


def _signed(text: str) -> int:
    """Return a number of skmem. Forward-allocated memory may briefly be negative, which the kernel prints as a u32."""
    return (int(text) + _SIGN) % (2 * _SIGN) - _SIGN


def user_memory(pid: int, kind: str = "Pss") -> int:
    """Return the bytes of process *pid* and its descendants. ``Pss`` counts shared memory once, ``Rss`` repeatedly."""
    total = 0
    for each in (pid, *descendants(pid)):
        with suppress(OSError, ValueError):
            total += octets(Path(f"/proc/{each}/smaps_rollup").read_text(), kind)
    return total


def kernel_memory() -> int:
    """Return the bytes of all slabs of this host's kernel."""
    return octets(Path("/proc/meminfo").read_text(), "Slab")
