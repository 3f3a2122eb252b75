# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler's metrics, computed only from its answer to ``summary`` (docs/status.md). Pure.

Labels are names from the policy (policy, rule, path, budget), tunnels and their paths, the direction, the throttler's
interfaces, and BPF programs, but never a client, a connection or a port. So the number of samples depends on policy and
settings, not on the traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from prometheus_client.core import HistogramMetricFamily, Metric

from .building import ABSENT, Labels, counter, counters, gauge, gauges, sums

Answer = Mapping[str, Any]
MAX_CAPS = 1000
"""Maximum number of exported caps; each is a rule on a path in one direction. In the answer, the caps of the current
policy come first, then the caps of earlier policies, whose bytes still count."""
_BITS = 8
_CAP = ("policy", "rule", "path", "direction")
_CAP_CLASSES = (
    (
        "classes",
        "HTB classes of each cap.",
    ),
    ("shared_classes", "Classes of each cap with subflows on several paths."),
)
"""Metrics of caps whose values an older throttler's answer lacks."""
_CAP_RATES = (
    ("rate", "Lowest guaranteed rate of a cap's classes"),
    ("lowest_ceil", "Lowest ceil of a cap's classes"),
    ("ceil", "Highest ceil of a cap's classes"),
    ("total_ceil", "Sum of the ceils of a cap's classes"),
)
_BUDGET = ("policy", "budget")
_OBSERVERS = (
    ("sniffed_segments", "segments", "MPTCP signalling segments captured."),
    (
        "sniffer_drops",
        "segments_dropped",
        "Segments lost because the capture buffer was full.",
    ),
    ("sniffer_reopened", "reopened", "Captures restarted on an interface that came back."),
    ("path_manager_events", "kernel_events", "Events read from the kernel's path manager."),
    ("path_manager_events_lost", "kernel_events_lost", "Overflows of the path manager's event buffer."),
    ("resyncs", "resyncs", "Listings of all sockets, after a loss or as a check."),
)
_TRACKER = (
    ("connections_opened", "connections_opened", "MPTCP connections opened."),
    ("connections_closed", "connections_closed", "MPTCP connections closed."),
    ("subflows_activated", "subflows_activated", "Subflows that became active."),
    ("subflows_closed", "subflows_closed", "Subflows closed."),
    ("fallbacks", "fallbacks", "Connections that asked for MPTCP and got plain TCP."),
    ("version_0", "version_0", "SYNs with MPTCP version 0, which Linux answers with plain TCP."),
    ("joins_refused", "joins_refused", "Joins refused: unknown token, wrong HMAC, or too many."),
    ("observer_disagreements", "disagreements", "Subflows about which the kernel gave contradictory information."),
    ("tracker_overflows", "overflows", "Connections and joins not tracked: table full."),
    (
        "connections_refused",
        "connections_refused",
        "Connections closed because their client has too many.",
    ),
    ("malformed_options", "malformed", "Malformed MPTCP options."),
)
_BUDGETS = (
    ("volume_bytes", "volume", "Volume of the fullest account."),
    ("used_bytes", "used", "Bytes used of the fullest account."),
    ("left_bytes", None, "Bytes left of the fullest account."),
    ("reset_time_seconds", "until", "When the period of the fullest account ends."),
)


def throttler_families(summary: Answer | None) -> Iterator[Metric]:
    """Yield the throttler's metrics. If *summary* is None, the throttler does not answer, and the only metric is
    ``up``."""
    up = float(summary is not None)
    yield gauge("mptcp_throttler_up", "1 while the throttler answers, else 0.", up)
    if summary is None:
        return
    yield from _daemon(summary)
    yield from _traffic(summary)
    yield from _caps(summary)
    yield from _budgets(summary)
    yield from _counters(summary)


def policy_name(summary: Answer) -> str:
    """Return the name of the policy's file, without its ending."""
    return PurePath(summary["policy"]["file"]).stem


