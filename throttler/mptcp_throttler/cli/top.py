# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``top``: connections and their subflows, live on a terminal or as one printed table.

In 80 columns, the reason of a cap is on its own line. Wider terminals also show bytes, class and reason as columns. The
terminal is restored on every exit except SIGKILL.
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
from mptcp_throttler.cli.shared import QueryError, print_error, print_unknown_names, query_daemon
from mptcp_throttler.config import status_socket

QUERY_SECONDS: Final = 1.0  # interval of requests; longer if the answers take longer than half of it
MAX_CONNECTIONS: Final = 200  # limit of one request
_CONDITIONS: Final = ("client", "path", "rule")
_CAPPED_STYLE, _COMING_STYLE, _HEADING_STYLE, _TITLE_STYLE = "yellow", "bold yellow", "bold", "reverse"
_UNIT_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))
Answer = Mapping[str, Any]


class _Column(NamedTuple):
    key: str
    width: int
    align_right: bool = False
    max_width: int = 0  # width to which it may grow; 0: fixed
    title: str = ""

    def text(self, value: str, width: int) -> str:
        shown = _cut_middle(value, width) if self.key == "address" else _cut(value, width)
        return shown.rjust(width) if self.align_right else shown.ljust(width)


_COLUMNS: Final = (
    _Column("address", 21, max_width=47, title="client, subflow"),
    _Column("path", 10, max_width=20),
    _Column("age", 4, align_right=True),
    _Column("down", 5, align_right=True),
    _Column("up", 5, align_right=True),
    _Column("share", 4, align_right=True, title="shr"),
    _Column("rtt", 5, align_right=True),
    _Column("loss", 4, align_right=True),
    _Column("cap", 5, align_right=True),
    _Column("state", 7),
)
_WIDE_COLUMNS: Final = (_Column("bytes", 6, align_right=True), _Column("class", 9))
_REASON_COLUMN: Final = _Column("reason", 20)


def top(options: argparse.Namespace) -> int:
    path = options.socket or status_socket(options.config)
    request = {"query": "connections", "sort": options.sort, "limit": options.limit}
    request |= {name: value for name in _CONDITIONS if (value := getattr(options, name)) is not None}
    if not options.once:
        return _run_live(path, request)
    answer = query_daemon(path, request, "total")
    for line in table(answer, shutil.get_terminal_size((200, 24)).columns):
        print(line.plain)
    if not answer["total"]:
        sys.stdout.flush()
        print_unknown_names(path, request)
    return DONE


