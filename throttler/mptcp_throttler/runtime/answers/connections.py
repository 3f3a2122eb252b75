# SPDX-License-Identifier: GPL-2.0-or-later
"""Answers that show subflows.

``status`` shows all subflows, from the daemon's stored state. ``connections`` shows a page of them, with the state of
their sockets. ``client`` shows the data that the owner of one connection may see; ``budgets`` shows the remaining
volumes of one address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

from mptcp_throttler.mptcp.model import Connection, FourTuple, Sockets, Subflow
from mptcp_throttler.policy.budget import Account, period
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.runtime.answers.snapshot import Snapshot, split_by_direction
from mptcp_throttler.shaping.plan import UNCAPPED, Planner
from mptcp_throttler.views import answers
from mptcp_throttler.views.budgets import budgets_of
from mptcp_throttler.views.requests import Arguments
from mptcp_throttler.views.text import address_text, end_text

# status


def all_connections(snapshot: Snapshot) -> Iterator[answers.StatusConnection]:
    """Yield every connection, one at a time, because there may be ten thousand."""
    samples = snapshot.latest_samples()
    for connection in list(snapshot.connections.values()):
        yield {
            "token": f"{connection.token:08x}",
            "version": 1,
            "since": snapshot.to_wall_clock(connection.since),
            "relaxed": snapshot.engine.guard.reason(connection.token),
            "subflows": list(_subflows(snapshot, connection, samples)),
            **snapshot.tunnel_name(connection),
        }


def classes(snapshot: Snapshot) -> list[answers.ClassAnswer]:
    return [class_answer(planner, minor) for planner in snapshot.planners for minor in sorted(planner.classes.actual)]


def class_answer(planner: Planner, minor: int) -> answers.ClassAnswer:
    spec = planner.classes.actual[minor]
    return {
        "classid": f"{planner.ownership.htb_major:x}:{minor:x}",
        "direction": planner.direction,
        "rate": spec.rate,
        "ceil": spec.ceil,
    }


def _subflows(snapshot: Snapshot, connection: Connection, samples: Sockets) -> Iterator[answers.SubflowAnswer]:
    down, up = split_by_direction(snapshot.verdicts(connection.token))
    clock_offset, paths = snapshot.engine.clock_offset, snapshot.engine.tunnels.table.paths
    downloads, uploads = snapshot.planners
    for subflow in connection.subflows:
        four_tuple = subflow.four_tuple
        local, local_port, remote, remote_port = four_tuple
        sample, verdict, path = samples.get(four_tuple), down.get(four_tuple), paths.get(four_tuple)
        path_name: answers.TunnelPathName = {} if path is None else {"tunnel_path": path.name}
        yield {
            **path_name,
            "local": end_text(local, local_port),
            "remote": end_text(remote, remote_port),
            "initial": subflow.initial,
            "local_id": subflow.local_id,
            "remote_id": subflow.remote_id,
            "backup": subflow.backup,
            "interface": subflow.interface,
            "since": subflow.since + clock_offset,
            "path": None if verdict is None else verdict.path,
            **_cap(four_tuple, verdict, downloads),
            "pacing_limit": None if sample is None else sample.tcp.max_pacing_rate,
            "bytes_sent": None if sample is None else sample.bytes_acked,
            "bytes_received": None if sample is None else sample.bytes_received,
            "upload": _cap(four_tuple, up[four_tuple], uploads) if four_tuple in up else None,
        }


def _cap(four_tuple: FourTuple, verdict: Verdict | None, planner: Planner) -> answers.CapAnswer:
    target = planner.entries.actual.get(four_tuple, UNCAPPED)
    throttle = None if verdict is None else verdict.throttle
    return {
        "rule": None if verdict is None or verdict.rule is None else verdict.rule.name,
        "rate": None if throttle is None else throttle.rate,
        "ceil": None if throttle is None else throttle.ceil,
        "classid": None if target == UNCAPPED else f"{planner.ownership.htb_major:x}:{target.minor:x}",
        "landing": planner.in_onset(four_tuple),
        "reason": "not decided yet" if verdict is None else verdict.reason,
    }


# connections


def connections(snapshot: Snapshot, request: Arguments) -> answers.ConnectionsAnswer:
    """Return the connections that meet every condition of *request*, in the order that it names."""
    client, path, rule, token = (request.get(name) for name in ("client", "path", "rule", "token"))

    def meets_all(connection: Connection) -> bool:
        verdicts = snapshot.verdicts(connection.token)
        capping = (each.rule for each in verdicts if each.throttle is not None and each.rule is not None)
        return (
            token in (None, connection.token)
            and (client is None or any(each.four_tuple.remote == client for each in connection.subflows))
            and (path is None or any(each.path == path for each in verdicts))
            and (rule is None or any(each.name == rule for each in capping))
        )

    sort_key = _SORT_KEYS[request["sort"]]
    matching = sorted(filter(meets_all, snapshot.connections.values()), key=lambda each: sort_key(snapshot, each))
    start, limit = request["offset"], request["limit"]
    page = list(_details(snapshot, matching[start : start + limit]))
    return {**snapshot.common_keys, "total": len(matching), "connections": page}


def _total_bytes(snapshot: Snapshot, connection: Connection) -> int:
    return sum(sum(snapshot.engine.traffic.byte_counts(each.four_tuple)) for each in connection.subflows)


def _total_rate(snapshot: Snapshot, connection: Connection) -> int:
    return sum(sum(filter(None, snapshot.engine.traffic.rates(each.four_tuple))) for each in connection.subflows)


_SORT_KEYS: Final[Mapping[str, Callable[[Snapshot, Connection], Any]]] = {
    "rate": lambda snapshot, connection: (-_total_rate(snapshot, connection), connection.since),
    "bytes": lambda snapshot, connection: (-_total_bytes(snapshot, connection), connection.since),
    "age": lambda _, connection: (connection.since, connection.token),
    "client": lambda _, connection: (len(connection.client), connection.client, connection.since),
}


def _details(snapshot: Snapshot, page: list[Connection]) -> Iterator[answers.ConnectionDetails]:
    samples = snapshot.look_up([each.four_tuple for connection in page for each in connection.subflows])
    for connection in page:
        four_tuples = [each.four_tuple for each in connection.subflows]
        byte_counts = [_byte_counts(snapshot, each, samples) for each in four_tuples]
        rates = [snapshot.engine.traffic.rates(each) for each in four_tuples]
        # The share of the current rates or, if all are zero, of the bytes carried so far.
        weights = [sum(filter(None, each)) for each in rates]
        weights = weights if sum(weights) else [sum(each) for each in byte_counts]
        total = sum(weights)
        subflows: list[answers.SubflowDetails] = []
        for answer, four_tuple, rate, weight in zip(
            _subflows(snapshot, connection, samples), four_tuples, rates, weights, strict=True
        ):
            sample = samples.get(four_tuple)
            tcp = None if sample is None or sample.is_tunnel_path else sample.tcp
            subflows.append(
                {
                    **answer,
                    "rtt": None if tcp is None else tcp.rtt / 1e6,
                    "rtt_var": None if tcp is None else tcp.rtt_variance / 1e6,
                    "retransmits": None if tcp is None else tcp.retransmits,
                    "segments_out": None if tcp is None else tcp.segments_out,
                    "lost": None if tcp is None else tcp.lost,
                    "cwnd": None if tcp is None else tcp.congestion_window,
                    "rate_sent": rate.sent,
                    "rate_received": rate.received,
                    "share": round(weight / total, 4) if total else None,
                }
            )
        yield {
            "token": f"{connection.token:08x}",
            "client": address_text(connection.client),
            "since": snapshot.to_wall_clock(connection.since),
            "version": 1,
            "relaxed": snapshot.engine.guard.reason(connection.token),
            "bytes_sent": sum(sent for sent, _ in byte_counts),
            "bytes_received": sum(received for _, received in byte_counts),
            "subflows": subflows,
            **snapshot.tunnel_name(connection),
        }


def _byte_counts(snapshot: Snapshot, four_tuple: FourTuple, samples: Sockets) -> tuple[int, int]:
    """Return a subflow's bytes sent and received: from *samples* or, if it is missing there, from the last sweep."""
    sample = samples.get(four_tuple)
    if sample is not None:
        return sample.bytes_acked, sample.bytes_received
    return snapshot.engine.traffic.byte_counts(four_tuple)