def _daemon(summary: Answer) -> Iterator[Metric]:
    policy, reloads, loop = summary["policy"], summary["reloads"], summary["loop"]
    version: dict[Labels, float] = {(str(summary["version"]),): 1.0}
    yield gauges("mptcp_throttler_build_info", "Version of the throttler; always 1.", ("version",), version)
    yield gauge("mptcp_throttler_start_time_seconds", "When the throttler started.", summary["started"])
    text = "When the policy came into force."
    policy_starts: dict[Labels, float] = {(policy_name(summary),): float(policy["since"])}
    yield gauges("mptcp_throttler_policy_start_time_seconds", text, ("policy",), policy_starts)
    yield gauge("mptcp_throttler_policy_rules", "Rules of the policy.", len(policy["rules"]))
    yield counter("mptcp_throttler_reloads_accepted_total", "Reloads accepted.", reloads["accepted"])
    yield counter("mptcp_throttler_reloads_refused_total", "Reloads refused.", reloads["refused"])
    refused = float(reloads["last_refused"] is not None)
    yield gauge("mptcp_throttler_reload_refused", "1 after a refused reload, until one succeeds.", refused)
    failing = float(summary.get("ledger_error") is not None)  # .get, because an older throttler lacks it
    yield gauge("mptcp_throttler_ledger_failing", "1 while the ledger cannot be written.", failing)
    captures: dict[Labels, float] = {(name,): float(is_open) for name, is_open in summary.get("captures", {}).items()}
    text = "1 while the throttler captures on the interface."
    yield gauges("mptcp_throttler_capturing", text, ("interface",), captures)
    programs: dict[Labels, float] = {(name,): float(is_working) for name, is_working in summary.get("bpf", {}).items()}
    text = "1 if the BPF program works."
    yield gauges("mptcp_throttler_bpf", text, ("program",), programs)
    text = "Longest delay of the event loop"
    yield gauge("mptcp_throttler_loop_lag_seconds", f"{text} in the last 10 s.", loop["recent"])
    yield gauge("mptcp_throttler_loop_lag_longest_seconds", f"{text} since the start.", loop["longest"])
    yield counter("mptcp_throttler_loop_late_total", "Delays of the event loop above 0.05 s.", loop["late"])


def _traffic(summary: Answer) -> Iterator[Metric]:
    yield gauge("mptcp_throttler_connections", "MPTCP connections and tunnels.", summary["connections"])
    tunnels = summary.get("tunnels", ())  # .get, because an older throttler lacks it
    tunnel_count = len({each["tunnel"] for each in tunnels})
    yield gauge("mptcp_throttler_tunnels", "Tunnels of Multipath UDP under the policy.", tunnel_count)
    text = "Bytes of IP packets by tunnel path."
    tunnel_bytes = sums(
        ((each["tunnel"], each["path"], direction), each[key])
        for each in tunnels
        for direction, key in (("down", "bytes_sent"), ("up", "bytes_received"))
    )
    yield counters("mptcp_throttler_tunnel_bytes_total", text, ("tunnel", "path", "direction"), tunnel_bytes)
    yield gauge("mptcp_throttler_clients", "Client addresses.", summary["clients"])
    yield gauge("mptcp_throttler_subflows", "Active subflows.", summary["subflows"]["active"])
    paths = summary["paths"]
    subflows = sums(((each["path"] or ABSENT,), each["subflows"]) for each in paths)
    yield gauges("mptcp_throttler_path_subflows", "Subflows by path.", ("path",), subflows)
    text = "Payload by path."
    path_bytes = sums(
        ((each["path"] or ABSENT, direction), each[key])
        for each in paths
        for direction, key in (("down", "bytes_sent"), ("up", "bytes_received"))
    )
    yield counters("mptcp_throttler_path_bytes_total", text, ("path", "direction"), path_bytes)


