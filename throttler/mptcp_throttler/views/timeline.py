"""A replayed capture as lines for people, or as JSON, one object a line with the keys of ``events --json``. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from ipaddress import ip_address
from typing import Any, Final

from mptcp_common.units import approximate_size, counted
from mptcp_throttler.mptcp.model import TcpFlag
from mptcp_throttler.views.option_words import options_in_words
from mptcp_throttler.views.replay import Replay
from mptcp_throttler.views.replayed import Caps, Entry

_FLAGS: Final = ((TcpFlag.SYN, "SYN"), (TcpFlag.FIN, "FIN"), (TcpFlag.RST, "RST"), (TcpFlag.ACK, "ACK"))
_BY_TIME: Final = ("clock", "budget")
"""Kinds of what no segment brings about."""
_CLOCK: Final = "%H:%M:%S.%f"


class Timeline:
    """Lines for people, in the time of *zone*."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._day: str | None = None

    def lines(self, entry: Entry) -> Iterator[str]:
        """Yield the line of *entry*; before the first of a day, one with the date."""
        at = datetime.fromtimestamp(entry.time, self._zone)
        day = at.strftime("%Y-%m-%d %Z").strip()
        if day != self._day:
            self._day = day
            yield day
        end = "" if entry.four_tuple is None else remote_end(entry)
        if entry.captured is None:
            clock = at.strftime(_CLOCK) if entry.kind in _BY_TIME else " " * len("00:00:00.000000")
            about = f"{end} " if end and entry.kind != "connection" else ""
            yield f"{clock}  {about}{entry.text}"
            return
        yield f"{at.strftime(_CLOCK)}  {end} {'>' if entry.from_client else '<'} {_what(entry)}"


def as_json(entry: Entry) -> str:
    """Return *entry* as one line of JSON. Times are seconds since the epoch, rates bits/s."""
    shown: dict[str, Any] = {"time": entry.time, "kind": entry.kind}
    if entry.token is not None:
        shown["token"] = f"{entry.token:08x}"
    if entry.four_tuple is not None:
        shown["remote"] = remote_end(entry)
        shown["local"] = _end(entry.four_tuple.local, entry.four_tuple.local_port)
    for key in ("path", "rule", "rate", "ceil"):
        if (value := getattr(entry, key)) is not None:
            shown[key] = value
    if entry.direction is not None:
        shown["direction"] = entry.direction.value
    if entry.captured is not None:
        shown["from"] = "client" if entry.from_client else "proxy"
    shown["text"] = entry.text if entry.captured is None else _what(entry)
    return json.dumps(shown)


def summary(replay: Replay) -> Iterator[str]:
    """Yield what came out of all."""
    totals = replay.totals
    yield (
        f"{counted(totals.connections, 'connection')}, {counted(totals.subflows, 'subflow')} and "
        f"{counted(totals.segments, 'segment')} of the proxy's in {totals.seconds:.1f} s"
    )
    for rule, caps in totals.caps.items():
        yield f"rule {rule}: {_caps(caps)}"
    for each in replay.accounts():
        whose = f" of client {each['client']}" if each["client"] else ""
        used = f"{approximate_size(each['used'])} of {approximate_size(each['volume'])} used"
        yield f"budget {each['name']}{whose}: {used}"


def summary_json(replay: Replay, notes: list[str]) -> str:
    """Return the last line of JSON."""
    totals = replay.totals
    rules = {
        rule: {"caps": each.count, "seconds": each.seconds, "bytes": each.carried} for rule, each in totals.caps.items()
    }
    counts = {"connections": totals.connections, "subflows": totals.subflows, "segments": totals.segments}
    shown = {"rules": rules, "budgets": replay.accounts(), "notes": notes}
    return json.dumps({"time": totals.last, "kind": "summary", **counts, **shown})


def notes(replay: Replay) -> Iterator[str]:
    """Yield what a reader has to know who takes the timeline for the whole truth."""
    counters, older = replay.counters, replay.totals.older
    if older:
        yield f"{counted(older, 'subflow')} began before the capture: not tracked; a daemon takes them from the kernel"
    if copies := replay.totals.copies:
        yield (
            f"{counted(copies, 'segment')} captured twice, as where an interface lies on another (a bridge, a VLAN, a "
            "bond): shown and counted once"
        )
    if counters.version_0:
        yield f"{counted(counters.version_0, 'SYN')} for MPTCP version 0 (RFC 6824), which is not tracked"
    if counters.misdirected:
        yield (
            f"{counted(counters.misdirected, 'segment')} ignored, for the proxy's host sent what is from a client, or "
            "the other way round: forged, or captured elsewhere than on the proxy (--elsewhere)"
        )
    if counters.malformed:
        yield f"{counted(counters.malformed, 'MPTCP option')} that no RFC has"
    if counters.unproven_joins:
        yield f"{counted(counters.unproven_joins, 'join')} whose HMAC could not be checked, for keys are missing"
    if counters.overflows:
        yield f"{counted(counters.overflows, 'subflow')} not tracked, for there were too many"


def remote_end(entry: Entry) -> str:
    """Return the client's end of the subflow of *entry*."""
    assert entry.four_tuple is not None
    return _end(entry.four_tuple.remote, entry.four_tuple.remote_port)


def _end(address: bytes, port: int) -> str:
    text = str(ip_address(address))
    return f"[{text}]:{port}" if len(address) == 16 else f"{text}:{port}"


def _what(entry: Entry) -> str:
    """Return flags and options of a segment."""
    assert entry.captured is not None
    segment = entry.captured.segment
    flags = " ".join(name for bit, name in _FLAGS if segment.flags & bit) or "no flags"
    words = options_in_words(entry.captured.header) if segment.options else ""
    if not words and segment.flags & TcpFlag.SYN:
        words = "plain TCP"
    return ": ".join(part for part in (flags, words, entry.text) if part)


def _caps(caps: Caps) -> str:
    return f"{counted(caps.count, 'cap')}, {caps.seconds:.1f} s and {approximate_size(caps.carried)} in all"
