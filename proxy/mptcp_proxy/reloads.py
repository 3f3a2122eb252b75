# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-proxy reload``: signals the running supervisor, and waits for the outcome.

The supervisor writes the outcome of each reload into its runtime directory. This process does not check the
configuration itself, because it may read other files than the supervisor did.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mptcp_common.reasons import reason

from .places import Places
from .process import start_time

MAX_WAIT_SECONDS = 120.0
"""Maximum seconds to wait for a reload: Squid may take a minute to read its file (``squid.Squid.parse``)."""
_CHECK_INTERVAL = 0.1
"""Seconds between checks for the outcome."""


class ReloadError(Exception):
    """The reload was refused, no supervisor runs, or it is unknown whether Squid listens after the reload."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The supervisor's report on its reloads so far."""

    pid: int
    started: int
    """When the supervisor started (``process.start_time``)."""
    count: int
    """Number of reloads that have ended, accepted or refused."""
    refused: str = ""
    """Why the last reload was refused; empty if it was not."""
    time: float = 0.0
    """When the last reload was accepted or refused, seconds since the epoch."""
    serving: str = ""
    """The ports on which Squid listens, as text."""
    problems: tuple[str, ...] = ()
    """Current problems."""
    unconfirmed: str = ""
    """Why it is unknown whether Squid listens as the last accepted reload requires; empty if it does, or if the reload
    was refused."""

    def text(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def read_outcome(file: Path) -> Outcome | None:
    """Return the outcome in *file*; None unless a running supervisor wrote it. Raises ReloadError if this user may not
    read it."""
    try:
        outcome = Outcome(**json.loads(file.read_text()))
        outcome = replace(outcome, problems=tuple(outcome.problems))
    except PermissionError as error:
        raise ReloadError(f"{reason(error)}; only root can make a proxy reload") from error
    except (OSError, ValueError, TypeError):
        return None
    return outcome if outcome.started == start_time(outcome.pid) != 0 else None


def reload(places: Places) -> None:
    """Make the supervisor of *places* reload its configuration. Raises ReloadError if the supervisor refuses."""
    if read_outcome(places.reloads) is None:
        raise ReloadError(f"no proxy with the name {places.service_name} runs")
    with _hold_lock(places.reload_lock):
        _reload(places)


@contextmanager
def _hold_lock(lock: Path) -> Iterator[None]:
    """Hold *lock*, so that no other command requests a reload and the next outcome belongs to this request. Raises
    ReloadError."""
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    try:
        # Only the owner may open the lock file, because any process that can read a file can lock it.
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ReloadError(f"{lock}: {reason(error)}") from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ReloadError(f"another reload has not ended within {MAX_WAIT_SECONDS:g} s") from None
            time.sleep(_CHECK_INTERVAL)
        yield
    finally:
        os.close(descriptor)


def _reload(places: Places) -> None:
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    before = read_outcome(places.reloads)
    if before is None:
        raise ReloadError("the proxy has ended")
    try:
        os.kill(before.pid, signal.SIGHUP)
    except OSError as error:
        raise ReloadError(f"cannot send SIGHUP to process {before.pid}: {reason(error)}") from error
    while True:
        after = read_outcome(places.reloads)
        if after is None:
            raise ReloadError("the proxy has ended")
        if after.count > before.count:
            break
        if time.monotonic() > deadline:
            raise ReloadError(f"process {before.pid} has not reloaded within {MAX_WAIT_SECONDS:g} s")
        time.sleep(_CHECK_INTERVAL)
    if after.refused:
        raise ReloadError(f"reload refused, the old settings stay in force: {after.refused}")
    if after.unconfirmed:
        raise ReloadError(f"the new settings are in force, but {after.unconfirmed}")
