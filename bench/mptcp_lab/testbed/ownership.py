# SPDX-License-Identifier: GPL-2.0-or-later
"""Find the namespaces of our runs, and those that belong to a dead run.

A run holds a flock(2) on its temporary directory while its process lives. A symbolic link in ``RUN_DIRECTORY`` to that
directory has the run's id and process id in its name. The run's namespaces are named ``mpx-ID-NODE``. If no process
holds the lock, the run is dead. A namespace without a link is not ours and is never changed. A run's link therefore
stays as long as one of its namespaces or its directory exists.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..agent.files import parent_directory, remove_tree
from .commands import TestbedError, run
from .host import KILL_SECONDS

PREFIX = "mpx"
RUN_DIRECTORY = Path("/run/mptcp-bench")
SUFFIX = ".run"
NAMESPACES = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class Run:
    """One use of the testbed, by a process that lives or is dead."""

    id: str
    pid: int
    directory: Path
    alive: bool

    @property
    def link(self) -> Path:
        return RUN_DIRECTORY / f"{self.id}-{self.pid}{SUFFIX}"

    def namespace(self, node: str) -> str:
        return f"{PREFIX}-{self.id}-{node}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The run's namespaces that exist."""
        return tuple(sorted(p.name for p in NAMESPACES.glob(f"{PREFIX}-{self.id}-*")))


@contextmanager
def registry() -> Iterator[None]:
    """Hold the lock under which runs are claimed, examined and removed."""
    try:
        RUN_DIRECTORY.mkdir(mode=0o755, exist_ok=True)
        file = (RUN_DIRECTORY / "registry").open("w")
    except PermissionError:
        raise TestbedError(f"open {RUN_DIRECTORY}: permission denied: the testbed needs root") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def claimed_run() -> Iterator[Run]:
    """Claim an id and a temporary directory; release both at the end.

    If a namespace or a file remains, the run remains as a dead run, and :func:`remove_stale` tries again.
    """
    with registry():
        identifier = secrets.token_hex(3)
        directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{identifier}-", dir=parent_directory()))
        claimed = Run(identifier, os.getpid(), directory, alive=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Apache's and Squid's workers, which run as other users, must reach their files in the directory.
        directory.chmod(0o755)
        claimed.link.symlink_to(directory)
    try:
        yield claimed
    finally:
        try:
            with registry():
                if not claimed.namespaces and (failure := _remove_files(claimed)):
                    raise TestbedError(f"testbed {claimed.id}: {failure}; mptcp-bench cleanup tries again")
        finally:
            os.close(descriptor)


def _remove_files(run: Run) -> str | None:
    """Remove the directory of *run*, and then its link. If the directory remains, return the reason."""
    failure = remove_tree(run.directory)
    if failure is None:
        run.link.unlink()
    return failure


def _runs() -> Iterator[Run]:
    for link in sorted(RUN_DIRECTORY.glob(f"*{SUFFIX}")):
        identifier, _, pid = link.stem.partition("-")
        directory, alive = link.readlink(), False
        # The directory of a dead run may have been deleted.
        with suppress(FileNotFoundError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                alive = True
            finally:
                os.close(descriptor)
        yield Run(identifier, int(pid), directory, alive)


def runs() -> tuple[Run, ...]:
    """Return all runs that have a link."""
    with registry():
        return tuple(_runs())


def remove_stale() -> tuple[list[str], list[str]]:
    """End the processes in the namespaces of dead runs, and remove these runs. Continue after a failure.

    Return a line for each removed run, and one for each failure.
    """
    done: list[str] = []
    all_failures: list[str] = []
    with registry():
        for dead in [each for each in _runs() if not each.alive]:
            name = f"testbed {dead.id} of process {dead.pid}"
            failures = []
            for namespace in dead.namespaces:
                try:
                    delete_namespace(namespace)
                except TestbedError as error:
                    failures.append(str(error))
            # Keep the run's files if a namespace remains, because processes in it may need them.
            if not failures and (failure := _remove_files(dead)) is not None:
                failures.append(failure)
            all_failures += [f"{name}: {failure}" for failure in failures]
            if not failures:
                done.append(f"removed {name}")
    return done, all_failures


def namespace_processes(namespace: str) -> tuple[int, ...]:
    """Return the ids of the processes inside *namespace*, without this process."""
    answer = run(["ip", "netns", "pids", namespace], check=False).stdout
    return tuple(pid for pid in map(int, answer.split()) if pid != os.getpid())


def delete_namespace(namespace: str) -> None:
    """End every process inside *namespace*, by SIGTERM and after three seconds by SIGKILL, then delete it."""
    if not (NAMESPACES / namespace).exists():
        return
    for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        while (pids := set(namespace_processes(namespace))) and time.monotonic() < deadline:
            for pid in pids - signalled:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            signalled |= pids
            time.sleep(0.02)
    if pids:
        raise TestbedError(f"delete namespace {namespace}: processes {sorted(pids)} cannot be ended")
    run(["ip", "netns", "delete", namespace], attempt=f"delete namespace {namespace}")