def _caps(summary: Answer) -> Iterator[Metric]:
    caps = [(_cap_labels(each), each) for each in summary["rules"][:MAX_CAPS]]
    # A rule that is no longer in the policy has neither rate nor subflows, but its bytes are still counted.
    present = [(labels, each) for labels, each in caps if each["rate"] is not None]
    # In a dry run the throttler decides about subflows, but sets no caps in the kernel.
    dry_run = summary["policy"]["dry_run"]
    in_force = sums((labels, 0 if dry_run else each["capped"] - each["landing"]) for labels, each in present)
    yield gauges("mptcp_throttler_caps_in_force", "Subflows under each cap.", _CAP, in_force)
    landing = sums((labels, 0 if dry_run else each["landing"]) for labels, each in present)
    yield gauges("mptcp_throttler_caps_coming", "Subflows whose cap is coming into force.", _CAP, landing)
    for key, text in _CAP_CLASSES:
        numbers = sums((labels, 0 if dry_run else each[key]) for labels, each in present if key in each)
        yield gauges(f"mptcp_throttler_cap_{key}", text, _CAP, numbers)
    for key, text in _CAP_RATES:
        is_zero = dry_run and key == "total_ceil"
        rates = {labels: 0.0 if is_zero else each[key] / _BITS for labels, each in present if each.get(key) is not None}
        name = f"mptcp_throttler_cap_{key}_bytes_per_second"
        yield gauges(name, f"{text}, headers included.", _CAP, rates)
    text = "Payload under each cap."
    cap_bytes = sums((labels, each["bytes"]) for labels, each in caps)
    yield counters("mptcp_throttler_cap_bytes_total", text, _CAP, cap_bytes)
    counts = summary.get("class_counts")  # .get, because an older throttler lacks it
    listed = sums(((each["direction"],), 1.0) for each in summary["classes"])
    classes: dict[Labels, float] = (
        listed if counts is None else {(direction,): float(counts[direction]) for direction in counts}
    )
    yield gauges("mptcp_throttler_classes", "HTB classes of caps.", ("direction",), classes)


def _cap_labels(cap: Answer) -> Labels:
    return cap["policy"], cap["rule"], cap["path"] or ABSENT, cap["direction"]


def _budgets(summary: Answer) -> Iterator[Metric]:
    policy = policy_name(summary)
    fullest: dict[Labels, Answer] = {}
    for each in summary["budgets"]:
        # The fullest accounts come first, so the first account of each budget is its fullest.
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
    groups, guard = summary["counters"], summary["guard"]
    for names, values in ((_OBSERVERS, groups["observers"]), (_TRACKER, groups["tracker"])):
        for name, key, text in names:
            if key in values:  # an older throttler lacks it
                yield counter(f"mptcp_throttler_{name}_total", text, values[key])
    reconcilers = {"down": groups["reconciler"], "up": groups["upload_reconciler"]}
    for name, key, text in (
        ("reconcile_errors", "failures", "Changes that the kernel refused."),
        ("repairs", "repairs", "Kernel objects found missing, changed or foreign."),
    ):
        values = {(direction,): float(each[key]) for direction, each in reconcilers.items() if each is not None}
        yield counters(f"mptcp_throttler_{name}_total", text, ("direction",), values)
    text = "Times that the guard relaxed caps."
    yield counter("mptcp_throttler_guard_interventions_total", text, guard["interventions"])
    for name, text in (
        ("lacking_bytes", "Bytes missing on uncapped paths while caps are relaxed."),
        ("relaxed_bytes", "Bytes on capped subflows while their caps are relaxed."),
    ):
        if name in groups["guard"]:  # an older throttler lacks it
            yield counter(f"mptcp_throttler_guard_{name}_total", text, groups["guard"][name])
    yield gauge("mptcp_throttler_guard_relaxed", "Connections with relaxed caps now.", guard["relaxed"])
    yield _reaction(summary["reaction"])
    # An older throttler lacks this.
    if "effect" in summary:
        yield _effect(summary["effect"])


def _reaction(histogram: Answer) -> Metric:
    text = "From the captured end of a join's handshake to its cap in the kernel."
    return HistogramMetricFamily(
        "mptcp_throttler_reaction_seconds", text, _buckets(histogram), sum_value=histogram["sum"]
    )


def _effect(by_direction: Answer) -> Metric:
    text = "From the decision about a cap to its full effect."
    family = HistogramMetricFamily("mptcp_throttler_effect_seconds", text, labels=("direction",))
    for direction, histogram in by_direction.items():
        family.add_metric((direction,), _buckets(histogram), histogram["sum"])
    return family


def _buckets(histogram: Answer) -> list[tuple[str, float]]:
    return [
        *((str(float(bound)), float(count)) for bound, count in zip(histogram["le"], histogram["count"], strict=True)),
        ("+Inf", float(histogram["total"])),
    ]
