# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``top``: connections and their subflows, live on a terminal or as one printed table.

80 columns show what changes, and the reason of a cap on its own line. Wider terminals also show bytes, class and
reason. The terminal is restored on every exit except SIGKILL.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.units import counted
from mptcp_throttler.cli.shared import Unanswered, ask_daemon, complain, say_unknown_names
from mptcp_throttler.config import status_socket

ASK_SECONDS: Final = 1.0  # interval of requests; longer if the answers take longer than half of it
MAX_CONNECTIONS: Final = 200  # limit of one request
_CONDITIONS: Final = ("client", "path", "rule")
_CAPPED, _COMING, _HEADING, _TITLES = "yellow", "bold yellow", "bold", "reverse"
_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIMES: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))
Answer = Mapping[str, Any]


class _Column(NamedTuple):
    key: str
    width: int
    right: bool = False
    widest: int = 0  # width to which it may grow; 0: fixed
    title: str = ""

    def text(self, value: str, width: int) -> str:
        shown = _cut_inside(value, width) if self.key == "address" else _cut(value, width)
        return shown.rjust(width) if self.right else shown.ljust(width)


_COLUMNS: Final = (
    _Column("address", 21, widest=47, title="client, subflow"),
    _Column("path", 10, widest=20),
    _Column("age", 4, right=True),
    _Column("down", 5, right=True),
    _Column("up", 5, right=True),
    _Column("share", 4, right=True, title="shr"),
    _Column("rtt", 5, right=True),
    _Column("loss", 4, right=True),
    _Column("cap", 5, right=True),
    _Column("state", 7),
)
_WIDE: Final = (_Column("bytes", 6, right=True), _Column("class", 9))
_REASON: Final = _Column("reason", 20)


def top(options: argparse.Namespace) -> int:
    path = options.socket or status_socket(options.config)
    request = {"query": "connections", "sort": options.sort, "limit": options.limit}
    request |= {name: value for name in _CONDITIONS if (value := getattr(options, name)) is not None}
    if not options.once:
        return _live(path, request)
    answer = ask_daemon(path, request, "total")
    for line in table(answer, shutil.get_terminal_size((200, 24)).columns):
        print(line.plain)
    if not answer["total"]:
        sys.stdout.flush()
        say_unknown_names(path, request)
    return DONE


