# SPDX-License-Identifier: GPL-2.0-or-later
"""Adopts, collects and ends Squid's processes, including workers that outlive Squid's first process (prctl(2),
waitpid(2))."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from contextlib import suppress

from .process import children

_SECONDS_TO_KILL = 5.0
"""Seconds between SIGTERM and SIGKILL for orphaned workers, or for Squid if its supervision failed."""
_MAX_DESCRIPTORS = 65536
"""Maximum number of descriptors. It cannot be unlimited, because Squid allocates tables of this length. Each transfer
takes two descriptors."""
_LIBRARY_DESCRIPTORS = 768
"""Number of descriptors that the preload libraries need in addition to Squid's (COPIES in shim/both/hooks.c)."""
_CHECK_INTERVAL = 0.1
"""Seconds between two checks whether all children have ended."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit, which Squid inherits, as far as the hard limit allows. Reserve some descriptors for the
    preload libraries, at most an eighth of the limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit - min(_LIBRARY_DESCRIPTORS, limit // 8), hard))


def adopt_orphans() -> None:
    """Become the parent of processes that outlive Squid's first process (PR_SET_CHILD_SUBREAPER, prctl(2))."""
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
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _SECONDS_TO_KILL
        signalled: set[int] = set()
        # List the children again each time, because this process adopts the children of each process that ends.
        while (remaining := children(os.getpid())) and time.monotonic() < deadline:
            for pid in remaining:
                if pid not in signalled:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal_number)
            signalled.update(remaining)
            reap(squid=0)
            time.sleep(_CHECK_INTERVAL)
