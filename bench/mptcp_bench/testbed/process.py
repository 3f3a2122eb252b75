"""A process in a namespace: started with its own log file and private mounts, ended by its id."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .commands import TestbedError

TMPFS = "tmpfs"
"""In place of a source directory: an empty file system of the process's own."""


def nearest_existing(target: Path) -> Path:
    """Return *target* or the closest directory above it that exists."""
    while not target.is_dir():
        target = target.parent
    return target


def mount_script(mounts: Mapping[str, str | os.PathLike[str]]) -> str:
    """Return shell commands that make *mounts* (target to source) and become the program in ``"$@"``.

    They run in a mount namespace of their own. Where a target does not exist, a tmpfs is laid over the
    closest directory that does, so that nothing has to be made on the host.
    """
    lines = ["set -e"]
    covered: set[Path] = set()
    for name in sorted(mounts):
        target, source = Path(name), os.fspath(mounts[name])
        existing = nearest_existing(target)
        if existing == Path("/"):
            raise TestbedError(f"mount over {target}: nothing above it exists but /")
        if existing != target and existing not in covered:
            covered.add(existing)
            lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(existing))}")
        lines.append(f"mkdir -p {shlex.quote(name)}")
        if source == TMPFS:
            lines.append(f"mount -t tmpfs -o mode=1777 tmpfs {shlex.quote(name)}")
        else:
            lines.append(f"mount --bind {shlex.quote(source)} {shlex.quote(name)}")
    return "\n".join([*lines, 'exec "$@"'])


def descendants(pid: int) -> tuple[int, ...]:
    """Return the ids of the processes below *pid*, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # proc(5): the name in parentheses may hold anything; state and parent follow the last one.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += below
        waiting += below
    return tuple(found)


class Process:
    """A started program. Its output goes to :attr:`log`; :meth:`stop` ends it."""

    def __init__(
        self,
        namespace: str,
        argv: Sequence[str],
        *,
        name: str,
        log: Path,
        mounts: Mapping[str, str | os.PathLike[str]] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.argv = tuple(argv)
        self.log = log
        command = ["ip", "netns", "exec", namespace]
        if mounts:
            command += ["unshare", "--mount", "sh", "-c", mount_script(mounts), "sh"]
        # Every wrapper ends in exec, so the process id is the program's own.
        with log.open("ab") as output:
            try:
                self._popen = subprocess.Popen(
                    [*command, *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(env or {})},
                    # Ctrl-C at the terminal must reach us alone: we end the programs in order.
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise TestbedError(f"start {name}: {error.filename!r} is not installed") from None

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        return self._popen.poll()

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        if self.running:
            self._popen.send_signal(number)

    def wait(self, timeout: float) -> int:
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TestbedError(f"{self.name}: still runs after {timeout:g} s{self.tail()}") from None

    def tail(self, lines: int = 15) -> str:
        """Return the end of the log, indented, for an error message."""
        return "".join(f"\n    {line}" for line in self.output().splitlines()[-lines:])

    def kill(self) -> None:
        """End it as a crash would: SIGKILL, no clean-up of its own."""
        with suppress(ProcessLookupError):
            self._popen.kill()
        self._popen.wait(10)

    def kill_tree(self) -> None:
        """SIGKILL for it and all that it started and that still is its offspring."""
        offspring = descendants(self.pid)
        self.kill()
        for pid in offspring:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self, grace: float = 5.0) -> int:
        """SIGTERM, SIGKILL after *grace* seconds; return the exit code."""
        if self.running:
            self._popen.send_signal(signal.SIGTERM)
            try:
                self._popen.wait(grace)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._popen.wait(10)
