"""What connections of a proxy take of memory: proportional set sizes, slabs, buffers of sockets; proc(5), ss(8)."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from mptcp_lab.agent.processes import descendants

_PSS = re.compile(r"^Pss: +(\d+) kB", re.MULTILINE)
_SLAB = re.compile(r"^Slab: +(\d+) kB", re.MULTILINE)
_BUFFERS = re.compile(r"skmem:\(r(\d+),rb\d+,t\d+,tb\d+,f(\d+),w(\d+),")


def pss(text: str) -> int:
    """Return the bytes in the text of ``/proc/PID/smaps_rollup``; 0 where the process has no memory any more."""
    found = _PSS.search(text)
    return int(found[1]) * 1024 if found else 0


def slab(text: str) -> int:
    """Return the bytes of all slabs in the text of ``/proc/meminfo``. Raises ValueError where they are not named."""
    found = _SLAB.search(text)
    if not found:
        raise ValueError("/proc/meminfo names no Slab")
    return int(found[1]) * 1024


def buffers(text: str) -> int:
    """Return the bytes that sockets hold for data, in the output of ``ss -m``: received, to be sent, set aside."""
    return sum(sum(map(int, each)) for each in _BUFFERS.findall(text))


def user_memory(pid: int) -> int:
    """Return the bytes of process *pid* and its offspring, what they share counted once."""
    total = 0
    for each in (pid, *descendants(pid)):
        with suppress(OSError):
            total += pss(Path(f"/proc/{each}/smaps_rollup").read_text())
    return total


def kernel_memory() -> int:
    """Return the bytes of this host's slabs."""
    return slab(Path("/proc/meminfo").read_text())
