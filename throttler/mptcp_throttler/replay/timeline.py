"""Print a replay as text lines, or as JSON lines with the keys of ``events --json``. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from ipaddress import ip_address
from typing import Any, Final

from mptcp_common.units import approximate_size, counted
from mptcp_throttler.mptcp.model import TcpFlag
from mptcp_throttler.mptcp.options import (
    AddAddr,
    Dss,
    Malformed,
    MpCapable,
    MpFail,
    MpFastclose,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MpPrio,
    MptcpOption,
    MpTcprst,
    RemoveAddr,
    UnknownSubtype,
)
from mptcp_throttler.replay.replay import Entry, Replay
from mptcp_throttler.views.words import end_text

_FLAGS: Final = ((TcpFlag.SYN, "SYN"), (TcpFlag.FIN, "FIN"), (TcpFlag.RST, "RST"), (TcpFlag.ACK, "ACK"))
_BY_TIME: Final = ("clock", "budget")
"""Kinds of entries without a segment as their cause."""
_CLOCK: Final = "%H:%M:%S.%f"
_VERSION_0: Final = "asks for MPTCP version 0 (RFC 6824), which Linux answers in plain TCP: not tracked"
_RESET_REASONS: Final = (
    "unspecified",
    "MPTCP-specific",
    "lack of resources",
    "administratively prohibited",
    "too much outstanding data",
    "unacceptable performance",
    "middlebox interference",
)
"""By number: RFC 8684, 3.6."""
_NOTES: Final = {
    "version_0": ("SYN", " for MPTCP version 0 (RFC 6824), which is not tracked"),
    "misdirected": (
        "segment",
        " ignored, for the proxy's host sent what is from a client, or the other way round: forged, or captured "
        "elsewhere than on the proxy (--elsewhere)",
    ),
    "malformed": ("MPTCP option", " that no RFC has"),
    "unproven_joins": ("join", " whose HMAC could not be checked, for keys are missing"),
    "overflows": ("subflow", " not tracked, for there were too many"),
}
"""By tracker counter: the noun that it counts, and what the reader must know about it."""


class Timeline:
    """Text lines, in the time of *zone*."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._day: str | None = None

    def lines(self, entry: Entry) -> Iterator[str]:
        """Yield the line of *entry*, after a line with the date if the day changed."""
        at = datetime.fromtimestamp(entry.time, self._zone)
        day = at.strftime("%Y-%m-%d %Z").strip()
        if day != self._day:
            self._day = day
            yield day
        end = "" if entry.four_tuple is None else _remote_end(entry)
        if entry.segment is None:
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
        shown["remote"] = _remote_end(entry)
        shown["local"] = end_text(entry.four_tuple.local, entry.four_tuple.local_port)
    for key in ("path", "rule", "rate", "ceil"):
        if (value := getattr(entry, key)) is not None:
            shown[key] = value
    if entry.direction is not None:
        shown["direction"] = entry.direction.value
    if entry.segment is not None:
        shown["from"] = "client" if entry.from_client else "proxy"
    shown["text"] = entry.text if entry.segment is None else _what(entry)
    return json.dumps(shown)


def summary(replay: Replay) -> Iterator[str]:
    """Yield the totals as text lines."""
    seconds = replay.now - (replay.first or 0.0)
    yield (
        f"{counted(replay.connections, 'connection')}, {counted(replay.subflows, 'subflow')} and "
        f"{counted(replay.segments, 'segment')} of the proxy's in {seconds:.1f} s"
    )
    for rule, caps in replay.rules.items():
        sizes = f"{caps.seconds:.1f} s and {approximate_size(caps.carried)} in all"
        yield f"rule {rule}: {counted(caps.caps, 'cap')}, {sizes}"
    for each in replay.accounts():
        whose = f" of client {each['client']}" if each["client"] else ""
        used = f"{approximate_size(each['used'])} of {approximate_size(each['volume'])} used"
        yield f"budget {each['name']}{whose}: {used}"


