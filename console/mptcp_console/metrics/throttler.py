"""The throttler's metrics, made only from its answer to ``summary`` (docs/status.md). Pure.

Labels are the policy's names (policy, rule, path, budget), tunnels and their paths, the direction, an interface, a BPF
program: never a client, a connection or a port. So the number of samples depends on policy and settings, not on the
traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from prometheus_client.core import HistogramMetricFamily, Metric

from .building import ABSENT, Labels, counter, counters, gauge, gauges, sums

Answer = Mapping[str, Any]
MAX_CAPS = 1000
"""Caps shown, each for a rule, path and direction. The answer has the current policy's first, then those of earlier
policies, whose bytes still count."""
_BITS = 8
_CAP = ("policy", "rule", "path", "direction")
_CAP_CLASSES = (
    (
        "classes",
        "HTB classes that a cap is: one for all, or one for each client or connection, and for each budget step.",
    ),
    ("shared_classes", "Those of them that have subflows on other paths as well, where they count too."),
)
"""An older throttler's answer lacks these, and some of the following:"""
_CAP_RATES = (
    ("rate", "The least that a class of a cap guarantees"),
    ("lowest_ceil", "The least that a class of a cap lets through"),
    ("ceil", "The most that a class of a cap lets through"),
    ("total_ceil", "What all classes of a cap let through together"),
)
_BUDGET = ("policy", "budget")
_OBSERVERS = (
    ("sniffed_segments", "segments", "Segments with MPTCP's news that the sniffer read."),
    (
        "sniffer_drops",
        "segments_dropped",
        "Segments lost because the capture's buffer was full; no cap depends on them.",
    ),
    ("sniffer_reopened", "reopened", "How often capturing began anew on an interface that had been away."),
    ("path_manager_events", "kernel_events", "Events of the kernel's path manager that were read."),
    ("path_manager_events_lost", "kernel_events_lost", "How often the buffer for the path manager's events was full."),
    ("resyncs", "resyncs", "How often all sockets were listed after a loss, or to be sure."),
)
_TRACKER = (
    ("connections_opened", "connections_opened", "MPTCP connections seen to begin."),
    ("connections_closed", "connections_closed", "MPTCP connections seen to end."),
    ("subflows_activated", "subflows_activated", "Subflows that became active."),
    ("subflows_closed", "subflows_closed", "Subflows that ended."),
    ("fallbacks", "fallbacks", "Connections that asked for MPTCP and were answered in plain TCP."),
    ("version_0", "version_0", "SYNs that asked for MPTCP version 0, which Linux answers in plain TCP."),
    ("joins_refused", "joins_refused", "Joins that the proxy refused: an unknown token, a wrong HMAC, too many."),
    ("observer_disagreements", "disagreements", "Subflows of which the kernel said different things."),
    ("tracker_overflows", "overflows", "Connections and joins not tracked because a table was full."),
    (
        "connections_refused",
        "connections_refused",
        "Connections to be closed because their client has as many as there is room left for.",
    ),
    ("malformed_options", "malformed", "MPTCP options that break their format."),
)
_BUDGETS = (
    ("volume_bytes", "volume", "What the fullest account of the budget may use in its period."),
    ("used_bytes", "used", "What was used of it; a budget for each client has the client's that used most."),
    ("left_bytes", None, "What is left of it, 0 once it is used up."),
    ("reset_time_seconds", "until", "When its period ends, seconds since the epoch."),
)


def throttler_families(summary: Answer | None) -> Iterator[Metric]:
    """Yield the throttler's metrics; None: it does not answer, and only ``up`` is shown."""
    up = float(summary is not None)
    yield gauge("mptcp_throttler_up", "1 while the throttler answers, else 0, and no metric of it is there.", up)
    if summary is None:
        return
    yield from _daemon(summary)
    yield from _traffic(summary)
    yield from _caps(summary)
    yield from _budgets(summary)
    yield from _counters(summary)


def policy_name(summary: Answer) -> str:
    """Return the name of the policy's file, without its extension."""
    return PurePath(summary["policy"]["file"]).stem


