"""The status as a JSON document: what is known of each connection, what was decided and why, what the kernel has.

Times are seconds since the epoch, rates bits/s, sizes bytes. Everything is read from what the daemon has stored:
nothing is decided or sampled for it. Connections come one at a time, because there may be ten thousand.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Subflow, SubflowState
from mptcp_throttler.policy.model import Direction, Verdict
from mptcp_throttler.shaping.plan import Planner


@dataclass(frozen=True, slots=True)
class Shown:
    """What the document is made from."""

    head: Mapping[str, Any]
    """What comes before the connections, as it is to be shown."""
    tail: Mapping[str, Any]
    connections: Iterable[Connection]
    verdicts: Mapping[int, tuple[Verdict, ...]]
    download: Planner
    upload: Planner
    relaxed: Callable[[int], str | None]
    """Why the caps of a connection are relaxed; None while they are not."""
    sockets: Mapping[FourTuple, KernelSubflow]
    """The last samples."""


def document(shown: Shown) -> Iterator[str]:
    """Yield the text of the document in pieces, one for each connection."""
    yield json.dumps(shown.head)[:-1] + ', "connections": ['
    separator = ""
    for connection in list(shown.connections):
        yield separator + _connection(connection, shown)
        separator = ", "
    yield "], " + json.dumps(shown.tail)[1:]


def classes(planners: Iterable[Planner]) -> list[dict[str, Any]]:
    """Return the classes that are in the kernel."""
    return [
        {
            "classid": f"{planner.ownership.htb_major:x}:{minor:x}",
            "direction": planner.direction.value,
            "rate": spec.rate,
            "ceil": spec.ceil,
        }
        for planner in planners
        for minor, spec in sorted(planner.classes.actual.items())
    ]


def _connection(connection: Connection, shown: Shown) -> str:
    # Written by hand: an encoder takes three times as long, and there may be twenty thousand subflows.
    down: dict[FourTuple, Verdict] = {}
    up: dict[FourTuple, Verdict] = {}
    for verdict in shown.verdicts.get(connection.token, ()):
        (down if verdict.direction is Direction.DOWN else up)[verdict.four_tuple] = verdict
    subflows = ", ".join([_subflow(each, down.get(each.four_tuple), up, shown) for each in connection.subflows])
    return (
        f'{{"token": "{connection.token:08x}", "version": 1, "since": {connection.since!r}, '
        f'"relaxed": {_text(shown.relaxed(connection.token))}, "subflows": [{subflows}]}}'
    )


def _subflow(subflow: Subflow, verdict: Verdict | None, up: Mapping[FourTuple, Verdict], shown: Shown) -> str:
    four_tuple = subflow.four_tuple
    sample = shown.sockets.get(four_tuple)
    sent, received, pacing = "null", "null", None
    if sample is not None:
        sent, received = str(sample.bytes_acked), str(sample.bytes_received)
        pacing = None if sample.tcp is None else sample.tcp.max_pacing_rate
    upload = up.get(four_tuple)
    return (
        f'{{"local": "{_end(four_tuple.local, four_tuple.local_port)}", '
        f'"remote": "{_end(four_tuple.remote, four_tuple.remote_port)}", '
        f'"state": "{subflow.state.value}", "initial": {_flag(subflow.initial)}, '
        f'"local_id": {_number(subflow.local_id)}, "remote_id": {_number(subflow.remote_id)}, '
        f'"backup": {_flag(subflow.backup)}, "interface": {_text(subflow.interface)}, "since": {subflow.since!r}, '
        f'"path": {_text(verdict.path if verdict else None)}, {_cap(four_tuple, verdict, shown.download)}, '
        f'"landing": {_flag(shown.download.is_pending(four_tuple))}, "pacing_limit": {_number(pacing)}, '
        f'"reason": {_text(verdict.reason if verdict else _why_no_verdict(subflow.state))}, '
        f'"bytes_sent": {sent}, "bytes_received": {received}, "upload": {_upload(upload, shown.upload)}}}'
    )


def _upload(verdict: Verdict | None, planner: Planner) -> str:
    """Return what holds for what comes from the client; null where no rule is for uploads."""
    if verdict is None:
        return "null"
    return f'{{{_cap(verdict.four_tuple, verdict, planner)}, "reason": {_text(verdict.reason)}}}'


def _cap(four_tuple: FourTuple, verdict: Verdict | None, planner: Planner) -> str:
    target = planner.entries.actual.get(four_tuple)
    throttle = verdict.throttle if verdict else None
    rule = verdict.rule.name if verdict and verdict.rule else None
    rate, ceil = ("null", "null") if throttle is None else (throttle.rate, throttle.ceil)
    classid = "null" if target is None else f'"{planner.ownership.htb_major:x}:{target.minor:x}"'
    return f'"rule": {_text(rule)}, "rate": {rate}, "ceil": {ceil}, "classid": {classid}'


@lru_cache(4096)
def _text(value: str | None) -> str:
    """Return *value* as JSON; the same few names and reasons come again and again."""
    return json.dumps(value)


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _why_no_verdict(state: SubflowState) -> str:
    return f"not active ({state.value})"


def _end(address: bytes, port: int) -> str:
    if len(address) == 4:
        return f"{socket.inet_ntoa(address)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}"
