"""The status as a JSON document: what is known of each connection, what was decided and why, what the kernel has.

Times are seconds since the epoch, rates bits/s, sizes bytes. Everything is read from what the daemon has stored:
nothing is decided or sampled for it. Connections come one at a time, because there may be ten thousand.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import lru_cache
from typing import Any

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Subflow, SubflowState
from mptcp_throttler.policy.model import Direction, Verdict
from mptcp_throttler.shaping.plan import UNCAPPED, Planner
from mptcp_throttler.views.known import Known


def document(
    shown: Known,
    head: Mapping[str, Any],
    tail: Mapping[str, Any],
    samples: Callable[[], Mapping[FourTuple, KernelSubflow]],
) -> Iterator[str]:
    """Yield the text of the document in pieces, one for each connection; *head* comes before them, *tail* after.

    *samples* returns the last samples: it may take a while, and is asked after the head was given.
    """
    yield json.dumps(head)[:-1] + ', "connections": ['
    sockets = samples()
    landing = frozenset(shown.download.onsets()), frozenset(shown.upload.onsets())
    separator = ""
    for connection in list(shown.connections.values()):
        yield separator + _connection(connection, shown, sockets, landing)
        separator = ", "
    yield "], " + json.dumps(tail)[1:]


def by_direction(verdicts: Iterable[Verdict]) -> tuple[dict[FourTuple, Verdict], dict[FourTuple, Verdict]]:
    """Return the verdicts on what is sent to the client, and on what comes from it, by subflow."""
    down: dict[FourTuple, Verdict] = {}
    up: dict[FourTuple, Verdict] = {}
    for verdict in verdicts:
        (down if verdict.direction is Direction.DOWN else up)[verdict.four_tuple] = verdict
    return down, up


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


def _connection(
    connection: Connection,
    shown: Known,
    sockets: Mapping[FourTuple, KernelSubflow],
    landing: tuple[Set[FourTuple], Set[FourTuple]],
) -> str:
    # Written by hand: an encoder takes three times as long, and there may be twenty thousand subflows.
    down, up = by_direction(shown.verdicts.get(connection.token, ()))
    on_download, on_upload = landing
    texts = []
    for each in connection.subflows:
        known = each.four_tuple
        coming = known in on_download, known in on_upload
        texts.append(subflow_text(each, down.get(known), up.get(known), sockets.get(known), shown, *coming))
    return (
        f'{{"token": "{connection.token:08x}", "version": 1, "since": {shown.wall(connection.since)!r}, '
        f'"relaxed": {_text(shown.relaxed(connection.token))}, "subflows": [{", ".join(texts)}]}}'
    )


def subflow_text(
    subflow: Subflow,
    verdict: Verdict | None,
    upload: Verdict | None,
    sample: KernelSubflow | None,
    shown: Known,
    landing: bool,
    upload_landing: bool,
) -> str:
    """Return the text of one subflow's object. *landing*, *upload_landing*: its caps are still to come into force."""
    four_tuple = subflow.four_tuple
    sent, received, pacing = "null", "null", None
    if sample is not None:
        sent, received = str(sample.bytes_acked), str(sample.bytes_received)
        pacing = None if sample.tcp is None else sample.tcp.max_pacing_rate
    local, local_port, remote, remote_port = four_tuple
    state = subflow.state
    if verdict is None:
        path, cap, reason = "null", _cap(four_tuple, None, shown.download), _text(_why_no_verdict(state))
    else:
        path, cap, reason = _text(verdict.path), _cap(four_tuple, verdict, shown.download), _text(verdict.reason)
    return (
        f'{{"local": {_own_end(local, local_port)}, "remote": "{end_text(remote, remote_port)}", '
        f"{_kind(state, subflow.initial, subflow.local_id, subflow.remote_id, subflow.backup, subflow.interface)}, "
        f'"since": {shown.wall(subflow.since)!r}, "path": {path}, {cap}, '
        f'"landing": {"true" if landing else "false"}, '
        f'"pacing_limit": {"null" if pacing is None else pacing}, '
        f'"reason": {reason}, "bytes_sent": {sent}, "bytes_received": {received}, '
        f'"upload": {"null" if upload is None else _upload(upload, shown.upload, upload_landing)}}}'
    )


def _upload(verdict: Verdict, planner: Planner, landing: bool) -> str:
    """Return what holds for what comes from the client."""
    cap, reason = _cap(verdict.four_tuple, verdict, planner), _text(verdict.reason)
    return f'{{{cap}, "landing": {"true" if landing else "false"}, "reason": {reason}}}'


def _cap(four_tuple: FourTuple, verdict: Verdict | None, planner: Planner) -> str:
    target = planner.entries.actual.get(four_tuple)
    minor = None if target is None or target == UNCAPPED else target.minor
    throttle = verdict.throttle if verdict else None
    rule = verdict.rule.name if verdict and verdict.rule else None
    rate, ceil = (None, None) if throttle is None else (throttle.rate, throttle.ceil)
    return _cap_text(rule, rate, ceil, planner.ownership.htb_major, minor)


# The same few names, reasons, caps and kinds of subflows come again and again.


@lru_cache(4096)
def _cap_text(rule: str | None, rate: int | None, ceil: int | None, major: int, minor: int | None) -> str:
    classid = None if minor is None else f"{major:x}:{minor:x}"
    return json.dumps({"rule": rule, "rate": rate, "ceil": ceil, "classid": classid})[1:-1]


@lru_cache(4096)
def _kind(
    state: SubflowState,
    initial: bool,
    local_id: int | None,
    remote_id: int | None,
    backup: bool,
    interface: str | None,
) -> str:
    ids = {"local_id": local_id, "remote_id": remote_id}
    return json.dumps({"state": state.value, "initial": initial, **ids, "backup": backup, "interface": interface})[1:-1]


@lru_cache(4096)
def _text(value: str | None) -> str:
    return json.dumps(value)


@lru_cache(256)
def _own_end(address: bytes, port: int) -> str:
    return f'"{end_text(address, port)}"'


def _why_no_verdict(state: SubflowState) -> str:
    return f"not active ({state.value})"


def end_text(address: bytes, port: int) -> str:
    """Return an address with its port as people write it."""
    if len(address) == 4:
        return f"{socket.inet_ntoa(address)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}"
