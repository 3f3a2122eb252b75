# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo's live view: each path's throughput, in a line each second."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from mptcp_lab.testbed.recorder import Recorder

from .parts import DisplayedPath

BAR = 24
"""Width of the bar of a full path in columns."""
INTERVAL = 1.0


class View:
    """A view that shows one download after another."""

    def __init__(self, console: Console, recorder: Recorder, paths: Sequence[DisplayedPath]) -> None:
        self._console, self._recorder, self._paths = console, recorder, tuple(paths)
        self._started = self._next_line = 0.0

    def begin(self, title: str) -> None:
        self._started = time.monotonic()
        self._next_line = self._started + INTERVAL
        self.say(title)

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def refresh(self) -> None:
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + INTERVAL
        current, top = self._recorder.current(INTERVAL), max(path.rate for path in self._paths)
        line = Text(f"{now - self._started:6.0f} s")
        for path in self._paths:
            rate = current[path.device]
            bar = "█" * round(BAR * min(1.0, rate / top))
            line.append(f"  {path.label} {rate / 1e6:6.1f} Mbit/s {bar:{BAR}}", style=path.color)
        self._console.print(line, soft_wrap=True)