def _live(path: Path, request: dict[str, Any]) -> int:
    """Show the table until the user quits. A signal's exit status is 128 plus its number."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") in ("dumb", ""):
        complain("top needs a terminal; --once prints one table")
        return FAILED
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    # Ignore Ctrl+Z: a stopped process would leave its screen on the terminal, under the shell's prompt.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    console = Console(highlight=False, emoji=False)
    try:
        with _keys_at_once(sys.stdin.fileno()), Live(console=console, screen=True, auto_refresh=False) as screen:
            _follow(path, request, console, screen)
    except KeyboardInterrupt:
        pass
    return DONE


def _follow(path: Path, request: dict[str, Any], console: Console, screen: Live) -> None:
    lines: list[Text] = []

    def draw(head: str, style: str = "bold") -> None:
        shown = [Text(_cut(head, console.width), style), *lines]
        screen.update(Group(*shown[: console.height]), refresh=True)

    conditions = "".join(f"  {name} {request[name]}" for name in _CONDITIONS if name in request)
    draw("asking")
    while True:
        began = time.monotonic()
        try:
            answer = ask_daemon(path, request | {"limit": min(console.height, MAX_CONNECTIONS)}, "total")
            lines = table(answer, console.width)[:-1]
            at = datetime.fromtimestamp(answer["time"]).astimezone().strftime("%H:%M:%S")
            total = counted(answer["total"], "connection")
            draw(f"{at}  {total}  by {request['sort']}  bit/s{conditions}  q quits")
        except Unanswered as error:
            draw(str(error), "bold red")
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


def table(answer: Answer, width: int) -> list[Text]:
    """Return the table of an answer to ``connections``, in lines of *width*."""
    now, connections = answer["time"], answer["connections"]
    groups = [(each, list(_rows(each, now))) for each in connections]
    columns = _fitted([cells for _, rows in groups for cells, _ in rows], width)

    def line(cells: Mapping[str, str], style: str) -> Text:
        texts = (column.text(cells.get(column.key, ""), size) for column, size in columns.items())
        return Text(_cut(f" {' '.join(texts)}".rstrip(), width), style)

    lines = [line({column.key: column.title or column.key for column in columns}, _TITLES)]
    for connection, rows in groups:
        lines.append(Text(_cut(_heading(connection, now), width), _HEADING))
        for cells, style in rows:
            lines.append(line(cells, style))
            if style and _REASON not in columns:
                lines.append(Text(_cut(f"    {cells['reason']}", width), style))
    return [*lines, Text(f"{counted(answer['total'], 'connection')}, {len(connections)} shown")]


def _fitted(rows: list[Mapping[str, str]], width: int) -> dict[_Column, int]:
    """Return the columns that fit, and their widths."""
    sizes = {column: column.width for column in _COLUMNS}
    left = width - sum(sizes.values()) - len(sizes)
    for column in _COLUMNS:
        longest = max((len(cells.get(column.key, "")) for cells in rows), default=0)
        more = max(0, min(left, min(longest, column.widest) - column.width))
        left -= more
        sizes[column] += more
    for column in _WIDE:
        if left > column.width:
            left -= column.width + 1
            sizes[column] = column.width
    if left > _REASON.width:
        sizes[_REASON] = left - 1
    return sizes


def _rows(connection: Answer, now: float) -> Iterator[tuple[Mapping[str, str], str]]:
    """Yield the cells and the style of each subflow, and of its upload if that has a cap; no style without a cap."""
    for subflow in connection["subflows"]:
        octets = [subflow[key] for key in ("bytes_sent", "bytes_received") if subflow[key] is not None]
        again, out = subflow["retransmits"], subflow["segments_out"]
        cells = {
            "address": subflow["remote"],
            "path": subflow["path"] or "-",
            "age": duration(now - subflow["since"]),
            "down": amount(subflow["rate_sent"]),
            "up": amount(subflow["rate_received"]),
            "share": percent(subflow["share"]),
            "rtt": milliseconds(subflow["rtt"]),
            "loss": percent(again / out if again is not None and out else None),
            "bytes": amount(sum(octets)) if octets else "-",
        }
        upload = subflow["upload"]
        has_cap = upload is not None and (upload["rate"] is not None or upload["classid"] is not None)
        for capped, own in ((subflow, cells), (upload, {"address": "  upload"}))[: 1 + has_cap]:
            state, style = _state(capped)
            own |= {"cap": amount(capped["ceil"]), "class": capped["classid"] or "-", "reason": capped["reason"]}
            yield own | {"state": state or ("backup" if subflow["backup"] else "-")}, style


def _state(capped: Answer) -> tuple[str, str]:
    """Return the state of a cap and its style; empty without a cap."""
    if capped["rate"] is None:
        return ("lifting", _COMING) if capped["classid"] else ("", "")
    if capped["landing"]:
        return "coming", _COMING
    return "held" if capped["classid"] else "wanted", _CAPPED


def _heading(connection: Answer, now: float) -> str:
    subflows = connection["subflows"]
    down, up = (sum(each[rate] or 0 for each in subflows) for rate in ("rate_sent", "rate_received"))
    tunnel = f"tunnel {connection['tunnel']}  " if "tunnel" in connection else ""
    relaxed = f"  caps relaxed: {connection['relaxed']}" if connection["relaxed"] else ""
    return (
        f"{connection['client'] or '?'}  {connection['token']}  {tunnel}"
        f"{counted(len(subflows), 'subflow')}  {amount(down)} down  {amount(up)} up  "
        f"{amount(connection['bytes_sent'] + connection['bytes_received'])}B  "
        f"{duration(now - connection['since'])}{relaxed}"
    )


def amount(value: float | None) -> str:
    """Return a rate (bits/s) or size (bytes) in at most five characters, by powers of 1000: ``28.4M``."""
    if value is None:
        return "-"
    for factor, unit in _UNITS:
        if value >= factor * 0.9995:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Return a duration in at most four characters: ``12m``."""
    for factor, unit in _TIMES:
        if seconds >= factor:
            return f"{min(999, int(seconds / factor))}{unit}"
    return f"{max(0, int(seconds))}s"


def milliseconds(seconds: float | None) -> str:
    """Return a round-trip time in at most five characters."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    if value >= 9_999.5:
        return f"{min(9999, seconds):.0f}s"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def percent(share: float | None) -> str:
    """Return a share, 0 to 1, in at most four characters: ``3%``."""
    if share is None:
        return "-"
    value = share * 100
    return f"{value:.1f}%" if 0 < value < 9.95 else f"{value:.0f}%"


def _cut(text: str, width: int) -> str:
    """Return *text* in at most *width* characters; an ellipsis replaces a cut end."""
    return text if len(text) <= width else text[: width - 1] + "…" if width > 0 else ""


def _cut_inside(text: str, width: int) -> str:
    """Return an address with port in at most *width* characters; keep both ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[-tail:]}" if width > 3 else _cut(text, width)
