"""The command top: a live table of connections on a terminal, or one printed table.

The terminal is restored on every exit except SIGKILL. The daemon is asked at most once a second, and less often if its
answers take long.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.units import counted
from mptcp_throttler.cli.shared import Unanswered, ask_daemon, complain, say_unknown_names, status_socket
from mptcp_throttler.views import compact
from mptcp_throttler.views.top import Line, rates_between, table

ASK_SECONDS: Final = 1.0
MOST_CONNECTIONS: Final = 200
"""Limit of one request."""
_ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def top(options: argparse.Namespace) -> int:
    path = options.socket or status_socket(options)
    conditions = {name: value for name in ("client", "path", "rule") if (value := getattr(options, name)) is not None}
    request = {"query": "connections", "sort": options.sort, "limit": options.limit, **conditions}
    return _once(path, request) if options.once else _live(path, request)


def _once(path: Path, request: dict[str, Any]) -> int:
    answer = ask_daemon(path, request, "total")
    for line in table(answer, rates_between(None, answer), shutil.get_terminal_size((200, 24)).columns):
        print(line.text)
    if not answer["total"]:
        sys.stdout.flush()
        say_unknown_names(path, request)
    return DONE


def _live(path: Path, request: dict[str, Any]) -> int:
    """Show the table until the user quits. A signal's exit status is 128 plus its number."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") in ("dumb", ""):
        complain("top needs a terminal; --once prints one table")
        return FAILED
    for number in _ENDINGS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    # If stopped, it would leave its screen to the shell.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    console = Console(highlight=False, emoji=False)
    try:
        with _keys_at_once(sys.stdin.fileno()), Live(console=console, screen=True, auto_refresh=False) as screen:
            _follow(path, request, console, screen)
    except KeyboardInterrupt:
        pass
    return DONE


def _follow(path: Path, request: dict[str, Any], console: Console, screen: Live) -> None:
    def draw(head: Line, lines: list[Line]) -> None:
        width, height = console.size
        shown = [Line(compact.cut(head.text, width), head.style), *lines][:height]
        texts = (Text(line.text, style=line.style, no_wrap=True, overflow="crop") for line in shown)
        screen.update(Group(*texts), refresh=True)

    conditions = "".join(f"  {name} {request[name]}" for name in ("client", "path", "rule") if name in request)
    answer: dict[str, Any] | None = None
    lines: list[Line] = []
    draw(Line("asking", "bold"), lines)
    while True:
        began = time.monotonic()
        limit = min(console.height, MOST_CONNECTIONS)
        try:
            before, answer = answer, ask_daemon(path, request | {"limit": limit}, "total")
            lines = table(answer, rates_between(before, answer), console.width)[:-1]
            at = datetime.fromtimestamp(answer["time"]).astimezone().strftime("%H:%M:%S")
            total = counted(answer["total"], "connection")
            draw(Line(f"{at}  {total}  by {request['sort']}  bit/s{conditions}  q quits", "bold"), lines)
        except Unanswered as error:
            draw(Line(str(error), "bold red"), lines)
        took = time.monotonic() - began
        if _quits(sys.stdin.fileno(), max(ASK_SECONDS - took, took)):
            return


def _quits(descriptor: int, seconds: float) -> bool:
    """Wait up to *seconds*; return whether q was pressed or the terminal is gone."""
    end = time.monotonic() + seconds
    while select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
        typed = os.read(descriptor, 1024)
        if not typed or b"q" in typed:
            return True
    return False


@contextmanager
def _keys_at_once(descriptor: int) -> Iterator[None]:
    """Switch the terminal to cbreak mode: keys arrive unbuffered and without echo, signals stay."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