def summary_json(replay: Replay, notes: list[str]) -> str:
    """Return the totals as the last JSON line."""
    rules = {
        rule: {"caps": each.caps, "seconds": each.seconds, "bytes": each.carried} for rule, each in replay.rules.items()
    }
    counts = {"connections": replay.connections, "subflows": replay.subflows, "segments": replay.segments}
    shown = {"rules": rules, "budgets": replay.accounts(), "notes": notes}
    return json.dumps({"time": replay.now, "kind": "summary", **counts, **shown})


def notes(replay: Replay) -> Iterator[str]:
    """Yield what the timeline lacks, and why."""
    if replay.older:
        began = f"{counted(replay.older, 'subflow')} began before the capture"
        yield f"{began}: not tracked; a daemon takes them from the kernel"
    for name, (what, about) in _NOTES.items():
        if count := replay.counters[name]:
            yield f"{counted(count, what)}{about}"


def _remote_end(entry: Entry) -> str:
    assert entry.four_tuple is not None
    return end_text(entry.four_tuple.remote, entry.four_tuple.remote_port)


def _end(address: bytes, port: int | None) -> str:
    text = f"[{ip_address(address)}]" if len(address) == 16 else str(ip_address(address))
    return text if port is None else f"{text}:{port}"


def _what(entry: Entry) -> str:
    segment = entry.segment
    assert segment is not None
    flags = " ".join(name for bit, name in _FLAGS if segment.flags & bit) or "no flags"
    words = "; ".join(map(in_words, segment.options))
    if segment.flags & TcpFlag.SYN:
        version_0 = any(isinstance(each, MpCapable) and each.version == 0 for each in segment.options)
        if version_0 and entry.from_client and not segment.flags & TcpFlag.ACK:
            words = f"{words}: {_VERSION_0}"
        words = words or "plain TCP"
    return f"{flags}: {words}" if words else flags


def in_words(option: MptcpOption) -> str:
    """Describe one option (RFC 8684, 3). Keys are left out: they are secrets."""
    match option:
        case MpCapable():
            words = [f"MP_CAPABLE version {option.version}"]
            if option.receiver_key is not None:
                words.append("both keys")
            elif option.sender_key is not None:
                words.append("the sender's key")
            words += ["with checksums"] if option.checksum_required else []
            words += ["no join to this address"] if option.no_more_joins else []
            words += [] if option.data_length is None else [f"{counted(option.data_length, 'byte')} of data"]
            return ", ".join(words)
        case MpJoinSyn():
            joined = f"connection {option.token:08x}, address id {option.address_id}"
            return f"MP_JOIN to {joined}{', backup' if option.backup else ''}"
        case MpJoinSynAck():
            proof = f"address id {option.address_id}, HMAC {option.hmac.hex()}"
            return f"MP_JOIN, {proof}{', backup' if option.backup else ''}"
        case MpJoinAck():
            return f"MP_JOIN, HMAC {option.hmac.hex()}"
        case Dss():
            words = ["DSS"]
            if option.data_length is not None:
                words.append(f"{counted(option.data_length, 'byte')} from {option.data_sequence}")
            words += [] if option.data_ack is None else [f"acknowledges {option.data_ack}"]
            words += ["DATA_FIN"] if option.data_fin else []
            return ", ".join(words)
        case AddAddr():
            end = _end(option.address, option.port)
            return f"ADD_ADDR id {option.address_id}: {end}{', echo' if option.echo else ''}"
        case RemoveAddr():
            return f"REMOVE_ADDR id {', '.join(map(str, option.address_ids))}"
        case MpPrio():
            which = "" if option.address_id is None else f" for address id {option.address_id}"
            return f"MP_PRIO: {'backup' if option.backup else 'regular'}{which}"
        case MpFail():
            return f"MP_FAIL: wrong checksum at {option.data_sequence}"
        case MpFastclose():
            return "MP_FASTCLOSE"
        case MpTcprst(reason=number):
            reason = _RESET_REASONS[number] if number < len(_RESET_REASONS) else f"reason {number}"
            return f"MP_TCPRST: {reason}{', transient' if option.transient else ''}"
        case UnknownSubtype():
            return f"an MPTCP option of subtype {option.subtype}, which no RFC has"
        case Malformed():
            subtype = "" if option.subtype is None else f" of subtype {option.subtype}"
            return f"a broken MPTCP option{subtype}: {option.reason}"
