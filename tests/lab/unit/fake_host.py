# SPDX-License-Identifier: GPL-2.0-or-later
"""A fake host with fake programs: they run from their start until they are ended, without real waiting."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class FakeProgram:
    """A fake program that runs until it is ended; *ends* records how."""

    def __init__(self, name: str) -> None:
        self.name, self.pid = name, 1
        self.ends: list[str] = []

    @property
    def running(self) -> bool:
        return not self.ends

    @property
    def returncode(self) -> int | None:
        return None if self.running else 0

    def stop(self, grace: float = 30.0) -> int:
        self.ends.append("stop")
        return 0

    def kill(self) -> None:
        self.ends.append("kill")

    def kill_tree(self) -> None:
        self.ends.append("kill_tree")

    def output(self) -> str:
        return ""

    def tail(self, lines: int = 15) -> str:
        return ""


class FakeHost:
    """The parts of a host that are needed to start services. *answer* returns the output of a command."""

    name = "proxy"

    def __init__(self, directory: Path, answer: Callable[[Sequence[str]], str] = lambda argv: "{}") -> None:
        self.directory = directory
        self.started: list[FakeProgram] = []
        self.commands: list[list[str]] = []
        self._answer = answer

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 30, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(list(argv), 0, self._answer(argv), "")

    def popen(
        self,
        argv: Sequence[str],
        *,
        name: str,
        mounts: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> FakeProgram:
        self.commands.append(list(argv))
        self.started.append(FakeProgram(name))
        return self.started[-1]

    def agent(self, module: str, *arguments: str) -> list[str]:
        return [module, *arguments]

    def program(self, name: str) -> str:
        return name

    def provide(self, file: Path) -> Path:
        return file

    def write(self, name: str, text: str) -> Path:
        target = self.directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def service_address(self, family: int = 4) -> str:
        return "192.0.2.1"

    def at_end(self, callback: Callable[[], object]) -> None:
        """Ignore the callback, because the test does not end the host."""