def _daemon(summary: Answer) -> Iterator[Metric]:
    policy, reloads, loop = summary["policy"], summary["reloads"], summary["loop"]
    version: dict[Labels, float] = {(str(summary["version"]),): 1.0}
    yield gauges("mptcp_throttler_build_info", "Version of the throttler; the value is 1.", ("version",), version)
    since = summary["started"]
    yield gauge("mptcp_throttler_start_time_seconds", "Since when it runs, seconds since the epoch.", since)
    text = "Since when the policy is in force, seconds since the epoch."
    named: dict[Labels, float] = {(policy_name(summary),): float(policy["since"])}
    yield gauges("mptcp_throttler_policy_start_time_seconds", text, ("policy",), named)
    yield gauge("mptcp_throttler_policy_rules", "Rules of the policy in force.", len(policy["rules"]))
    yield counter("mptcp_throttler_reloads_accepted_total", "Reloads that put a policy in force.", reloads["accepted"])
    yield counter("mptcp_throttler_reloads_refused_total", "Reloads refused; the policy stays.", reloads["refused"])
    refused = float(reloads["last_refused"] is not None)
    yield gauge("mptcp_throttler_reload_refused", "1 after a refused reload, until one succeeds.", refused)
    failing = float(summary.get("ledger_error") is not None)  # .get: an older throttler
    yield gauge("mptcp_throttler_ledger_failing", "1 while what budgets count cannot be written, else 0.", failing)
    captures: dict[Labels, float] = {(name,): float(there) for name, there in summary.get("captures", {}).items()}
    text = "1 while the throttler captures on the interface, 0 while that is down or gone."
    yield gauges("mptcp_throttler_capturing", text, ("interface",), captures)
    programs: dict[Labels, float] = {(name,): float(there) for name, there in summary.get("bpf", {}).items()}
    text = "1 where the kernel has what the BPF program takes, else 0."
    yield gauges("mptcp_throttler_bpf", text, ("program",), programs)
    text = "Longest time for which the event loop answered nothing,"
    yield gauge("mptcp_throttler_loop_lag_seconds", f"{text} within the last 10 s.", loop["recent"])
    yield gauge("mptcp_throttler_loop_lag_longest_seconds", f"{text} since the start.", loop["longest"])
    yield counter("mptcp_throttler_loop_late_total", "How often that was above 0.05 s.", loop["late"])


def _traffic(summary: Answer) -> Iterator[Metric]:
    yield gauge("mptcp_throttler_connections", "MPTCP connections to the proxy, and tunnels.", summary["connections"])
    tunnels = summary.get("tunnels", ())  # .get: an older throttler
    number = len({each["tunnel"] for each in tunnels})
    yield gauge("mptcp_throttler_tunnels", "Tunnels of Multipath UDP under the policy.", number)
    text = "IP packets carried by each path of a tunnel, since the path has its addresses."
    carried = sums(
        ((each["tunnel"], each["path"], direction), each[key])
        for each in tunnels
        for direction, key in (("down", "bytes_sent"), ("up", "bytes_received"))
    )
    yield counters("mptcp_throttler_tunnel_bytes_total", text, ("tunnel", "path", "direction"), carried)
    yield gauge("mptcp_throttler_clients", "Client addresses that have them.", summary["clients"])
    yield gauge("mptcp_throttler_subflows", "Subflows of these connections.", summary["subflows"]["active"])
    paths = summary["paths"]
    there = sums(((each["path"] or ABSENT,), each["subflows"]) for each in paths)
    yield gauges("mptcp_throttler_path_subflows", "Subflows on each path.", ("path",), there)
    text = "Payload carried by each path since the throttler's start."
    carried = sums(
        ((each["path"] or ABSENT, direction), each[key])
        for each in paths
        for direction, key in (("down", "bytes_sent"), ("up", "bytes_received"))
    )
    yield counters("mptcp_throttler_path_bytes_total", text, ("path", "direction"), carried)


def _caps(summary: Answer) -> Iterator[Metric]:
    caps = [(_cap_labels(each), each) for each in summary["rules"][:MAX_CAPS]]
    # A rule that left the policy has neither rate nor subflows, but its bytes still count.
    present = [(labels, each) for labels, each in caps if each["rate"] is not None]
    # A dry run decides about subflows, but the kernel has nothing of it.
    dry_run = summary["policy"]["dry_run"]
    in_force = sums((labels, 0 if dry_run else each["capped"] - each["landing"]) for labels, each in present)
    yield gauges("mptcp_throttler_caps_in_force", "Subflows under each cap.", _CAP, in_force)
    coming = sums((labels, 0 if dry_run else each["landing"]) for labels, each in present)
    yield gauges("mptcp_throttler_caps_coming", "Subflows on which a cap is just coming into force.", _CAP, coming)
    for key, text in _CAP_CLASSES:
        numbers = sums((labels, 0 if dry_run else each[key]) for labels, each in present if key in each)
        yield gauges(f"mptcp_throttler_cap_{key}", text, _CAP, numbers)
    for key, text in _CAP_RATES:
        nothing = dry_run and key == "total_ceil"
        rates = {labels: 0.0 if nothing else each[key] / _BITS for labels, each in present if each.get(key) is not None}
        name = f"mptcp_throttler_cap_{key}_bytes_per_second"
        yield gauges(name, f"{text}, bytes per second with all headers.", _CAP, rates)
    text = "Payload that subflows under each cap carried since the throttler's start."
    carried = sums((labels, each["bytes"]) for labels, each in caps)
    yield counters("mptcp_throttler_cap_bytes_total", text, _CAP, carried)
    counts = summary.get("class_counts")  # .get: an older throttler
    listed = sums(((each["direction"],), 1.0) for each in summary["classes"])
    classes: dict[Labels, float] = listed if counts is None else {(way,): float(counts[way]) for way in counts}
    yield gauges("mptcp_throttler_classes", "HTB classes of caps.", ("direction",), classes)


