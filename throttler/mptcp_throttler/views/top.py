"""The table of ``top``: connections and their subflows as lines of a given width. Pure.

80 columns show what changes: rates, share, RTT, loss, cap and its state. The reason of a cap has its own line. Wider
terminals also show bytes, class and reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mptcp_common.units import counted
from mptcp_throttler.views import compact

Answer = Mapping[str, Any]
Rates = Mapping[tuple[str, str], tuple[float | None, float | None]]
"""Down and up, bits/s, by token and the client's end."""

_CAPPED, _COMING, _HEADING, _TITLES = "yellow", "bold yellow", "bold", "reverse"


class Line(NamedTuple):
    text: str
    style: str = ""


class _Row(NamedTuple):
    """One subflow in one direction."""

    cells: Mapping[str, str]
    is_capped: bool
    style: str


@dataclass(frozen=True, slots=True)
class _Column:
    key: str
    width: int
    right: bool = False
    widest: int = 0
    """Width to which it may grow; 0: fixed."""
    title: str = ""

    def text(self, value: str, width: int) -> str:
        shown = compact.cut_inside(value, width) if self.key == "address" else compact.cut(value, width)
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
_INDENT: Final = " "


def table(answer: Answer, rates: Rates, width: int) -> list[Line]:
    """Return the table of an answer to ``connections``."""
    now, connections = answer["time"], answer["connections"]
    groups = [(each, list(_rows(each, rates, now))) for each in connections]
    columns = _fitted([row for _, rows in groups for row in rows], width)

    def line(cells: Mapping[str, str], style: str) -> Line:
        text = " ".join(column.text(cells.get(column.key, ""), size) for column, size in columns.items())
        return Line(compact.cut((_INDENT + text).rstrip(), width), style)

    lines = [line({column.key: column.title or column.key for column in columns}, _TITLES)]
    for connection, rows in groups:
        lines.append(Line(compact.cut(_heading(connection, rates, now), width), _HEADING))
        for row in rows:
            lines.append(line(row.cells, row.style))
            if row.is_capped and _REASON not in columns:
                lines.append(Line(compact.cut(f"    {row.cells['reason']}", width), row.style))
    return [*lines, Line(f"{counted(answer['total'], 'connection')}, {len(connections)} shown")]


def rates_between(before: Answer | None, after: Answer) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    """Return the rates of all subflows of *after*: from the daemon, otherwise from the bytes of both answers."""
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


def _fitted(rows: list[_Row], width: int) -> dict[_Column, int]:
    sizes = {column: column.width for column in _COLUMNS}
    left = width - len(_INDENT) - sum(sizes.values()) - (len(sizes) - 1)
    for column in _COLUMNS:
        longest = max((len(row.cells.get(column.key, "")) for row in rows), default=0)
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


def _rows(connection: Answer, rates: Rates, now: float) -> Iterator[_Row]:
    for subflow in connection["subflows"]:
        down, up = rates.get(_key(connection, subflow), (None, None))
        octets = [subflow[key] for key in ("bytes_sent", "bytes_received") if subflow[key] is not None]
        again, out = subflow.get("retransmits"), subflow.get("segments_out")
        cells = {
            "address": subflow["remote"],
            "path": subflow["path"] or "-",
            "age": compact.duration(now - subflow["since"]),
            "down": compact.amount(down),
            "up": compact.amount(up),
            "share": compact.percent(subflow.get("share")),
            "rtt": compact.milliseconds(subflow.get("rtt")),
            "loss": compact.percent(again / out if again is not None and out else None),
            "bytes": compact.amount(sum(octets)) if octets else "-",
        }
        yield _row(subflow, subflow, cells)
        upload = subflow["upload"]
        if upload is not None and (upload["rate"] is not None or upload["classid"] is not None):
            yield _row(subflow, upload, {"address": "  upload"})


def _row(subflow: Answer, capped: Answer, cells: dict[str, str]) -> _Row:
    state = _state(capped)
    cells |= {
        "cap": compact.amount(capped["ceil"]),
        "state": state or ("backup" if subflow["backup"] else "-"),
        "class": capped["classid"] or "-",
        "reason": capped["reason"],
    }
    style = _COMING if state in ("coming", "lifting") else _CAPPED if state else ""
    return _Row(cells, state is not None, style)


def _state(capped: Answer) -> str | None:
    if capped["rate"] is None:
        return "lifting" if capped["classid"] else None
    if capped.get("landing"):
        return "coming"
    return "held" if capped["classid"] else "wanted"


def _heading(connection: Answer, rates: Rates, now: float) -> str:
    known = [rates.get(_key(connection, each), (None, None)) for each in connection["subflows"]]
    down, up = (sum(each[side] or 0 for each in known) for side in (0, 1))
    tunnel = f"tunnel {connection['tunnel']}  " if "tunnel" in connection else ""
    relaxed = f"  caps relaxed: {connection['relaxed']}" if connection["relaxed"] else ""
    return (
        f"{connection['client'] or '?'}  {connection['token']}  {tunnel}"
        f"{counted(len(connection['subflows']), 'subflow')}  "
        f"{compact.amount(down)} down  {compact.amount(up)} up  "
        f"{compact.amount(connection['bytes_sent'] + connection['bytes_received'])}B  "
        f"{compact.duration(now - connection['since'])}{relaxed}"
    )


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
