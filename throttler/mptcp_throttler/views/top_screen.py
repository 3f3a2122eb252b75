"""The whole screen of ``top``, and the one table that ``top --once`` prints: lines of a given width. Pure."""

from __future__ import annotations

import textwrap
from datetime import datetime
from typing import Any, Final

from mptcp_common.units import counted
from mptcp_throttler.views import compact
from mptcp_throttler.views.top import Page, View
from mptcp_throttler.views.top_rows import PLAIN, TITLES, Line, Rates, Row, body, titles

HEAD, FAULT, CHOSEN, KEYS = "head", "fault", "chosen", "keys"
"""More looks of lines."""
DETAIL_LINES: Final = 3
SURROUNDINGS: Final = 3 + DETAIL_LINES
"""Lines of the screen that are not the table's body."""
SMALLEST: Final = (40, SURROUNDINGS + 2)
"""Columns and lines."""
_HELP: Final = (
    "q quit  s sort  w {}  c client  p path  r rule  x all  space pause  arrows",
    "q quit  s sort  w {}  c/p/r filter  x all  space pause  arrows",
    "q s w c p r x space",
)


def body_height(height: int) -> int:
    """Return how many lines of the table there are on a screen of *height*."""
    return max(1, height - SURROUNDINGS)


def screen(view: View, page: Page | None, rates: Rates, fault: str | None, width: int, height: int) -> list[Line]:
    """Return at most *height* lines. *fault*: why there is no newer answer."""
    if width < SMALLEST[0] or height < SMALLEST[1]:
        text = f"the terminal is too small: {SMALLEST[0]} columns and {SMALLEST[1]} lines are needed"
        return [Line(each, FAULT) for each in textwrap.wrap(text, max(1, width))][:height]
    room = body_height(height)
    table: list[tuple[Line, Row | None]] = []
    above = Line("", TITLES)
    if page is not None:
        shown = page.from_first(view)[:room]
        now = page.answer["time"]
        table = body(shown, rates, now, width, view.why)[:room]
        above = titles(shown, rates, now, width, view.why)
    chosen = min(view.cursor, len(table) - 1)
    lines = [_head(view, page, fault, width), above]
    for at, (line, _) in enumerate(table):
        lines.append(Line(line.text.ljust(width), CHOSEN) if at == chosen else line)
    lines += [Line("")] * (room - len(table))
    return [*lines, *_details(table, chosen, width), _foot(view, width)]


def table(answer: dict[str, Any], rates: Rates, width: int) -> list[str]:
    """Return one table of *answer* as text."""
    connections = answer["connections"]
    lines = [titles(connections, rates, answer["time"], width).text]
    for line, row in body(connections, rates, answer["time"], width):
        lines.append(line.text)
        # Where the reason has no column of its own, that of a cap has a line.
        if row is not None and row.state is not None and "reason" not in lines[0].split():
            lines.append(compact.cut(f"    {row.cells['reason']}", width))
    lines.append(f"{counted(answer['total'], 'connection')}, {len(connections)} shown")
    return lines


def _head(view: View, page: Page | None, fault: str | None, width: int) -> Line:
    if fault is not None:
        return Line(compact.cut(fault, width), FAULT)
    if page is None:
        return Line("asking", HEAD)
    at = datetime.fromtimestamp(page.answer["time"]).astimezone().strftime("%H:%M:%S")
    parts = [at, counted(page.total, "connection"), f"by {view.sort}", "bit/s"]
    parts += [f"{name} {value}" for name, value in view.conditions.items()]
    if not page.is_of(view):
        parts.append("(asking)")
    if view.first:
        parts.append(f"from {view.first + 1}")
    if view.paused:
        parts.append("PAUSED")
    return Line(compact.cut("  ".join(parts), width), HEAD)


def _details(table: list[tuple[Line, Row | None]], chosen: int, width: int) -> list[Line]:
    row = table[chosen][1] if 0 <= chosen < len(table) else None
    lines = [] if row is None else textwrap.wrap(row.detail, width)
    if len(lines) > DETAIL_LINES:
        lines = [*lines[: DETAIL_LINES - 1], compact.cut(" ".join(lines[DETAIL_LINES - 1 :]), width)]
    return [Line(each, PLAIN) for each in lines] + [Line("")] * (DETAIL_LINES - len(lines))


def _foot(view: View, width: int) -> Line:
    if view.asking is not None:
        text = f"{view.asking}: {view.written}_   (enter: take it, nothing written: all; escape: leave)"
        return Line(compact.cut(text, width), KEYS)
    texts = (each.format("rates" if view.why else "why") for each in _HELP)
    return Line(next((each for each in texts if len(each) <= width), ""), KEYS)
