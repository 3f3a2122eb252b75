"""The answer to ``connections``: those that are asked for, a page of them, with how their sockets are doing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, SocketDetails, Subflow
from mptcp_throttler.policy.model import Verdict
from mptcp_throttler.views.known import Known
from mptcp_throttler.views.requests import Request
from mptcp_throttler.views.snapshot import by_direction, subflow_text
from mptcp_throttler.views.words import address_text

DEFAULT_LIMIT = 50


def connections(known: Known, request: Request) -> Iterator[str]:
    """Yield the text of the answer's keys, without braces."""
    found = list(_matching(known, request))
    key = _SORTS[request.get("sort", "age")]
    found.sort(key=partial(key, known))
    start: int = request.get("offset", 0)
    page = found[start : start + request.get("limit", DEFAULT_LIMIT)]
    samples, details = known.sockets.look_up([each.four_tuple for one in page for each in one.subflows])
    yield f'"total": {len(found)}, "connections": ['
    separator = ""
    for connection in page:
        yield separator + _connection(known, connection, samples, details)
        separator = ", "
    yield "]"


def _matching(known: Known, request: Request) -> Iterator[Connection]:
    client, path, rule, token = (request.get(name) for name in ("client", "path", "rule", "token"))
    for connection in list(known.connections.values()):
        if token is not None and connection.token != token:
            continue
        if client is not None and all(each.four_tuple.remote != client for each in connection.subflows):
            continue
        verdicts = known.verdicts.get(connection.token, ())
        if path is not None and all(each.path != path for each in verdicts):
            continue
        if rule is not None and not any(_is_capped_by(each, rule) for each in verdicts):
            continue
        yield connection


def _is_capped_by(verdict: Verdict, rule: str) -> bool:
    return verdict.throttle is not None and verdict.rule is not None and verdict.rule.name == rule


def _rate(known: Known, connection: Connection) -> Any:
    rates = [known.traffic.rates(each.four_tuple) for each in connection.subflows]
    return -sum((each.sent or 0) + (each.received or 0) for each in rates), connection.since


def _bytes(known: Known, connection: Connection) -> Any:
    return -sum(sum(known.traffic.carried(each.four_tuple)) for each in connection.subflows), connection.since


def _age(known: Known, connection: Connection) -> Any:
    return connection.since, connection.token


def _client(known: Known, connection: Connection) -> Any:
    address = connection.client
    return len(address), address, connection.since


_SORTS: dict[str, Callable[[Known, Connection], Any]] = {
    "rate": _rate,
    "bytes": _bytes,
    "age": _age,
    "client": _client,
}


def _connection(
    known: Known,
    connection: Connection,
    samples: Mapping[FourTuple, KernelSubflow],
    details: Mapping[FourTuple, SocketDetails],
) -> str:
    down, up = by_direction(known.verdicts.get(connection.token, ()))
    carried = {each.four_tuple: _carried(known, each, samples) for each in connection.subflows}
    shares = _shares(known, connection, carried)
    subflows = []
    for each in connection.subflows:
        four_tuple = each.four_tuple
        sample = samples.get(four_tuple)
        landing = (planner.in_onset(four_tuple) for planner in (known.download, known.upload))
        text = subflow_text(each, down.get(four_tuple), up.get(four_tuple), sample, known, *landing)
        more = json.dumps(_more(known, four_tuple, sample, details.get(four_tuple)) | {"share": shares[four_tuple]})
        subflows.append(f"{text[:-1]}, {more[1:]}")
    head = {
        "token": f"{connection.token:08x}",
        "client": address_text(connection.client),
        "since": known.wall(connection.since),
        "version": 1,
        "relaxed": known.relaxed(connection.token),
        "bytes_sent": sum(each[0] for each in carried.values()),
        "bytes_received": sum(each[1] for each in carried.values()),
    }
    return f'{json.dumps(head)[:-1]}, "subflows": [{", ".join(subflows)}]}}'


def _carried(known: Known, subflow: Subflow, samples: Mapping[FourTuple, KernelSubflow]) -> tuple[int, int]:
    sample = samples.get(subflow.four_tuple)
    return known.traffic.carried(subflow.four_tuple) if sample is None else (sample.bytes_acked, sample.bytes_received)


def _shares(
    known: Known, connection: Connection, carried: dict[FourTuple, tuple[int, int]]
) -> dict[FourTuple, float | None]:
    """Return each subflow's share of what the connection carries now, where that is known, else of what it carried."""
    rates = {each.four_tuple: known.traffic.rates(each.four_tuple) for each in connection.subflows}
    now = {four_tuple: (each.sent or 0) + (each.received or 0) for four_tuple, each in rates.items()}
    weights = now if sum(now.values()) else {four_tuple: sum(each) for four_tuple, each in carried.items()}
    total = sum(weights.values())
    return {four_tuple: round(each / total, 4) if total else None for four_tuple, each in weights.items()}


def _more(
    known: Known, four_tuple: FourTuple, sample: KernelSubflow | None, details: SocketDetails | None
) -> dict[str, Any]:
    rates = known.traffic.rates(four_tuple)
    tcp = None if sample is None else sample.tcp
    return {
        "rtt": None if tcp is None else tcp.rtt / 1e6,
        "rtt_var": None if details is None else details.rtt_variance / 1e6,
        "retransmits": None if details is None else details.retransmits,
        "segments_out": None if details is None else details.segments_out,
        "lost": None if details is None else details.lost,
        "cwnd": None if details is None else details.congestion_window,
        "rate_sent": rates.sent,
        "rate_received": rates.received,
    }
