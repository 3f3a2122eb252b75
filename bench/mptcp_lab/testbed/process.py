"""A process in a namespace: started with its own log file and private mounts, ended by its id."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..agent.processes import MountError, kill_tree, with_mounts
from .commands import TestbedError

KILLED = 60.0
"""Seconds within which a process is gone that was killed: on a busy machine it waits for a processor even for that."""


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
        try:
            command = ["ip", "netns", "exec", namespace, *with_mounts(list(argv), mounts or {})]
        except MountError as error:
            raise TestbedError(f"start {name}: {error}") from None
        # Every wrapper ends in exec, so the process id is the program's own.
        with log.open("ab") as output:
            try:
                self._popen = subprocess.Popen(
                    command,
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
        self._popen.wait(KILLED)

    def kill_tree(self) -> None:
        """SIGKILL for it and all that it started and that still is its offspring."""
        if self.running:
            kill_tree(self.pid)
        self._popen.wait(KILLED)

    def stop(self, grace: float = 30.0) -> int:
        """SIGTERM, SIGKILL after *grace* seconds; return the exit code."""
        if self.running:
            self._popen.send_signal(signal.SIGTERM)
            try:
                self._popen.wait(grace)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._popen.wait(KILLED)
