# SPDX-License-Identifier: GPL-2.0-or-later
"""Find the namespaces of our runs, and those that belong to a dead run.

A run claims an id by a lock file in ``RUN_DIRECTORY``, on which the run holds a flock(2) while its process lives. Its
namespaces are named ``mpx-ID-NODE``. If no process holds the lock, the run is dead, even if its process id is in use. A
namespace without a lock file is not ours and is never changed. A run's lock file therefore stays as long as one of its
namespaces exists, or its temporary directory, whose name only the lock file contains.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..agent.files import parent_directory, removed
from .commands import TestbedError, run

PREFIX = "mpx"
RUN_DIRECTORY = Path("/run/mptcp-bench")
NAMESPACES = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class Run:
    """One use of the testbed, by a process that lives or is dead."""

    id: str
    pid: int
    directory: Path
    alive: bool

    def namespace(self, node: str) -> str:
        return f"{PREFIX}-{self.id}-{node}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The run's namespaces that exist."""
        return tuple(sorted(p.name for p in NAMESPACES.glob(f"{PREFIX}-{self.id}-*")))


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of cleaning up after killed runs, with a line for each item."""

    done: tuple[str, ...]
    left: tuple[str, ...]
    """The items that could not be removed or undone, with the reason."""


@contextmanager
def registry() -> Iterator[Path]:
    """Hold the lock that protects claiming, judging and removing runs. Yield the directory of the lock files."""
    try:
        RUN_DIRECTORY.mkdir(mode=0o755, exist_ok=True)
        descriptor = os.open(RUN_DIRECTORY / "registry", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except PermissionError:
        raise TestbedError(f"make {RUN_DIRECTORY}: permission denied: the testbed needs root") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield RUN_DIRECTORY
    finally:
        os.close(descriptor)


@contextmanager
def claimed_run() -> Iterator[Run]:
    """Claim an id and a temporary directory; release both at the end.

    If a namespace or a file in the directory could not be removed, the run remains as a dead run with all its files,
    and :func:`remove_stale` tries again.
    """
    with registry():
        identifier = secrets.token_hex(3)
        lock = RUN_DIRECTORY / f"{identifier}.lock"
        with ExitStack() as failing:
            unfinished = lock.with_suffix(".unfinished")
            failing.callback(unfinished.unlink, missing_ok=True)
            descriptor = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            failing.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{identifier}-", dir=parent_directory()))
            failing.callback(removed, directory)
            # Apache's and Squid's workers, which run as other users, must reach their files in the directory.
            directory.chmod(0o755)
            os.write(descriptor, json.dumps({"pid": os.getpid(), "directory": str(directory)}).encode())
            # Only a complete file has this name.
            unfinished.rename(lock)
            failing.pop_all()
    claimed = Run(identifier, os.getpid(), directory, alive=True)
    try:
        yield claimed
    finally:
        try:
            if not claimed.namespaces and (failure := _forget(claimed)):
                raise TestbedError(f"testbed {claimed.id}: {failure}; mptcp-bench cleanup tries again")
        finally:
            os.close(descriptor)


def _forget(run: Run) -> str | None:
    """Remove the directory of *run*, and then its lock file. If the directory remains, return the reason."""
    failure = removed(run.directory)
    if failure is None:
        (RUN_DIRECTORY / f"{run.id}.lock").unlink(missing_ok=True)
    return failure


def _runs() -> Iterator[Run]:
    for lock in sorted(RUN_DIRECTORY.glob("*.lock")):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            alive = False
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                alive = True
            # A run that has ended in order since the file was opened has removed the file and its directory.
            if not os.fstat(descriptor).st_nlink:
                continue
            content = json.loads(os.read(descriptor, 4096))
            yield Run(lock.stem, int(content["pid"]), Path(content["directory"]), alive)
        finally:
            os.close(descriptor)


def runs() -> tuple[Run, ...]:
    """Return all runs that hold a lock file or have left a lock file."""
    with registry():
        return tuple(_runs())


def remove_stale() -> Cleaned:
    """End the processes in the namespaces of dead runs, and remove these runs. Continue after a failure."""
    done: list[str] = []
    left: list[str] = []
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
            if not failures and (failure := _forget(dead)) is not None:
                failures.append(failure)
            left += [f"{name}: {failure}" for failure in failures]
            if not failures:
                done.append(f"removed {name}")
    return Cleaned(tuple(done), tuple(left))


def namespace_processes(namespace: str) -> tuple[int, ...]:
    """Return the ids of the processes inside *namespace*, without this process."""
    answer = run(["ip", "netns", "pids", namespace], check=False).stdout
    return tuple(pid for pid in map(int, answer.split()) if pid != os.getpid())


def delete_namespace(namespace: str, grace: float = 3.0, patience: float = 60.0) -> None:
    """End every process inside *namespace* (SIGTERM, SIGKILL after *grace* seconds), then delete it.

    *patience* is the number of seconds that a killed process may take to end on a busy machine.
    """
    if not (NAMESPACES / namespace).exists():
        return
    sent = signal.SIGTERM
    deadline = time.monotonic() + grace
    signalled: set[int] = set()
    while pids := namespace_processes(namespace):
        now = time.monotonic()
        if now > deadline:
            if sent is signal.SIGKILL:
                raise TestbedError(f"delete namespace {namespace}: processes {pids} cannot be ended")
            sent, deadline, signalled = signal.SIGKILL, now + patience, set()
        for pid in set(pids) - signalled:
            signalled.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, sent)
        time.sleep(0.02)
    run(["ip", "netns", "delete", namespace], attempt=f"delete namespace {namespace}")