def _cap_labels(cap: Answer) -> Labels:
    return cap["policy"], cap["rule"], cap["path"] or ABSENT, cap["direction"]


def _budgets(summary: Answer) -> Iterator[Metric]:
    policy = policy_name(summary)
    fullest: dict[Labels, Answer] = {}
    for each in summary["budgets"]:
        # The fullest first, and with them the fullest of each budget.
        fullest.setdefault((policy, each["name"]), each)
    for total in summary["budget_totals"]:
        # A budget per client has no account before a client uses it, but its series must exist from the start.
        if "first_volume" in total:
            unused = {"used": 0, "volume": total["first_volume"], "until": total["until"]}
            fullest.setdefault((policy, total["name"]), unused)
    for name, key, text in _BUDGETS:
        samples = {
            labels: float(each[key]) if key else float(max(0, each["volume"] - each["used"]))
            for labels, each in fullest.items()
        }
        yield gauges(f"mptcp_throttler_budget_{name}", text, _BUDGET, samples)


def _counters(summary: Answer) -> Iterator[Metric]:
    counted, guard = summary["counters"], summary["guard"]
    for names, values in ((_OBSERVERS, counted["observers"]), (_TRACKER, counted["tracker"])):
        for name, key, text in names:
            if key in values:  # an older throttler has none
                yield counter(f"mptcp_throttler_{name}_total", text, values[key])
    reconcilers = {"down": counted["reconciler"], "up": counted["upload_reconciler"]}
    for name, key, text in (
        ("reconcile_errors", "failures", "How often the kernel refused what was to be put into it."),
        ("repairs", "repairs", "Objects in the kernel that were found missing, changed or foreign."),
    ):
        values = {(way,): float(each[key]) for way, each in reconcilers.items() if each is not None}
        yield counters(f"mptcp_throttler_{name}_total", text, ("direction",), values)
    text = "How often the guard relaxed the caps of a connection whose other paths had degraded."
    yield counter("mptcp_throttler_guard_interventions_total", text, guard["interventions"])
    for name, text in (
        ("lacking_bytes", "Bytes that uncapped paths carried less than before, while caps beside them were relaxed."),
        ("relaxed_bytes", "Bytes that capped subflows carried while their caps were relaxed."),
    ):
        if name in counted["guard"]:  # an older throttler has none
            yield counter(f"mptcp_throttler_guard_{name}_total", text, counted["guard"][name])
    yield gauge("mptcp_throttler_guard_relaxed", "Connections whose caps the guard relaxes now.", guard["relaxed"])
    yield _reaction(summary["reaction"])
    # An older throttler has none.
    if "effect" in summary:
        yield _effect(summary["effect"])


def _reaction(histogram: Answer) -> Metric:
    text = "From the last packet of a join's handshake, as captured, to its cap's entry in the kernel."
    return HistogramMetricFamily(
        "mptcp_throttler_reaction_seconds", text, _buckets(histogram), sum_value=histogram["sum"]
    )


def _effect(by_direction: Answer) -> Metric:
    text = "From the decision about a cap to its full effect, transitions included."
    family = HistogramMetricFamily("mptcp_throttler_effect_seconds", text, labels=("direction",))
    for way, histogram in by_direction.items():
        family.add_metric((way,), _buckets(histogram), histogram["sum"])
    return family


def _buckets(histogram: Answer) -> list[tuple[str, float]]:
    return [
        *((str(float(bound)), float(count)) for bound, count in zip(histogram["le"], histogram["count"], strict=True)),
        ("+Inf", float(histogram["total"])),
    ]
