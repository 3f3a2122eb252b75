"""The table of ``top``: connections and their subflows as lines of a given width. Pure.

80 columns hold what changes: rates, share, RTT, loss, cap and its state; or, where that is chosen, why: bytes, class
and reason. Wider terminals have room for all. What has no column is told of the chosen row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mptcp_common.units import counted, format_rate
from mptcp_throttler.views import compact

Answer = Mapping[str, Any]
Rates = Mapping[tuple[str, str], tuple[float | None, float | None]]
"""Down and up, bits/s, by token and the client's end."""

PLAIN, HEADING, TITLES, CAPPED, COMING = "plain", "heading", "titles", "capped", "coming"
"""How a line is to look."""
COMING_STATE, HELD_STATE, LIFTING_STATE, WANTED_STATE = "coming", "held", "lifting", "wanted"


class Line(NamedTuple):
    text: str
    look: str = PLAIN


@dataclass(frozen=True, slots=True)
class Row:
    """One subflow in one direction, as text for the columns."""

    subflow: Answer
    cells: Mapping[str, str]
    state: str | None
    detail: str
    """What has no column, for the chosen row."""


@dataclass(frozen=True, slots=True)
class _Column:
    key: str
    width: int
    right: bool = False
    widest: int = 0
    """It may grow to this where there is room; 0: it does not."""
    title: str = ""

    def text(self, value: str, width: int) -> str:
        shown = compact.cut_inside(value, width) if self.key == "address" else compact.cut(value, width)
        return shown.rjust(width) if self.right else shown.ljust(width)


_ADDRESS: Final = _Column("address", 21, widest=47, title="client, subflow")
_PATH: Final = _Column("path", 10, widest=20)
_BYTES: Final = _Column("bytes", 6, right=True)
_CLASS: Final = _Column("class", 9)
_REASON: Final = _Column("reason", 20, widest=1000)
_CHANGING: Final = (
    _ADDRESS,
    _PATH,
    _Column("age", 4, right=True),
    _Column("down", 5, right=True),
    _Column("up", 5, right=True),
    _Column("share", 4, right=True, title="shr"),
    _Column("rtt", 5, right=True, title="rtt"),
    _Column("loss", 4, right=True),
    _Column("cap", 5, right=True),
    _Column("state", 7),
)
_WHY: Final = (_ADDRESS, _PATH, _BYTES, _CLASS, _REASON)
_INDENT: Final = " "


def connection_height(connection: Answer) -> int:
    """Return how many lines *connection* takes."""
    return 1 + sum(1 + _has_upload_cap(each) for each in connection["subflows"])


def rates_between(before: Answer | None, after: Answer) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    """Return the rates of all subflows of *after*: as the daemon knows them, else from the bytes of both answers."""
    known = {} if before is None else {_key(c, s): s for c, s in _subflows(before)}
    seconds = 0.0 if before is None else after["time"] - before["time"]
    found: dict[tuple[str, str], tuple[float | None, float | None]] = {}
    for connection, subflow in _subflows(after):
        old = known.get(_key(connection, subflow))
        pairs = (("rate_sent", "bytes_sent"), ("rate_received", "bytes_received"))
        down, up = (
            subflow[rate] if subflow.get(rate) is not None else _difference(old, subflow, octets, seconds)
            for rate, octets in pairs
        )
        found[_key(connection, subflow)] = (down, up)
    return found


def body(
    connections: Iterable[Answer], rates: Rates, now: float, width: int, why: bool = False
) -> list[tuple[Line, Row | None]]:
    """Return the lines of the table with the row that each shows; None for a connection's heading."""
    groups = [(each, list(_rows(each, rates, now))) for each in connections]
    columns = _fitted([row for _, rows in groups for row in rows], width, why)
    lines: list[tuple[Line, Row | None]] = []
    for connection, rows in groups:
        lines.append((Line(compact.cut(_heading(connection, rates, now), width), HEADING), None))
        for row in rows:
            look = COMING if row.state in (COMING_STATE, LIFTING_STATE) else CAPPED if row.state else PLAIN
            text = " ".join(column.text(row.cells.get(column.key, ""), size) for column, size in columns)
            lines.append((Line(compact.cut((_INDENT + text).rstrip(), width), look), row))
    return lines


def titles(connections: Iterable[Answer], rates: Rates, now: float, width: int, why: bool = False) -> Line:
    """Return the line above the table."""
    rows = [row for each in connections for row in _rows(each, rates, now)]
    text = " ".join(column.text(column.title or column.key, size) for column, size in _fitted(rows, width, why))
    return Line(compact.cut((_INDENT + text).rstrip(), width), TITLES)


