"""The answer to ``summary``: aggregates, of a size that does not depend on how many connections there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from mptcp_throttler.mptcp.model import SubflowState
from mptcp_throttler.policy.model import DOWN_ONLY, Direction, Rule, Throttle
from mptcp_throttler.shaping.model import ClassCounters
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.telemetry.traffic import CapKey, PathKey
from mptcp_throttler.views.connections import client_of
from mptcp_throttler.views.known import Known

MAX_CLASSES = 256
"""Classes that are listed: a cap for each client is as many."""


def summary(known: Known, policy_name: str) -> dict[str, Any]:
    """Return what the daemon's parts do not say themselves."""
    states: Counter[str] = Counter()
    clients: set[bytes] = set()
    on_path: Counter[PathKey] = Counter()
    capped: Counter[CapKey] = Counter()
    landing: Counter[CapKey] = Counter()
    caps: dict[CapKey, Throttle] = {}
    relaxed = pending = 0
    for connection in known.connections.values():
        clients.add(client_of(connection))
        interfaces = {}
        for subflow in connection.subflows:
            states[subflow.state.value] += 1
            interfaces[subflow.four_tuple] = subflow.interface
        relaxed += known.relaxed(connection.token) is not None
        for verdict in known.verdicts.get(connection.token, ()):
            down = verdict.direction is Direction.DOWN
            if down:
                on_path[PathKey(verdict.path, interfaces.get(verdict.four_tuple))] += 1
            if verdict.throttle is None or verdict.rule is None:
                continue
            key = CapKey(verdict.rule.name, verdict.path, verdict.direction)
            capped[key] += 1
            caps[key] = verdict.throttle
            if (known.download if down else known.upload).is_pending(verdict.four_tuple):
                landing[key] += 1
                pending += 1
    return {
        "connections": len(known.connections),
        "subflows": {**{state.value: states[state.value] for state in _STATES}, "pending": pending},
        "clients": len(clients),
        "paths": _paths(known, on_path),
        "rules": _rules(known, policy_name, capped, landing, caps),
        "classes": _classes(known),
        "relaxed": relaxed,
    }


_STATES = (
    SubflowState.ACTIVE,
    SubflowState.SYN,
    SubflowState.SYN_ACK,
    SubflowState.UNPROVEN,
    SubflowState.CLOSING,
)


def _paths(known: Known, on_path: Mapping[PathKey, int]) -> list[dict[str, Any]]:
    totals = known.traffic.paths
    keys = sorted(totals.keys() | on_path.keys(), key=lambda key: (key.path or "", key.interface or ""))
    return [
        {
            "path": key.path,
            "interface": key.interface,
            "subflows": on_path.get(key, 0),
            "bytes_sent": totals.get(key, (0, 0))[0],
            "bytes_received": totals.get(key, (0, 0))[1],
        }
        for key in keys
    ]


def _rules(
    known: Known,
    policy_name: str,
    capped: Mapping[CapKey, int],
    landing: Mapping[CapKey, int],
    caps: Mapping[CapKey, Throttle],
) -> list[dict[str, Any]]:
    """Return each rule of the policy with a cap on each of its paths, and whatever else caps or has capped."""
    throttles = {key: rule.throttle for rule in known.policy.rules for key in _keys(rule)}
    totals = known.traffic.caps
    place = {rule.name: index for index, rule in enumerate(known.policy.rules)}
    keys = sorted(
        throttles.keys() | totals.keys() | capped.keys(),
        key=lambda key: (place.get(key.rule, len(place)), key.rule, key.path or "", key.direction.value),
    )
    rules = []
    for key in keys:
        throttle = caps.get(key) or throttles.get(key)
        rules.append(
            {
                "policy": policy_name,
                "rule": key.rule,
                "path": key.path,
                "direction": key.direction.value,
                "capped": capped.get(key, 0),
                "landing": landing.get(key, 0),
                "rate": None if throttle is None else throttle.rate,
                "ceil": None if throttle is None else throttle.ceil,
                "bytes": totals[key].bytes if key in totals else 0,
                "share": None if throttle is None else throttle.share.value,
            }
        )
    return rules


def _keys(rule: Rule) -> Iterable[CapKey]:
    if rule.throttle is None or rule.paths is None:
        return
    for path in rule.paths:
        for direction in sorted(rule.directions or DOWN_ONLY, key=lambda each: each.value):
            yield CapKey(rule.name, path, direction)


def _classes(known: Known) -> list[dict[str, Any]]:
    found = []
    for planner in (known.download, known.upload):
        counters = known.sockets.class_counters(planner.direction) if planner.classes.actual else {}
        rules = {cap.minor: scope.rule for scope, cap in planner.caps.items()}
        found += [_class(planner, minor, rules.get(minor), counters.get(minor)) for minor in planner.classes.actual]
    return sorted(found, key=lambda each: (-(each["bytes"] or 0), each["classid"]))[:MAX_CLASSES]


def _class(planner: Planner, minor: int, rule: str | None, counters: ClassCounters | None) -> dict[str, Any]:
    spec = planner.classes.actual[minor]
    return {
        "classid": f"{planner.ownership.htb_major:x}:{minor:x}",
        "direction": planner.direction.value,
        "rate": spec.rate,
        "ceil": spec.ceil,
        "rule": rule,
        "bytes": None if counters is None else counters.bytes,
        "packets": None if counters is None else counters.packets,
        "drops": None if counters is None else counters.drops,
    }
