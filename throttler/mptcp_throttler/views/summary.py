"""The answer to ``summary``: aggregates, of a size that does not depend on how many connections there are.

Its cost does not either: the daemon keeps count with each decision, and only what is in a transition is looked at here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mptcp_throttler.mptcp.model import SubflowState
from mptcp_throttler.policy.model import Policy, Rule, Throttle
from mptcp_throttler.shaping.model import ClassCounters
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.telemetry.cap_totals import CapKey, CapTotal, Limits
from mptcp_throttler.views.known import Known

MAX_CLASSES = 256
"""Classes that are listed; a cap for each client may be more."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the daemon's parts keep count of."""

    states: Mapping[SubflowState, int]
    """Subflows of open connections."""
    clients: int
    relaxed: int
    """Connections."""


def summary(known: Known, counted: Counted, policy_name: str) -> dict[str, Any]:
    """Return what the daemon's parts do not say themselves."""
    coming = Counter(_landing(known))
    return {
        "connections": len(known.connections),
        "subflows": {
            **{state.value: counted.states.get(state, 0) for state in _STATES},
            "pending": coming.total(),
        },
        "clients": counted.clients,
        "paths": _paths(known),
        "rules": _rules(known, policy_name, coming),
        "classes": _classes(known),
        "class_counts": {
            planner.direction.value: len(planner.classes.actual) for planner in (known.download, known.upload)
        },
    }


def _landing(known: Known) -> Iterator[CapKey]:
    """Yield the cap of each subflow on which it does not hold yet."""
    for planner in (known.download, known.upload):
        for four_tuple in planner.onsets():
            standing = known.traffic.standing(four_tuple, planner.direction)
            if standing is not None and standing[2] is not None:
                yield CapKey(standing[2], standing[1], planner.direction)


_STATES = (
    SubflowState.ACTIVE,
    SubflowState.SYN,
    SubflowState.SYN_ACK,
    SubflowState.UNPROVEN,
    SubflowState.CLOSING,
)


def _paths(known: Known) -> list[dict[str, Any]]:
    totals = sorted(known.traffic.paths.values(), key=lambda each: (each.key.path or "", each.key.interface or ""))
    return [
        {
            "path": each.key.path,
            "interface": each.key.interface,
            "subflows": each.subflows,
            "bytes_sent": each.sent,
            "bytes_received": each.received,
        }
        for each in totals
    ]


def _rules(known: Known, policy_name: str, coming: Mapping[CapKey, int]) -> list[dict[str, Any]]:
    """Return each rule of the policy with a cap on each of its paths, and whatever else caps or has capped."""
    throttles = {key: rule.throttle for rule in known.policy.rules for key in _keys(rule, known.policy)}
    totals = known.traffic.caps
    place = {rule.name: index for index, rule in enumerate(known.policy.rules)}
    keys = sorted(
        throttles.keys() | totals.keys(),
        key=lambda key: (place.get(key.rule, len(place)), key.rule, key.path or "", key.direction.value),
    )
    rules = []
    for key in keys:
        total = totals.get(key)
        rules.append(
            {
                "policy": policy_name,
                "rule": key.rule,
                "path": key.path,
                "direction": key.direction.value,
                "capped": 0 if total is None else total.subflows,
                "landing": coming.get(key, 0),
                **_limits(total, throttles.get(key)),
                "bytes": 0 if total is None else total.bytes,
            }
        )
    return rules


def _limits(total: CapTotal | None, throttle: Throttle | None) -> dict[str, Any]:
    """Return what the classes that there are let through; of a cap that nobody has, what one would."""
    counted = {} if total is None else total.limits
    kinds = list(counted)
    if not kinds and throttle is not None:
        kinds = [Limits(throttle.rate, throttle.ceil, throttle.share)]
    return {
        "rate": min((each.rate for each in kinds), default=None),
        "lowest_ceil": min((each.ceil for each in kinds), default=None),
        "ceil": max((each.ceil for each in kinds), default=None),
        "total_ceil": sum(each.ceil * number for each, number in counted.items()),
        "classes": sum(counted.values()),
        "shared_classes": 0 if total is None else total.shared,
        "share": max(kinds, key=lambda each: counted.get(each, 0)).share.value if kinds else None,
    }


def _keys(rule: Rule, policy: Policy) -> Iterable[CapKey]:
    if rule.throttle is None:
        return
    # A rule that names no paths is for every subflow, those on no path included.
    for path in rule.paths if rule.paths is not None else (*policy.paths, None):
        for direction in sorted(rule.direction, key=lambda each: each.value):
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
