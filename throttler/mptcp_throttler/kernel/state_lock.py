"""The state directory belongs to one daemon at a time, by a lock that ends with its holder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mptcp_throttler.kernel.state_file import open_lock


class AlreadyRunning(Exception):
    """Another daemon holds the lock of the state directory."""


@contextmanager
def locked(state_directory: Path) -> Iterator[None]:
    """Hold the state directory for one daemon. Raises :class:`AlreadyRunning`; KernelError for a lock not to trust."""
    with os.fdopen(open_lock(state_directory / "lock"), "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(f"a throttler is running already: it holds {state_directory}/lock") from error
        yield
