# SPDX-License-Identifier: GPL-2.0-or-later
"""A fake testbed without a kernel; a test chooses the transfers in which its emulated paths are late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mptcp_lab.testbed import EmulationError


class FakePaths:
    """Emulated paths that report at a check what was late since the last check, as the emulation does."""

    def __init__(self) -> None:
        self.late = self._judged = 0

    def check_emulation(self) -> None:
        since, self._judged = self.late - self._judged, self.late
        if since:
            raise EmulationError("late")


class FakeTestbed(FakePaths):
    """A testbed that is also each of its own nodes; *late* says for each transfer whether paths are late."""

    def __init__(self, late: Iterable[bool] = ()) -> None:
        super().__init__()
        self._late = iter(late)
        self.transfers = 0
        self.boxes: dict[str, str] = {}
        """Behaviour of each path's middlebox."""
        self.emulation = SimpleNamespace(change_middlebox=self._change)

    def __getitem__(self, node: str) -> Any:
        return self

    def write(self, name: str, text: str) -> Path:
        return Path(name)

    def transfer(self) -> None:
        self.transfers += 1
        self.late += next(self._late, False)

    def _change(self, path: str, behaviour: str) -> int:
        self.boxes[path] = behaviour
        return 1

    @contextmanager
    def running(self, argv: object, name: str = "") -> Iterator[Any]:
        self.transfer()
        yield SimpleNamespace(running=True, pid=1, kill=lambda: None)

    def changed(self, do: object, undo: object) -> AbstractContextManager[None]:
        return nullcontext()