# client, budgets


def client(snapshot: Snapshot, request: Arguments) -> answers.ClientAnswer:
    """Return the data that the owner of the requested connection may see; no data if several or no connections match.
    A token takes precedence over an endpoint: another connection may use the endpoint of an ended subflow."""
    token, local = request.get("token"), request.get("local")
    if token is not None:
        connection = snapshot.connections.get(token)
    else:
        candidates = snapshot.connections_with(request["endpoint"])
        matching = [each for each, subflow in candidates if local in (None, subflow.four_tuple[:2])]
        connection = matching[0] if len(matching) == 1 else None
    return {
        **snapshot.common_keys,
        "multipath": connection is not None,
        "since": None if connection is None else snapshot.to_wall_clock(connection.since),
        "time_zone": str(snapshot.policy.time_zone),
        "subflows": [] if connection is None else list(_own_subflows(snapshot, connection)),
        "budgets": [] if connection is None else _connection_budgets(snapshot, connection),
    }


def _own_subflows(snapshot: Snapshot, connection: Connection) -> Iterator[answers.OwnSubflow]:
    """Yield the active subflows of *connection* as its owner may see them. Caps of a dry run do not count."""
    verdicts = snapshot.applied_verdicts(connection.token)
    down, up = split_by_direction(each for each in verdicts if each.throttle is not None)
    paths = {each.four_tuple: each.path for each in verdicts}
    samples = snapshot.look_up([each.four_tuple for each in connection.subflows])
    for four_tuple in (each.four_tuple for each in connection.subflows):
        cap, upload = down.get(four_tuple), up.get(four_tuple)
        sent, received = _byte_counts(snapshot, four_tuple, samples)
        yield {
            "path": paths.get(four_tuple),
            "address": address_text(four_tuple.remote),
            "capped": cap is not None,
            "rate": None if cap is None or cap.throttle is None else cap.throttle.ceil,
            "rule": None if cap is None or cap.rule is None else cap.rule.name,
            "upload_rate": None if upload is None or upload.throttle is None else upload.throttle.ceil,
            "bytes": sent + received,
            "bytes_sent": sent,
            "bytes_received": received,
        }


