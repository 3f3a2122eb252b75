"""Has the C library give back memory that nothing uses. mallopt(3).

It puts large objects apart, and gives them back when they are freed; but once one of two megabytes was freed, all up to
that size go to its heap instead. A table of 20,000 subflows outgrows its place again and again, and leaves holes there.

Memory that is apart is new each time, and cleared page by page: what is made for every new subflow must not be.
"""

from __future__ import annotations

import ctypes

LARGE_BYTES = 256 * 1024
"""Objects from this size on are apart: twice the C library's own limit at the start. For each transaction libnftables
makes ten tables of 132 KiB, and took twice as long where these were apart."""
_M_MMAP_THRESHOLD = -3


def keep_large_objects_apart() -> None:
    """Have the limit stay where it is; without effect where the C library has no such limit."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
