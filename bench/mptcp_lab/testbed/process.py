# SPDX-License-Identifier: GPL-2.0-or-later
"""Start a process in a namespace, with its own log file and private mounts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..agent.processes import MountError, kill_tree, with_mounts
from .commands import TestbedError
from .host import KILL_SECONDS, Program


class Started(Protocol):
    """The interface of a running program that :class:`Process` uses. subprocess.Popen implements it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


def spawn(argv: Sequence[str], namespace: str, mounts: Mapping[str, str], env: Mapping[str, str], log: int) -> Started:
    """Start *argv* in *namespace* with private *mounts* and output to *log*. Raises MountError, FileNotFoundError."""
    # Every wrapper ends with exec, so that the process id is the program's own.
    return subprocess.Popen(
        ["ip", "netns", "exec", namespace, *with_mounts(list(argv), mounts)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=env,
        # Ctrl-C at the terminal must reach only this process, which ends the programs in order.
        start_new_session=True,
    )


class Process(Program):
    """A started program. It writes its output to the file :attr:`log`; :meth:`stop` ends it."""

    spawn = staticmethod(spawn)
    """Tests replace this function by a function that starts our own commands faster."""

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
        self.argv = tuple(argv)
        self.log = log
        private = {target: os.fspath(source) for target, source in (mounts or {}).items()}
        with log.open("ab") as output:
            try:
                self._popen = self.spawn(argv, namespace, private, {**os.environ, **(env or {})}, output.fileno())
            except MountError as error:
                raise TestbedError(f"start {name}: {error}") from None
            except FileNotFoundError as error:
                raise TestbedError(f"start {name}: {error.filename!r} is not installed") from None
        self.pid = self._popen.pid

    def exit_code(self, timeout: float = 0.0) -> int | None:
        if timeout == 0.0:
            return self._popen.poll()
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        if self.running:
            self._popen.send_signal(number)

    def kill_tree(self) -> None:
        if self.running:
            kill_tree(self.pid)
        self.wait(KILL_SECONDS)