def _connection_budgets(snapshot: Snapshot, connection: Connection) -> list[answers.OwnBudget]:
    names = _budget_names(snapshot.verdicts(connection.token))
    clients = {address_text(each.four_tuple.remote) or "" for each in connection.subflows}
    rows = budgets_of(snapshot.policy, snapshot.engine.budget_stage.accounts.used, snapshot.now, clients)
    return [_own_budget(each) for each in rows if each["name"] in names]


def budgets(snapshot: Snapshot, request: Arguments) -> answers.BudgetsAnswer:
    """Return the accounts of an address and those that it shares with others, the fullest first. The address need not
    have a connection: an operating system queries the remaining volume when it joins a network, before it opens a
    connection. So budgets that would meter a subflow from the address are included."""
    policy, address = snapshot.policy, request["client"]
    text = address_text(address) or ""
    all_verdicts = snapshot.engine.decisions.verdicts.values()
    verdicts_on_client = (each for verdicts in all_verdicts for each in verdicts if each.four_tuple.remote == address)
    names = _potential_budgets(snapshot, address) | _budget_names(verdicts_on_client)
    unused = {
        Account(each.name, text, period(each, policy.time_zone, snapshot.now)[0]): 0
        for each in policy.budgets.values()
        if each.per_client and each.name in names
    }
    rows = budgets_of(policy, unused | dict(snapshot.engine.budget_stage.accounts.used), snapshot.now, {text})
    own_budgets = [_own_budget(each) for each in rows if each["client"] is not None or each["name"] in names]
    return {**snapshot.common_keys, "budgets": own_budgets}


def _potential_budgets(snapshot: Snapshot, address: bytes) -> set[str]:
    """Return the budgets that would meter the first or second subflow from *address*, on any interface."""
    now = snapshot.now
    four_tuples = [FourTuple(bytes(len(address)), 0, address, port) for port in (0, 1)]
    subflows = tuple(Subflow(each, not each.remote_port, None, None, False, None, now) for each in four_tuples)
    verdict_sets = (evaluate(snapshot.policy, Connection(0, subflows[:count], now), now) for count in (1, 2))
    return _budget_names(each for verdicts in verdict_sets for each in verdicts)


def _budget_names(verdicts: Iterable[Verdict]) -> set[str]:
    return {each.budget.budget.name for each in verdicts if each.budget is not None and each.budget.budget is not None}


def _own_budget(row: answers.AccountAnswer) -> answers.OwnBudget:
    without_rule = {key: value for key, value in row.items() if key != "rule"}
    return cast("answers.OwnBudget", {**without_rule, "shared": row["client"] is None})
