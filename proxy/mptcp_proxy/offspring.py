# SPDX-License-Identifier: GPL-2.0-or-later
"""Handles Squid's processes, including those that outlive Squid's first process, as their parent (prctl(2),
waitpid(2))."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from contextlib import suppress

from .process import children

_CHILDREN_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL for orphaned workers, or for Squid if its supervision failed."""
_DESCRIPTORS = 65536
"""Descriptor limit for Squid. It cannot be unlimited, because Squid allocates tables of this length. Each transfer
takes two descriptors."""
_OF_THE_LIBRARIES = 768
"""Number of descriptors that the preload libraries need in addition to Squid's (COPIES in shim/both/hooks.c)."""
_INTERVAL = 0.1
"""Seconds between two checks whether all children have ended."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit, which Squid uses as its own, as far as this process is allowed to. Reserve descriptors for
    the preload libraries, at most an eighth."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit - min(_OF_THE_LIBRARIES, limit // 8), hard))


def adopt_orphans() -> None:
    """Become the parent of processes that Squid's first process leaves behind (PR_SET_CHILD_SUBREAPER, prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(36, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def reap(squid: int) -> None:
    """Collect adopted processes that have ended, except *squid*, for which the supervisor waits."""
    for pid in children(os.getpid()):
        if pid != squid:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def end_all_children() -> None:
    """End Squid and workers that outlived it: first by SIGTERM, then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _CHILDREN_GRACE
        signalled: set[int] = set()
        # List the children again each time, because this process adopts the children of each process that ends.
        while (left := children(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                if pid not in signalled:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
            signalled.update(left)
            reap(squid=0)
            time.sleep(_INTERVAL)
