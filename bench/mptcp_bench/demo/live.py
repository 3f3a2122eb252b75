# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo's live view: each path's throughput in the terminal; without a terminal, a line now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Self

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mptcp_lab.testbed.recorder import Recorder

from .parts import DisplayedPath

BAR = 40
PLAIN_INTERVAL = 2.0


class View(AbstractContextManager["View"]):
    """A view that shows one download after another."""

    def __init__(self, console: Console, recorder: Recorder, paths: Sequence[DisplayedPath]) -> None:
        self._console = console
        self._recorder = recorder
        self._paths = tuple(paths)
        self._live: Live | None = None
        self._title = ""
        self._next_line = 0.0
        self._started = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                self._render(), console=self._console, refresh_per_second=10, transient=True, auto_refresh=False
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._next_line = self._started + PLAIN_INTERVAL
        if self._live is None:
            self._console.print(title, highlight=False, soft_wrap=True)

    def finish(self, line: str) -> None:
        """Print *line* about a finished download, which stays on the screen."""
        self._console.print(line, highlight=False, soft_wrap=True)

    def rest(self, seconds: float) -> None:
        """Keep the view up to date for *seconds* between two downloads."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._live is not None:
                self.refresh()
            time.sleep(0.05)

    def refresh(self) -> None:
        now = time.monotonic()
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
        elif now >= self._next_line:
            self._next_line = now + PLAIN_INTERVAL
            current = self._recorder.current(PLAIN_INTERVAL)
            shown = "  ".join(f"{p.label} {current[p.device] / 1e6:5.1f} Mbit/s" for p in self._paths)
            self._console.print(f"  {now - self._started:4.0f} s  {shown}", highlight=False)

    def _render(self) -> RenderableType:
        current: Mapping[str, float] = self._recorder.current()
        table = Table.grid(padding=(0, 1))
        top = max(path.rate for path in self._paths)
        for path in self._paths:
            rate = current[path.device]
            table.add_row(
                Text(path.label, style=f"bold {path.color}"),
                Text(f"{rate / 1e6:6.1f} Mbit/s", style=path.color),
                Bar(top, 0, rate, width=BAR, color=path.color),
            )
        elapsed = f"{time.monotonic() - self._started:4.1f} s" if self._started else ""
        title = Text(f"▶ {elapsed}  {self._title}", style="bold", no_wrap=True, overflow="ellipsis")
        return Group(title, table)
