"""The command top: a table of connections that follows what the daemon knows, on a terminal; or one, printed.

The terminal is put back whatever ends the command, but SIGKILL: the end of ``run`` does it, and signals end ``run``.
The daemon is asked once a second at the most, by a task of its own: one that hangs keeps no key from working.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.status_client import ask, ask_async
from mptcp_throttler.cli.complaints import complain
from mptcp_throttler.cli.pacing import Pacing
from mptcp_throttler.cli.status_socket import no_answer, say_unknown_names
from mptcp_throttler.views import top as keyboard
from mptcp_throttler.views import top_screen
from mptcp_throttler.views.top import Page, View
from mptcp_throttler.views.top_rows import CAPPED, COMING, HEADING, PLAIN, TITLES, rates_between

PATIENCE_SECONDS: Final = 5.0
_TOO_OLD: Final = "the daemon is older than this command and answers no such request; restart it"
_STYLES: Final = {
    PLAIN: "",
    HEADING: "bold",
    TITLES: "reverse",
    CAPPED: "yellow",
    COMING: "bold yellow",
    top_screen.HEAD: "bold",
    top_screen.FAULT: "bold red",
    top_screen.CHOSEN: "reverse",
    top_screen.KEYS: "dim",
}
_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def once(path: Path, view: View, limit: int) -> int:
    """Print one table: of the rates that the daemon knows."""
    request = {"query": "connections", "sort": view.sort, "limit": limit, **view.conditions}
    answer = ask(path, request)
    if (fault := _fault(answer)) is not None:
        complain(fault)
        return FAILED
    width = shutil.get_terminal_size((200, 24)).columns
    for line in top_screen.table(answer, rates_between(None, answer), width):
        print(line)
    if not answer["total"]:
        sys.stdout.flush()
        say_unknown_names(path, view.conditions)
    return DONE


def live(path: Path, view: View) -> int:
    """Show the table until somebody has seen enough. The exit status of a signal is 128 and its number."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") in ("dumb", ""):
        complain("top needs a terminal; --once prints one table")
        return FAILED
    return asyncio.run(_Screen(path, view).run())


def _fault(answer: dict[str, Any]) -> str | None:
    """Return what is wrong with an answer."""
    if "error" in answer:
        return str(answer["error"])
    return None if "schema" in answer and "total" in answer else _TOO_OLD


class _Screen:
    """One terminal."""

    def __init__(self, path: Path, view: View) -> None:
        self._path = path
        self._view = view
        self._page: Page | None = None
        self._rates: dict[tuple[str, str], tuple[float | None, float | None]] = {}
        self._fault: str | None = None
        self._console = Console(highlight=False, emoji=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False)
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._done: asyncio.Future[int] | None = None
        self._pacing = Pacing(self._ask, lambda: self._view.paused)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        for number in _ENDINGS:
            loop.add_signal_handler(number, self._end, 0 if number == signal.SIGINT else 128 + number)
        loop.add_signal_handler(signal.SIGWINCH, self._draw)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        with _keys_at_once(sys.stdin.fileno()), self._live:
            loop.add_reader(sys.stdin.fileno(), self._typed)
            asking = loop.create_task(self._pacing.run())
            asking.add_done_callback(self._failed)
            self._draw()
            try:
                return await self._done
            finally:
                loop.remove_reader(sys.stdin.fileno())
                asking.cancel()

    def _end(self, status: int) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(status)

    def _failed(self, task: asyncio.Task[None]) -> None:
        """A fault of ours ends the command, with the terminal put back."""
        if self._done is not None and not self._done.done() and not task.cancelled() and (error := task.exception()):
            self._done.set_exception(error)

    def _suspend(self) -> None:
        """Stop as others do upon ^Z: with the terminal as it was, and again on the screen afterwards."""
        self._live.stop()
        descriptor = sys.stdin.fileno()
        with _as_it_was(descriptor):
            os.kill(os.getpid(), signal.SIGSTOP)
        self._live.start()
        self._draw()

    def _typed(self) -> None:
        typed = os.read(sys.stdin.fileno(), 1024)
        if not typed:
            self._end(DONE)
            return
        rows = top_screen.body_height(self._console.height)
        before = self._view
        for key in keyboard.keys(self._decoder.decode(typed)):
            view = keyboard.press(self._view, key, self._page, rows)
            if view is None:
                self._end(DONE)
                return
            self._view = view
        resumed = before.paused and not self._view.paused
        if resumed or keyboard.request(before, rows) != keyboard.request(self._view, rows):
            self._pacing.wanted.set()
        self._draw()

    async def _ask(self) -> None:
        if await self._ask_once():
            await self._ask_once()
        self._draw()

    async def _ask_once(self) -> bool:
        """Take an answer; return whether it has none of what is to be shown: so many connections have ended since."""
        view, rows = self._view, top_screen.body_height(self._console.height)
        request = keyboard.request(view, rows)
        try:
            answer = await ask_async(self._path, request, PATIENCE_SECONDS)
        except OSError as error:
            self._fault = no_answer(self._path, error)
            return False
        self._fault = _fault(answer)
        if self._fault is not None:
            return False
        before = None if self._page is None else self._page.answer
        self._rates = rates_between(before, answer)
        self._page = Page(answer, request["offset"], request)
        self._view = keyboard.within(self._view, self._page)
        return self._page.total > 0 and not self._page.from_first(self._view)

    def _draw(self) -> None:
        width, height = self._console.size
        lines = top_screen.screen(self._view, self._page, self._rates, self._fault, width, height)
        self._live.update(
            Group(*(Text(line.text, style=_STYLES[line.look], no_wrap=True, overflow="crop") for line in lines)),
            refresh=True,
        )


@contextmanager
def _keys_at_once(descriptor: int) -> Iterator[None]:
    """Have the terminal give each key as it is pressed, and show none; signals from the keyboard stay."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


@contextmanager
def _as_it_was(descriptor: int) -> Iterator[None]:
    """Take echo and lines back for a while."""
    ours = termios.tcgetattr(descriptor)
    lines = termios.tcgetattr(descriptor)
    lines[3] |= termios.ICANON | termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSAFLUSH, lines)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, ours)


def top(options: argparse.Namespace, path: Path) -> int:
    view = View(options.sort, options.client, options.path, options.rule)
    return once(path, view, options.limit) if options.once else live(path, view)