def _run_live(path: Path, request: dict[str, Any]) -> int:
    """Show the table until the user quits. A signal's exit status is 128 plus its number."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") in ("dumb", ""):
        print_error("top needs a terminal; --once prints one table")
        return FAILED
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    # Ignore Ctrl+Z: a stopped process would leave its screen on the terminal, below the shell's prompt.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    console = Console(highlight=False, emoji=False)
    try:
        with _unbuffered_keys(sys.stdin.fileno()), Live(console=console, screen=True, auto_refresh=False) as screen:
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
    draw("querying")
    while True:
        start = time.monotonic()
        try:
            answer = query_daemon(path, request | {"limit": min(console.height, MAX_CONNECTIONS)}, "total")
            lines = table(answer, console.width)[:-1]
            clock = datetime.fromtimestamp(answer["time"]).astimezone().strftime("%H:%M:%S")
            total = counted(answer["total"], "connection")
            draw(f"{clock}  {total}  by {request['sort']}  bit/s{conditions}  q quits")
        except QueryError as error:
            draw(str(error), "bold red")
        elapsed = time.monotonic() - start
        if _quit_within(sys.stdin.fileno(), max(QUERY_SECONDS - elapsed, elapsed)):
            return


def _quit_within(descriptor: int, seconds: float) -> bool:
    """Wait up to *seconds*; return whether q was pressed or the terminal was closed."""
    end = time.monotonic() + seconds
    while select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
        keys = os.read(descriptor, 1024)
        if not keys or b"q" in keys:
            return True
    return False


@contextmanager
def _unbuffered_keys(descriptor: int) -> Iterator[None]:
    """Switch the terminal to cbreak mode: keys are unbuffered and not echoed; Ctrl+C still sends SIGINT."""
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
    columns = _fit_columns([cells for _, rows in groups for cells, _ in rows], width)

    def line(cells: Mapping[str, str], style: str) -> Text:
        texts = (column.text(cells.get(column.key, ""), size) for column, size in columns.items())
        return Text(_cut(f" {' '.join(texts)}".rstrip(), width), style)

    lines = [line({column.key: column.title or column.key for column in columns}, _TITLE_STYLE)]
    for connection, rows in groups:
        lines.append(Text(_cut(_heading(connection, now), width), _HEADING_STYLE))
        for cells, style in rows:
            lines.append(line(cells, style))
            if style and _REASON_COLUMN not in columns:
                lines.append(Text(_cut(f"    {cells['reason']}", width), style))
    return [*lines, Text(f"{counted(answer['total'], 'connection')}, {len(connections)} shown")]


def _fit_columns(rows: list[Mapping[str, str]], width: int) -> dict[_Column, int]:
    """Return the columns that fit, and their widths."""
    sizes = {column: column.width for column in _COLUMNS}
    free = width - sum(sizes.values()) - len(sizes)
    for column in _COLUMNS:
        longest = max((len(cells.get(column.key, "")) for cells in rows), default=0)
        growth = max(0, min(free, min(longest, column.max_width) - column.width))
        free -= growth
        sizes[column] += growth
    for column in _WIDE_COLUMNS:
        if free > column.width:
            free -= column.width + 1
            sizes[column] = column.width
    if free > _REASON_COLUMN.width:
        sizes[_REASON_COLUMN] = free - 1
    return sizes


def _rows(connection: Answer, now: float) -> Iterator[tuple[Mapping[str, str], str]]:
    """Yield the cells and the style of each subflow, and of its upload if that has a cap; no style without a cap."""
    for subflow in connection["subflows"]:
        octets = [subflow[key] for key in ("bytes_sent", "bytes_received") if subflow[key] is not None]
        retransmits, segments = subflow["retransmits"], subflow["segments_out"]
        cells = {
            "address": subflow["remote"],
            "path": subflow["path"] or "-",
            "age": duration(now - subflow["since"]),
            "down": amount(subflow["rate_sent"]),
            "up": amount(subflow["rate_received"]),
            "share": percent(subflow["share"]),
            "rtt": milliseconds(subflow["rtt"]),
            "loss": percent(retransmits / segments if retransmits is not None and segments else None),
            "bytes": amount(sum(octets)) if octets else "-",
        }
        upload = subflow["upload"]
        has_cap = upload is not None and (upload["rate"] is not None or upload["classid"] is not None)
        for capped, row in ((subflow, cells), (upload, {"address": "  upload"}))[: 1 + has_cap]:
            state, style = _state(capped)
            row |= {"cap": amount(capped["ceil"]), "class": capped["classid"] or "-", "reason": capped["reason"]}
            yield row | {"state": state or ("backup" if subflow["backup"] else "-")}, style


def _state(capped: Answer) -> tuple[str, str]:
    """Return the state of a cap and its style; empty without a cap."""
    if capped["rate"] is None:
        return ("lifting", _COMING_STYLE) if capped["classid"] else ("", "")
    if capped["landing"]:
        return "coming", _COMING_STYLE
    return "held" if capped["classid"] else "wanted", _CAPPED_STYLE


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
    for factor, unit in _UNIT_PREFIXES:
        if value >= factor * 0.9995:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Return a duration in at most four characters: ``12m``."""
    for factor, unit in _TIME_UNITS:
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


def _cut_middle(text: str, width: int) -> str:
    """Return an address with port in at most *width* characters; keep both ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[-tail:]}" if width > 3 else _cut(text, width)
