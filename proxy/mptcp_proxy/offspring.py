"""Squid's processes, and those that it leaves behind, as their parent sees them (prctl(2), waitpid(2))."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from contextlib import suppress

from .process import children

_CHILDREN_GRACE = 5.0
"""Seconds that workers without a parent, or Squid when its supervision failed, have to finish."""
_DESCRIPTORS = 65536
"""Squid makes tables of this length, so that "unlimited" is not wanted. Two descriptors for each transfer."""
_OF_THE_LIBRARIES = 768
"""Descriptors of the preload libraries' own, beyond Squid's (COPIES in shim/both/hooks.c)."""
_INTERVAL = 0.1
"""Seconds between two looks at what is left."""


def raise_descriptor_limit() -> None:
    """Let Squid have as many descriptors as this process may give it: it takes the soft limit for its own.

    An eighth of few is left to the preload libraries.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most - min(_OF_THE_LIBRARIES, most // 8), hard))


def adopt_orphans() -> None:
    """Become the parent of what Squid's first process leaves behind (PR_SET_CHILD_SUBREAPER, prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(36, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def reap(squid: int) -> None:
    """Collect adopted processes that have ended; *squid* itself is waited for elsewhere."""
    for pid in children(os.getpid()):
        if pid != squid:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def end_all_children() -> None:
    """End Squid if it still runs, and workers that outlived it: first in good order, then at once."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _CHILDREN_GRACE
        told: set[int] = set()
        # Anew each time, since the children of one that ends become this process's.
        while (left := children(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                if pid not in told:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
            told.update(left)
            reap(squid=0)
            time.sleep(_INTERVAL)