def _fitted(rows: list[Row], width: int, why: bool) -> list[tuple[_Column, int]]:
    """Return the columns that there is room for, with their widths."""
    columns = _WHY if why else _CHANGING
    left = width - len(_INDENT) - sum(each.width for each in columns) - (len(columns) - 1)
    sizes = {column: column.width for column in columns}
    # The reason is what one wants to read there, so it grows first.
    for column in reversed(columns) if why else columns:
        longest = max((len(row.cells.get(column.key, "")) for row in rows), default=0) if column.widest else 0
        more = max(0, min(left, min(longest, column.widest) - column.width))
        left -= more
        sizes[column] += more
    if not why:
        for column in (_BYTES, _CLASS):
            if left > column.width:
                left -= column.width + 1
                sizes[column] = column.width
        if left > _REASON.width:
            sizes[_REASON] = left - 1
    return list(sizes.items())


def _rows(connection: Answer, rates: Rates, now: float) -> Iterator[Row]:
    for subflow in connection["subflows"]:
        down, up = rates.get(_key(connection, subflow), (None, None))
        octets = [subflow[key] for key in ("bytes_sent", "bytes_received") if subflow[key] is not None]
        cells = {
            "address": subflow["remote"],
            "path": subflow["path"] or "-",
            "age": compact.duration(now - subflow["since"]),
            "down": compact.amount(down),
            "up": compact.amount(up),
            "share": compact.percent(subflow.get("share")),
            "rtt": compact.milliseconds(subflow.get("rtt")),
            "loss": compact.percent(_loss(subflow)),
            "bytes": compact.amount(sum(octets)) if octets else "-",
        }
        yield _row(subflow, subflow, cells)
        if _has_upload_cap(subflow):
            yield _row(subflow, subflow["upload"], {"address": "  upload"})


def _row(subflow: Answer, capped: Answer, cells: dict[str, str]) -> Row:
    state = _state(capped, bool(capped.get("landing")))
    if subflow["state"] != "active":
        state, shown = None, subflow["state"]
    else:
        shown = "backup" if state is None and subflow["backup"] else state or "-"
    cells |= {
        "cap": compact.amount(capped["ceil"]),
        "state": shown,
        "class": capped["classid"] or "-",
        "reason": capped["reason"],
    }
    return Row(subflow, cells, state, _detail(subflow, capped))


def _state(capped: Answer, landing: bool) -> str | None:
    """Return what has become of a cap; None where there is none."""
    if capped["rate"] is None:
        return LIFTING_STATE if capped["classid"] else None
    if landing:
        return COMING_STATE
    return HELD_STATE if capped["classid"] else WANTED_STATE


def _detail(subflow: Answer, capped: Answer) -> str:
    parts = [subflow["remote"]]
    if capped["rate"] is not None:
        rate, ceil = capped["rate"], capped["ceil"]
        guaranteed = "" if ceil == rate else f", {format_rate(rate)} of it guaranteed"
        parts.append(f"cap {format_rate(ceil)}{guaranteed}")
    if capped["classid"]:
        parts.append(f"class {capped['classid']}")
    sent, received = subflow["bytes_sent"], subflow["bytes_received"]
    if sent is not None:
        parts.append(f"{compact.amount(sent)}B down, {compact.amount(received)}B up")
    if subflow["interface"]:
        parts.append(subflow["interface"])
    return f"{'  '.join(parts)}  {capped['reason']}"


def _heading(connection: Answer, rates: Rates, now: float) -> str:
    known = [rates.get(_key(connection, each), (None, None)) for each in connection["subflows"]]
    sums = [sum(rate for rate in side if rate is not None) for side in zip(*known, strict=True)] if known else [0, 0]
    relaxed = f"  caps relaxed: {connection['relaxed']}" if connection["relaxed"] else ""
    return (
        f"{connection['client'] or '?'}  {connection['token']}  {counted(len(connection['subflows']), 'subflow')}  "
        f"{compact.amount(sums[0])} down  {compact.amount(sums[1])} up  "
        f"{compact.amount(connection['bytes_sent'] + connection['bytes_received'])}B  "
        f"{compact.duration(now - connection['since'])}{relaxed}"
    )


def _has_upload_cap(subflow: Answer) -> bool:
    upload = subflow["upload"]
    return upload is not None and (upload["rate"] is not None or upload["classid"] is not None)


def _loss(subflow: Answer) -> float | None:
    """Return which share of the segments was sent again."""
    again, out = subflow.get("retransmits"), subflow.get("segments_out")
    return again / out if again is not None and out else None


def _difference(old: Answer | None, new: Answer, key: str, seconds: float) -> float | None:
    if old is None or old[key] is None or new[key] is None or seconds <= 0:
        return None
    return float(max(0, new[key] - old[key]) * 8 / seconds)


def _subflows(answer: Answer) -> Iterator[tuple[Answer, Answer]]:
    for connection in answer["connections"]:
        for subflow in connection["subflows"]:
            yield connection, subflow


def _key(connection: Answer, subflow: Answer) -> tuple[str, str]:
    return connection["token"], subflow["remote"]
