"""The answers to ``head`` and ``summary``. Neither their size nor their cost depends on the number of connections.

The daemon keeps count with each decision; only caps in transition are looked at here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, cast

from mptcp_throttler.policy.model import Policy, Rule
from mptcp_throttler.runtime.answers.connections import class_answer
from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.telemetry.cap_totals import CapKey, Limits
from mptcp_throttler.views.answers import (
    Answer,
    ClassTotals,
    EffectHistograms,
    HeadAnswer,
    HistogramAnswer,
    RuleTotals,
    SummaryAnswer,
)
from mptcp_throttler.views.budgets import budget_rows
from mptcp_throttler.views.words import paths_in_words, rules_in_words

MAX_CLASSES: Final = 256
"""Maximum of listed classes; caps per client may be more."""
MAX_BUDGETS: Final = 100
"""Maximum of listed accounts; more if the policy has more budgets, one of each."""
MAX_TUNNEL_PATHS: Final = 1000


def head(snapshot: Snapshot, answer: Answer) -> HeadAnswer:
    """Return the common *answer* plus what the daemon is and does."""
    engine, policy, settings = snapshot.engine, snapshot.policy, snapshot.settings
    return {
        **answer,
        "started": snapshot.wall(snapshot.started),
        "now": snapshot.now,
        "interfaces": list(settings.interfaces),
        "listen_ports": list(settings.ownership.listen_ports),
        "netfilter": engine.downloads.backend,
        "paced": engine.paced.possible,
        "policy": {
            "source": str(settings.policy),
            "dry_run": policy.dry_run,
            "rules": [rule.name for rule in policy.rules],
        },
        "reloads": snapshot.reloads.as_json(),
        "ledger_error": snapshot.budgets.trouble,
        "path_manager": "user space" if snapshot.path_manager.in_force else "kernel",
        "uploads_shaped": engine.uploads.in_force,
        "in_step": all(each.classes.settled and each.entries.settled for each in snapshot.planners),
    }


def counters(snapshot: Snapshot) -> dict[str, Any]:
    """Return the counters of the daemon's parts."""
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
        "loop": snapshot.gauge.as_json(),
        "entries": len(download.planner.entries.actual),
        "upload_entries": len(upload.planner.entries.actual),
        "tables": dict(engine.tracker.table_sizes),
    }


def summary(snapshot: Snapshot, answer: Answer) -> SummaryAnswer:
    """Return the common *answer* plus aggregates."""
    engine, policy, settings = snapshot.engine, snapshot.policy, snapshot.settings
    downloads, uploads = snapshot.planners
    pending = Counter(_pending(snapshot))
    budget_totals, accounts = budget_rows(policy, engine.budget_stage.accounts.used, snapshot.now, MAX_BUDGETS)
    paths = sorted(engine.traffic.paths.values(), key=lambda each: (each.key.path or "", each.key.interface or ""))
    return {
        **answer,
        "started": snapshot.wall(snapshot.started),
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
        "clients": len(engine.traffic.clients),
        "counted": snapshot.wall(engine.traffic.counted),
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
        "guard": {"relaxed": engine.guard.relaxed(), "interventions": engine.guard.counters.relaxations},
        "counters": counters(snapshot),
        "loop": snapshot.gauge.as_json(),
        "reaction": cast("HistogramAnswer", engine.join_latency.as_json()),
        "effect": cast("EffectHistograms", engine.cap_latency.as_json()),
        "reloads": snapshot.reloads.as_json(),
        "ledger_error": snapshot.budgets.trouble,
        "captures": snapshot.observers.capturing(),
        "bpf": {"pacing": engine.paced.possible, "counting": snapshot.closed_sockets.are_counted},
        "policy": {
            "file": str(settings.policy),
            "since": snapshot.taken,
            "dry_run": policy.dry_run,
            "time_zone": str(policy.time_zone),
            "rules": [rule.name for rule in policy.rules],
            "paths_in_words": paths_in_words(policy),
            "rules_in_words": rules_in_words(policy),
        },
        "last_event": engine.events.ring.last,
    }


def _pending(snapshot: Snapshot) -> Iterator[CapKey]:
    """Yield the cap of each subflow on which it is not in force yet."""
    for planner in snapshot.planners:
        for four_tuple in planner.onsets():
            standing = snapshot.engine.traffic.standing(four_tuple, planner.direction)
            if standing is not None and standing[2] is not None:
                yield CapKey(standing[2], standing[1], planner.direction)


def _rules(snapshot: Snapshot, pending: Mapping[CapKey, int]) -> Iterator[RuleTotals]:
    """Yield each rule of the policy with a cap on each of its paths, and all other caps that are or were in force.
    Limits are those of existing classes; for a cap that no subflow has, those that it would have."""
    rules, caps = snapshot.policy.rules, snapshot.engine.traffic.caps
    throttles = {key: rule.throttle for rule in rules for key in _keys(rule, snapshot.policy)}
    place = {rule.name: index for index, rule in enumerate(rules)}

    def order(key: CapKey) -> tuple[int, str, str, str]:
        return place.get(key.rule, len(place)), key.rule, key.path or "", key.direction.value

    for key in sorted(throttles.keys() | caps.keys(), key=order):
        total, throttle = caps.get(key), throttles.get(key)
        limits = {} if total is None else total.limits
        kinds = list(limits)
        if not kinds and throttle is not None:
            kinds = [Limits(throttle.rate, throttle.ceil, throttle.share)]
        yield {
            "policy": snapshot.settings.policy.stem,
            "rule": key.rule,
            "path": key.path,
            "direction": key.direction,
            "capped": 0 if total is None else total.subflows,
            "landing": pending.get(key, 0),
            "rate": min((each.rate for each in kinds), default=None),
            "lowest_ceil": min((each.ceil for each in kinds), default=None),
            "ceil": max((each.ceil for each in kinds), default=None),
            "total_ceil": sum(each.ceil * number for each, number in limits.items()),
            "classes": sum(limits.values()),
            "shared_classes": 0 if total is None else total.shared,
            "share": max(kinds, key=lambda each: limits.get(each, 0)).share if kinds else None,
            "bytes": 0 if total is None else total.bytes,
        }


def _keys(rule: Rule, policy: Policy) -> Iterator[CapKey]:
    """Yield the keys by which the cap of *rule*, if any, may be counted."""
    if rule.throttle is None:
        return
    # A rule without paths is for every subflow, including those on no path.
    for path in rule.paths if rule.paths is not None else (*policy.paths, None):
        for direction in rule.direction:
            yield CapKey(rule.name, path, direction)


def _classes(snapshot: Snapshot) -> list[ClassTotals]:
    found: list[ClassTotals] = []
    for planner in snapshot.planners:
        counted = snapshot.class_counters(planner.direction) if planner.classes.actual else {}
        rules = {cap.minor: scope.rule for scope, cap in planner.caps.items()}
        for minor in planner.classes.actual:
            each = counted.get(minor)
            found.append(
                {
                    **class_answer(planner, minor),
                    "rule": rules.get(minor),
                    "bytes": None if each is None else each.bytes,
                    "packets": None if each is None else each.packets,
                    "drops": None if each is None else each.drops,
                }
            )
    return sorted(found, key=lambda each: (-(each["bytes"] or 0), each["classid"]))[:MAX_CLASSES]
