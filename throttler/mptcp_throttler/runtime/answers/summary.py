# SPDX-License-Identifier: GPL-2.0-or-later
"""The answers to ``head``, ``summary`` and ``clients``: totals.

For ``head`` and ``summary``, neither size nor cost depends on the number of connections: the daemon updates the counts
with each decision, and only caps in transition are visited here. ``clients`` lists the usage of each client. It visits
each connection once, and creates rows only for the clients that are shown.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final, cast

from mptcp_common.tcp_table import ESTABLISHED, sockets
from mptcp_throttler.mptcp.model import FourTuple, unmap_endpoints
from mptcp_throttler.policy.model import Direction, Policy, Rule, Share
from mptcp_throttler.runtime.answers.connections import class_answer
from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.telemetry.traffic import CapKey, CapTotal
from mptcp_throttler.views import answers
from mptcp_throttler.views.budgets import budget_rows, budgets_of
from mptcp_throttler.views.requests import Arguments
from mptcp_throttler.views.text import address_text, describe_paths, describe_rules

log = logging.getLogger(__name__)

MAX_CLASSES: Final = 256  # Maximum number of listed classes. A policy with caps per client may have more.
MAX_ACCOUNTS: Final = 100  # maximum number of listed accounts; with more budgets than this, one account of each
MAX_TUNNEL_PATHS: Final = 1000


def head(snapshot: Snapshot, _: Arguments) -> answers.HeadAnswer:
    engine, policy, settings = snapshot.engine, snapshot.policy, snapshot.settings
    return {
        **snapshot.common_keys,
        "started": snapshot.to_wall_clock(engine.started),
        "now": snapshot.now,
        "interfaces": list(settings.interfaces),
        "listen_ports": list(settings.ownership.listen_ports),
        "netfilter": engine.downloads.backend,
        "paced": engine.socket_limiter.can_pace,
        "policy": {
            "source": str(settings.policy),
            "dry_run": snapshot.is_dry,
            "rules": [rule.name for rule in policy.rules],
        },
        "reloads": snapshot.reloads,
        "ledger_error": snapshot.budgets.write_error,
        "path_manager": "user space" if engine.path_manager.is_active else "kernel",
        "uploads_shaped": engine.uploads.is_installed,
        "in_step": all(each.classes.settled and each.entries.settled for each in snapshot.planners),
    }


def counters(snapshot: Snapshot) -> dict[str, Any]:
    engine = snapshot.engine
    download, upload = engine.downloads, engine.uploads
    return {
        "observers": asdict(snapshot.observers.counters),
        "tracker": asdict(engine.tracker.counters),
        "reconciler": asdict(download.reconciler.counters),
        "upload_reconciler": None if upload.reconciler is None else asdict(upload.reconciler.counters),
        "changes": asdict(snapshot.drift.counters),
        "guard": {name: round(count) for name, count in asdict(engine.guard.counters).items()},
        "sampler": engine.sampler.as_json(),
        "loop": snapshot.loop_delay.as_json(),
        "entries": len(download.planner.entries.actual),
        "upload_entries": len(upload.planner.entries.actual),
        "tables": dict(engine.tracker.table_sizes),
    }


def policy(snapshot: Snapshot, _: Arguments) -> answers.PolicyAnswer:
    return {
        **snapshot.common_keys,
        "file": str(snapshot.settings.policy),
        "since": snapshot.policy_load_time,
        "dry_run": snapshot.is_dry,
        "text": snapshot.policy.text,
    }


def summary(snapshot: Snapshot, _: Arguments) -> answers.SummaryAnswer:
    engine, policy = snapshot.engine, snapshot.policy
    downloads, uploads = snapshot.planners
    pending = Counter(_pending_caps(snapshot))
    budget_totals, accounts = budget_rows(policy, engine.budget_stage.accounts.used, snapshot.now, MAX_ACCOUNTS)
    paths = sorted(engine.traffic.paths.values(), key=lambda each: (each.key.path or "", each.key.interface or ""))
    return {
        **snapshot.common_keys,
        "started": snapshot.to_wall_clock(engine.started),
        "connections": len(snapshot.connections),
        "tunnels": [
            {
                "tunnel": each.tunnel,
                "path": each.name,
                "bytes_sent": each.socket.bytes_acked,
                "bytes_received": each.socket.bytes_received,
            }
            for each in islice(engine.tunnels.table.paths.values(), MAX_TUNNEL_PATHS)
        ],
        "subflows": {"active": engine.tracker.table_sizes["subflows"], "pending": pending.total()},
        "clients": len(set(engine.traffic.clients.values())),
        "counted": snapshot.to_wall_clock(engine.traffic.counted_at),
        "paths": [
            {
                "path": each.key.path,
                "interface": each.key.interface,
                "subflows": each.subflows,
                "bytes_sent": each.sent,
                "bytes_received": each.received,
            }
            for each in paths
        ],
        "rules": list(_rules(snapshot, pending)),
        "classes": _classes(snapshot),
        "class_counts": {"down": len(downloads.classes.actual), "up": len(uploads.classes.actual)},
        "budget_totals": budget_totals,
        "budgets": accounts,
        "guard": {"relaxed": engine.guard.count_relaxed(), "interventions": engine.guard.counters.relaxations},
        "counters": counters(snapshot),
        "loop": snapshot.loop_delay.as_json(),
        "reaction": cast("answers.HistogramAnswer", engine.join_latency.as_json()),
        "effect": cast(
            "answers.EffectHistograms",
            {direction.value: each.as_json() for direction, each in engine.cap_latency.items()},
        ),
        "reloads": snapshot.reloads,
        "ledger_error": snapshot.budgets.write_error,
        "captures": snapshot.observers.capture_states(),
        "bpf": {"pacing": engine.socket_limiter.can_pace, "counting": snapshot.closed_sockets.are_counted},
        "policy": {
            "file": str(snapshot.settings.policy),
            "since": snapshot.policy_load_time,
            "dry_run": snapshot.is_dry,
            "time_zone": str(policy.time_zone),
            "rules": [rule.name for rule in policy.rules],
            "paths_in_words": describe_paths(policy),
            "rules_in_words": describe_rules(policy),
        },
        "last_event": engine.events.ring.last,
    }


def _pending_caps(snapshot: Snapshot) -> Iterator[CapKey]:
    """Yield, for each subflow whose cap is not in force yet, the key of that cap."""
    for planner in snapshot.planners:
        for four_tuple in planner.onsets():
            _, path, rule = snapshot.engine.traffic.find(four_tuple, planner.direction) or (0, None, None)
            if rule is not None:
                yield CapKey(rule, path, planner.direction)


def _rules(snapshot: Snapshot, pending: Mapping[CapKey, int]) -> Iterator[answers.RuleTotals]:
    """Yield the totals of each cap of the policy, by rule, path and direction, and of other caps that are or were in
    force. Their limits are those of the existing classes; if no subflow has the cap, of the class that it would get."""
    rules, traffic = snapshot.policy.rules, snapshot.engine.traffic
    throttles = {key: rule.throttle for rule in rules for key in _cap_keys(rule, snapshot.policy)}
    positions = {rule.name: index for index, rule in enumerate(rules)}
    limits_by_key: dict[CapKey, list[tuple[int, int, Share]]] = defaultdict(list)  # rate, ceil, share of each class
    shared_classes = Counter[CapKey]()
    for scope, each in traffic.classes.items():
        for key in each.members:
            limits_by_key[key].append((*each.limits, scope.share))
            shared_classes[key] += len(each.members) > 1

    def sort_key(key: CapKey) -> tuple[int, str, str, str]:
        return positions.get(key.rule, len(positions)), key.rule, key.path or "", key.direction.value

    for key in sorted(throttles.keys() | traffic.caps.keys(), key=sort_key):
        total, throttle = traffic.caps.get(key, CapTotal(key)), throttles.get(key)
        class_limits = limits_by_key[key]
        shown_limits = class_limits or ([] if throttle is None else [(throttle.rate, throttle.ceil, throttle.share)])
        ceils = [ceil for _, ceil, _ in shown_limits]
        yield {
            "policy": snapshot.settings.policy.stem,
            "rule": key.rule,
            "path": key.path,
            "direction": key.direction,
            "capped": total.subflows,
            "landing": pending.get(key, 0),
            "rate": min((rate for rate, _, _ in shown_limits), default=None),
            "lowest_ceil": min(ceils, default=None),
            "ceil": max(ceils, default=None),
            "total_ceil": sum(ceil for _, ceil, _ in class_limits),
            "classes": len(class_limits),
            "shared_classes": shared_classes[key],
            "share": shown_limits[0][2] if shown_limits else None,
            "bytes": total.bytes,
        }


def _cap_keys(rule: Rule, policy: Policy) -> Iterator[CapKey]:
    """Yield the keys under which the cap of *rule*, if it has one, may be counted."""
    if rule.throttle is None:
        return
    # A rule without paths applies to every subflow, including subflows on no path.
    for path in rule.paths if rule.paths is not None else (*policy.paths, None):
        for direction in rule.direction:
            yield CapKey(rule.name, path, direction)


def _classes(snapshot: Snapshot) -> list[answers.ClassTotals]:
    rows: list[answers.ClassTotals] = []
    for planner in snapshot.planners:
        counters = snapshot.class_counters(planner.direction) if planner.classes.actual else {}
        rules = {cap.minor: scope.rule for scope, cap in planner.caps.items()}
        for minor in planner.classes.actual:
            each = counters.get(minor)
            rows.append(
                {
                    **class_answer(planner, minor),
                    "rule": rules.get(minor),
                    "bytes": None if each is None else each.bytes,
                    "packets": None if each is None else each.packets,
                    "drops": None if each is None else each.drops,
                }
            )
    return sorted(rows, key=lambda each: (-(each["bytes"] or 0), each["classid"]))[:MAX_CLASSES]


# clients


_Client = tuple[bytes, answers.ClientTotals]


def _bytes_sort_key(client: _Client) -> tuple[int, bytes]:
    return -client[1]["bytes_sent"] - client[1]["bytes_received"], client[0]


_CLIENT_SORT_KEYS: Final[Mapping[str, Callable[[_Client], Any]]] = {
    "rate": lambda each: (-each[1]["rate_sent"] - each[1]["rate_received"], *_bytes_sort_key(each)),
    "bytes": _bytes_sort_key,
    "connections": lambda each: (-each[1]["connections"], each[0]),
    "client": lambda each: (len(each[0]), each[0]),
}


def clients(snapshot: Snapshot, request: Arguments) -> answers.ClientsAnswer:
    """Return the clients that come first in the order that *request* names."""
    traffic = snapshot.engine.traffic
    totals: dict[bytes, answers.ClientTotals] = {}
    client_of: dict[bytes, bytes] = {}  # the client of each address that has a subflow
    for connection in snapshot.connections.values():
        client = connection.client
        if not client:  # the connection's last subflow has ended, but the connection has not ended yet
            continue
        row = totals.get(client) or totals.setdefault(client, _empty_row(client))
        row["connections"] += 1
        for subflow in connection.subflows:
            rates, (sent, received) = traffic.rates(subflow.four_tuple), traffic.byte_counts(subflow.four_tuple)
            client_of[subflow.four_tuple.remote] = client
            row["subflows"] += 1
            row["bytes_sent"] += sent
            row["bytes_received"] += received
            row["rate_sent"] += rates.sent or 0
            row["rate_received"] += rates.received or 0
        verdicts = snapshot.applied_verdicts(connection.token)
        row["capped"] += len({each.four_tuple for each in verdicts if each.throttle is not None})
    total, limit, sort = len(totals), request["limit"], request["sort"]
    if sort == "budget":
        selected = _sort_by_budget(snapshot, totals, client_of, limit)
    else:
        selected = dict(heapq.nsmallest(limit, totals.items(), key=_CLIENT_SORT_KEYS[sort]))
    rows = {address_text(each): selected[client] for each, client in client_of.items() if client in selected}
    rows |= {row["client"]: row for row in selected.values()}
    used = snapshot.engine.budget_stage.accounts.used
    for account in budgets_of(snapshot.policy, used, snapshot.now, {each or "" for each in rows}):
        if account["client"] is not None:
            rows[account["client"]]["budgets"].append(account)
    return {
        **snapshot.common_keys,
        "total": total,
        "clients": list(selected.values()),
        "plain_tcp": _plain_tcp(snapshot, limit),
    }


def _empty_row(address: bytes) -> answers.ClientTotals:
    return {
        "client": address_text(address) or "",
        "connections": 0,
        "subflows": 0,
        "capped": 0,
        "rate_sent": 0,
        "rate_received": 0,
        "bytes_sent": 0,
        "bytes_received": 0,
        "budgets": [],
    }


def _sort_by_budget(
    snapshot: Snapshot, totals: Mapping[bytes, answers.ClientTotals], client_of: Mapping[bytes, bytes], limit: int
) -> dict[bytes, answers.ClientTotals]:
    """Return up to *limit* clients: first those that used most of their own budgets, even if they are not connected."""
    policy = snapshot.policy
    rows = limit * max(1, len(policy.budgets))
    _, accounts = budget_rows(policy, snapshot.engine.budget_stage.accounts.used, snapshot.now, rows)
    with_budget = [ip_address(each["client"]).packed for each in accounts if each["client"] is not None]
    by_rate = (client for client, _ in heapq.nsmallest(limit, totals.items(), key=_CLIENT_SORT_KEYS["rate"]))
    order = dict.fromkeys([*(client_of.get(each, each) for each in with_budget), *by_rate])
    return {each: totals.get(each) or _empty_row(each) for each in islice(order, limit)}


def _plain_tcp(snapshot: Snapshot, limit: int) -> answers.PlainTcp | None:
    """Return the number of sockets on the proxy's ports that are not known subflows, and the *limit* clients with the
    most; None if the kernel's list of TCP sockets cannot be read. An MPTCP connection that began in the last
    milliseconds may be counted by mistake."""
    ports = frozenset(snapshot.settings.ownership.listen_ports)
    traffic = snapshot.engine.traffic
    four_tuples = (unmap_endpoints(FourTuple(*each)) for each in sockets(ESTABLISHED) if each.local_port in ports)
    try:
        counts = Counter(each.remote for each in four_tuples if traffic.find(each, Direction.DOWN) is None)
    except OSError as error:
        log.warning("%s: %s; the answer lacks the clients of plain TCP", error.filename, error.strerror)
        return None
    for address in [each for each in counts if ip_address(each).is_loopback]:
        del counts[address]  # connections of this host itself, such as queries for Squid's statistics
    return {
        "connections": counts.total(),
        "total": len(counts),
        "clients": [
            {"client": address_text(address) or "", "connections": number}
            for address, number in counts.most_common(limit)
        ],
    }
