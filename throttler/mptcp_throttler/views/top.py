"""What ``top`` shows and does with keys, as values: view and key in, view out; view in, request out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mptcp_throttler.views.top_rows import connection_height

SORTS: Final = ("rate", "bytes", "age", "client")
FILTERS: Final = ("client", "path", "rule")
PROMPTS: Final = {"c": "client", "p": "path", "r": "rule"}
"""Which key asks for which condition."""
UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
ENTER, ESCAPE, BACKSPACE = "enter", "escape", "backspace"
LARGEST_PAGE: Final = 200
"""Connections asked for at once."""
LONGEST_PROMPT: Final = 100

_SEQUENCES: Final = {
    **{"[A": UP, "[B": DOWN, "[5~": PAGE_UP, "[6~": PAGE_DOWN},
    **{"[H": HOME, "[F": END, "[1~": HOME, "[4~": END, "[7~": HOME, "[8~": END},
    **{"OA": UP, "OB": DOWN, "OH": HOME, "OF": END},
}
_CONTROLS: Final = {"\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\x08": BACKSPACE, "\x03": "q", "\x04": "q"}


@dataclass(frozen=True, slots=True)
class View:
    """What the person at the keyboard chose."""

    sort: str = "rate"
    client: str | None = None
    path: str | None = None
    rule: str | None = None
    why: bool = False
    """Whether bytes, class and reason are shown in place of what changes."""
    paused: bool = False
    first: int = 0
    """Which of the connections, in their order, is the first on the screen."""
    cursor: int = 0
    """Which row of the screen is the chosen one."""
    asking: str | None = None
    """The condition that is being written."""
    written: str = ""

    @property
    def conditions(self) -> dict[str, str]:
        return {name: value for name in FILTERS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Page:
    """The answer that there is, and where in all connections it begins."""

    answer: Mapping[str, Any]
    start: int
    asked: Mapping[str, Any] | None = None
    """The request that it answers."""

    @property
    def total(self) -> int:
        return int(self.answer["total"])

    @property
    def connections(self) -> list[Mapping[str, Any]]:
        return list(self.answer["connections"])

    def is_of(self, view: View) -> bool:
        """Return whether this answers what the view asks for, as far as it is known what was asked."""
        chosen = {"sort": view.sort, **view.conditions}
        asked = self.asked
        return asked is None or {name: asked[name] for name in ("sort", *FILTERS) if name in asked} == chosen

    def from_first(self, view: View) -> list[Mapping[str, Any]]:
        """Return the connections from the first on the screen on, as far as they are there."""
        return self.connections[max(0, view.first - self.start) :]


def request(view: View, rows: int) -> dict[str, Any]:
    """Return what is to be asked for a screen of *rows*: some connections before and after, for scrolling."""
    around = max(1, min(rows, LARGEST_PAGE // 4))
    limit = min(LARGEST_PAGE, max(10, 3 * around))
    return {
        "query": "connections",
        "sort": view.sort,
        "limit": limit,
        "offset": max(0, view.first - around),
        **view.conditions,
    }


def within(view: View, page: Page) -> View:
    """Return *view* with a first connection that there is: those from it on may have ended since."""
    last = max(0, page.total - 1)
    return view if view.first <= last else replace(view, first=last, cursor=0)


def press(view: View, key: str, page: Page | None, rows: int) -> View | None:
    """Return what the view is after *key* was pressed; None: the end. *rows* are those of the table's body."""
    if view.asking is not None:
        return _write(view, key)
    match key:
        case "q":
            return None
        case "s":
            following = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
            return replace(view, sort=following, first=0, cursor=0)
        case "w":
            return replace(view, why=not view.why)
        case " ":
            return replace(view, paused=not view.paused)
        case "x":
            return replace(view, client=None, path=None, rule=None, first=0, cursor=0)
        case "c" | "p" | "r":
            name = PROMPTS[key]
            return replace(view, asking=name, written=getattr(view, name) or "")
        case "up" | "k":
            return _moved(view, -1, page, rows)
        case "down" | "j":
            return _moved(view, 1, page, rows)
        case "page up":
            return _scrolled(view, -_shown(view, page, rows), page)
        case "page down":
            return _scrolled(view, _shown(view, page, rows), page)
        case "home":
            return replace(view, first=0, cursor=0)
        case "end" if page is not None:
            return replace(view, first=max(0, page.total - 1), cursor=0)
    return view


def keys(typed: str) -> Iterator[str]:
    """Yield the keys of what a terminal sent. A lone escape is the key; sequences that are not known are nothing."""
    at = 0
    while at < len(typed):
        letter = typed[at]
        if letter != "\x1b":
            at += 1
            if letter in _CONTROLS:
                yield _CONTROLS[letter]
            elif letter.isprintable():
                yield letter
            continue
        end = _end_of_sequence(typed, at + 1)
        if end == at + 1:
            yield ESCAPE
        elif (key := _SEQUENCES.get(typed[at + 1 : end])) is not None:
            yield key
        at = end


def _end_of_sequence(typed: str, at: int) -> int:
    """Return where the escape sequence ends whose second character is at *at*: ECMA-48, 5.4; SS3."""
    if typed[at : at + 1] == "O":
        return min(len(typed), at + 2)
    if typed[at : at + 1] != "[":
        return at
    at += 1
    while at < len(typed) and not "\x40" <= typed[at] <= "\x7e":
        at += 1
    return min(len(typed), at + 1)


def _write(view: View, key: str) -> View:
    name = view.asking
    assert name is not None
    if key == ESCAPE:
        return replace(view, asking=None, written="")
    if key == ENTER:
        chosen = {name: view.written.strip() or None}
        return replace(view, asking=None, written="", first=0, cursor=0, **chosen)  # type: ignore[arg-type]
    if key == BACKSPACE:
        return replace(view, written=view.written[:-1])
    if len(key) == 1 and len(view.written) < LONGEST_PROMPT:
        return replace(view, written=view.written + key)
    return view


def _shown(view: View, page: Page | None, rows: int) -> int:
    """Return how many connections fit on the screen, one at least."""
    if page is None:
        return 1
    fitting = left = 0
    for connection in page.from_first(view):
        left += connection_height(connection)
        if left > rows:
            break
        fitting += 1
    return max(1, fitting)


def _moved(view: View, by: int, page: Page | None, rows: int) -> View:
    if page is None:
        return view
    cursor = view.cursor + by
    if cursor < 0:
        return _scrolled(view, -1, page)
    heights = [connection_height(each) for each in page.from_first(view)]
    if cursor >= min(rows, sum(heights)):
        if sum(heights) <= rows:
            return view
        return replace(_scrolled(view, 1, page), cursor=max(0, view.cursor + 1 - heights[0]))
    return replace(view, cursor=cursor)


def _scrolled(view: View, by: int, page: Page | None) -> View:
    last = 0 if page is None else max(0, page.total - 1)
    return replace(view, first=max(0, min(last, view.first + by)))
