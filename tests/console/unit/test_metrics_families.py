# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the metrics of throttler, Squid, its libraries and kernel: values, units, labels, and number of samples."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_answers import (
    Samples,
    exposition,
    kernel_answer,
    library_answer,
    page_with_parts,
    sample_key,
    samples,
    squid_answer,
    squid_page_texts,
    summary_answer,
)

from mptcp_console.metrics import families
from mptcp_console.metrics.kernel import metric_name, parse_mptcp_ext
from mptcp_console.metrics.squid import SquidPages, parse_counters, parse_info, parse_processes
from mptcp_console.metrics.throttler import MAX_CAPS

ALLOWED_LABELS = {
    "policy", "rule", "path", "direction", "budget", "le", "version", "interface", "program", "process",
    "service", "tunnel",
}  # fmt: skip
FIRST_PROCESS = {"process": "1"}
SPARE = {"policy": "policy", "rule": "spare", "path": "ethernet"}
THROTTLER_UP = "mptcp_throttler_up"


def full_exposition(summary: Mapping[str, Any] | None = None) -> str:
    return exposition(families(summary or summary_answer(), squid_answer(), kernel_answer(), library_answer()))


@cache
def default_samples() -> Samples:
    return samples(full_exposition())


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        (THROTTLER_UP, {}, 1),
        ("mptcp_throttler_build_info", {"version": "0.1.0"}, 1),
        ("mptcp_throttler_start_time_seconds", {}, 1795372000.1),
        ("mptcp_throttler_policy_start_time_seconds", {"policy": "policy"}, 1795372100.2),
        ("mptcp_throttler_policy_rules", {}, 2),
        ("mptcp_throttler_connections", {}, 3),
        ("mptcp_throttler_clients", {}, 2),
        ("mptcp_throttler_subflows", {}, 6),
        # Two interfaces count as one path.
        ("mptcp_throttler_path_subflows", {"path": "wifi"}, 3),
        ("mptcp_throttler_path_bytes_total", {"path": "wifi", "direction": "down"}, 5300),
        ("mptcp_throttler_path_bytes_total", {"path": "wifi", "direction": "up"}, 100),
        ("mptcp_throttler_path_bytes_total", {"path": "-", "direction": "up"}, 8),
        ("mptcp_throttler_tunnels", {}, 1),
        ("mptcp_throttler_tunnel_bytes_total", {"tunnel": "home", "path": "1", "direction": "up"}, 5),
        # One of the three caps is not yet in force.
        ("mptcp_throttler_caps_in_force", SPARE | {"direction": "down"}, 2),
        ("mptcp_throttler_caps_coming", SPARE | {"direction": "down"}, 1),
        # Bits/s are converted to bytes/s.
        ("mptcp_throttler_cap_rate_bytes_per_second", SPARE | {"direction": "down"}, 625_000),
        ("mptcp_throttler_cap_ceil_bytes_per_second", SPARE | {"direction": "down"}, 750_000),
        ("mptcp_throttler_cap_lowest_ceil_bytes_per_second", SPARE | {"direction": "down"}, 687_500),
        ("mptcp_throttler_cap_total_ceil_bytes_per_second", SPARE | {"direction": "down"}, 2_187_500),
        ("mptcp_throttler_cap_total_ceil_bytes_per_second", SPARE | {"direction": "up"}, 0),
        ("mptcp_throttler_cap_classes", SPARE | {"direction": "down"}, 3),
        ("mptcp_throttler_cap_shared_classes", SPARE | {"direction": "down"}, 1),
        ("mptcp_throttler_cap_bytes_total", SPARE | {"direction": "down"}, 900_000),
        (
            "mptcp_throttler_cap_bytes_total",
            {"policy": "policy", "rule": "of-yesterday", "path": "-", "direction": "down"},
            55,
        ),
        # The count also includes classes that are not listed.
        ("mptcp_throttler_classes", {"direction": "down"}, 300),
        ("mptcp_throttler_classes", {"direction": "up"}, 1),
        # The value is that of the client with the highest usage.
        ("mptcp_throttler_budget_used_bytes", {"policy": "policy", "budget": "monthly"}, 600),
        ("mptcp_throttler_budget_left_bytes", {"policy": "policy", "budget": "monthly"}, 0),
        ("mptcp_throttler_budget_left_bytes", {"policy": "policy", "budget": "paid"}, 700),
        ("mptcp_throttler_budget_volume_bytes", {"policy": "policy", "budget": "paid"}, 1000),
        ("mptcp_throttler_budget_reset_time_seconds", {"policy": "policy", "budget": "paid"}, 1796000000),
        ("mptcp_throttler_sniffed_segments_total", {}, 120),
        ("mptcp_throttler_sniffer_drops_total", {}, 5),
        ("mptcp_throttler_path_manager_events_lost_total", {}, 1),
        ("mptcp_throttler_resyncs_total", {}, 2),
        ("mptcp_throttler_observer_disagreements_total", {}, 3),
        ("mptcp_throttler_fallbacks_total", {}, 6),
        ("mptcp_throttler_connections_opened_total", {}, 40),
        ("mptcp_throttler_reconcile_errors_total", {"direction": "down"}, 8),
        ("mptcp_throttler_repairs_total", {"direction": "down"}, 9),
        ("mptcp_throttler_guard_interventions_total", {}, 4),
        ("mptcp_throttler_guard_lacking_bytes_total", {}, 5_000_000),
        ("mptcp_throttler_guard_relaxed_bytes_total", {}, 5_200_000),
        ("mptcp_throttler_guard_relaxed", {}, 1),
        ("mptcp_throttler_reloads_accepted_total", {}, 2),
        ("mptcp_throttler_reloads_refused_total", {}, 1),
        ("mptcp_throttler_reload_refused", {}, 1),
        ("mptcp_throttler_ledger_failing", {}, 1),
        ("mptcp_throttler_capturing", {"interface": "wan0"}, 1),
        ("mptcp_throttler_capturing", {"interface": "wan1"}, 0),
        ("mptcp_throttler_bpf", {"program": "pacing"}, 1),
        ("mptcp_throttler_bpf", {"program": "counting"}, 0),
        ("mptcp_throttler_loop_lag_seconds", {}, 0.0123),
        ("mptcp_throttler_loop_lag_longest_seconds", {}, 0.0321),
        ("mptcp_throttler_loop_late_total", {}, 2),
        ("mptcp_throttler_reaction_seconds_bucket", {"le": "0.01"}, 3),
        ("mptcp_throttler_reaction_seconds_bucket", {"le": "+Inf"}, 4),
        ("mptcp_throttler_reaction_seconds_count", {}, 4),
        ("mptcp_throttler_reaction_seconds_sum", {}, 2.5),
        ("mptcp_throttler_effect_seconds_bucket", {"direction": "down", "le": "1.0"}, 6),
        ("mptcp_throttler_effect_seconds_bucket", {"direction": "up", "le": "+Inf"}, 2),
        ("mptcp_throttler_effect_seconds_count", {"direction": "down"}, 7),
        ("mptcp_throttler_effect_seconds_sum", {"direction": "up"}, 8.0),
        ("squid_up", {}, 1),
        ("squid_build_info", {"version": "5.7"}, 1),
        ("squid_start_time_seconds", {}, 1795372304),
        ("squid_client_requests_total", FIRST_PROCESS, 5),
        ("squid_client_errors_total", FIRST_PROCESS, 1),
        # KiB are converted to bytes.
        ("squid_client_sent_bytes_total", FIRST_PROCESS, 1957 * 1024),
        ("squid_tunnels_total", FIRST_PROCESS, 1),
        ("squid_cpu_seconds_total", FIRST_PROCESS, 0.046178),
        ("squid_clients", {}, 3),
        ("squid_file_descriptors", {}, 7),
        ("squid_file_descriptors_limit", {}, 20000),
        ("squid_resident_memory_peak_bytes", {}, 112528 * 1024),
        ("mptcp_ext_mp_capable_syn_rx_total", {}, 12),
        ("mptcp_ext_mp_curr_estab", {}, 4),
    ],
)
def test_metric_has_the_expected_value(name: str, labels: dict[str, str], value: float) -> None:
    assert default_samples()[sample_key(name, **labels)] == pytest.approx(value)


def test_silent_throttler_is_down_and_has_no_other_metrics() -> None:
    found = samples(exposition(families(None, squid_answer(), kernel_answer())))
    assert {name: value for (name, _), value in found.items() if name.startswith("mptcp_throttler")} == {
        THROTTLER_UP: 0
    }
    assert found[sample_key("squid_up")] == 1


def test_silent_squid_is_down_and_has_no_other_metrics() -> None:
    found = samples(exposition(families(summary_answer(), None, None)))
    assert {name: value for (name, _), value in found.items() if not name.startswith("mptcp_throttler")} == {
        "squid_up": 0
    }


def test_labels_come_only_from_the_fixed_list() -> None:
    assert {label for _, labels in samples(full_exposition()) for label, _ in labels} <= ALLOWED_LABELS


def test_rule_of_an_old_policy_has_bytes_and_no_cap() -> None:
    names = {name for name, labels in samples(full_exposition()) if ("rule", "of-yesterday") in labels}
    assert names == {"mptcp_throttler_cap_bytes_total"}


def test_dry_run_has_caps_and_none_in_force() -> None:
    summary = summary_answer()
    summary["policy"]["dry_run"] = True
    found = samples(full_exposition(summary))
    for name in (
        "caps_in_force", "caps_coming", "cap_classes", "cap_shared_classes", "cap_total_ceil_bytes_per_second",
    ):  # fmt: skip
        assert found[sample_key(f"mptcp_throttler_{name}", **SPARE, direction="down")] == 0
    assert found.keys() == samples(full_exposition()).keys()
    assert found[sample_key("mptcp_throttler_cap_rate_bytes_per_second", **SPARE, direction="down")] == 625_000


def test_older_throttler_without_class_counts_has_its_caps() -> None:
    summary = summary_answer()
    for rule in summary["rules"]:
        for name in ("lowest_ceil", "total_ceil", "classes", "shared_classes"):
            del rule[name]
    del summary["class_counts"]
    found = samples(full_exposition(summary))
    assert found[sample_key("mptcp_throttler_classes", direction="down")] == 1
    assert found[sample_key("mptcp_throttler_cap_ceil_bytes_per_second", **SPARE, direction="down")] == 750_000
    assert not [name for name, _ in found if name.startswith("mptcp_throttler_cap_classes")]


def test_library_metrics_carry_the_service_as_label() -> None:
    found = samples(exposition(families(None, None, None, library_answer("mptcpproxy", "mptcprelay"))))
    counted = {name: value for name, value in found.items() if name[0].startswith("mptcp_proxy_library_")}
    assert len(counted) == 2 * 8
    assert counted["mptcp_proxy_library_turns_total", (("service", "mptcprelay"),)] == 1
    assert counted["mptcp_proxy_library_joined_bytes_total", (("service", "mptcpproxy"),)] == 4


def test_older_throttler_lacks_only_its_missing_counters() -> None:
    """Defect: with a throttler older than ``connections_refused`` all its metrics and Squid's were missing."""
    summary = summary_answer()
    del summary["counters"]["tracker"]["connections_refused"]
    del summary["counters"]["observers"]["reopened"]
    missing = {"mptcp_throttler_connections_refused_total", "mptcp_throttler_sniffer_reopened_total"}
    assert {name for name, _ in samples(full_exposition())} - {
        name for name, _ in samples(full_exposition(summary))
    } == missing


def test_missing_squid_values_have_no_metric() -> None:
    counters = "client_http.requests = 8\nof.other.kind = x\n"
    pages = SquidPages({1: parse_counters(counters)}, parse_info("Squid Object Cache: Version 9\n"))
    found = samples(exposition(families(None, pages, None)))
    assert {name for name, _ in found if name.startswith("squid")} == {
        "squid_up",
        "squid_build_info",
        "squid_client_requests_total",
    }


@pytest.mark.parametrize("page", ["", "<html>Access Denied</html>", "client_http.requests 5"])
def test_page_that_is_not_squids_counters_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="not the page"):
        parse_counters(page)


def test_squid_counters_are_per_process_and_gauges_are_shared() -> None:
    found = samples(exposition(families(None, squid_answer(1, 2, 10), None)))
    by_name: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for name, labels in found:
        if name.startswith("squid") and name not in ("squid_up", "squid_build_info"):
            by_name.setdefault(name, set()).add(labels)
    one_per_process = {(("process", number),) for number in ("1", "2", "10")}
    assert {name.endswith("_total"): labels for name, labels in by_name.items()} == {True: one_per_process, False: {()}}


@pytest.mark.parametrize(
    ("page", "processes"),
    [
        (squid_page_texts()["refresh"], []),
        (page_with_parts(dict.fromkeys((2, 1, 11), squid_page_texts()["refresh"])), [1, 2, 11]),
        # Only the first line of a part is its head, not text within it.
        (page_with_parts({3: "  by kid4 {\nby kid5 { 1\n"}), [3]),
        ("", []),
    ],
)
def test_processes_are_read_from_the_parts_of_a_squid_page(page: str, processes: list[int]) -> None:
    assert parse_processes(page) == processes


def test_kernel_without_mptcp_has_no_mptcp_counters() -> None:
    assert parse_mptcp_ext("TcpExt: A\nTcpExt: 1\n") is None
    assert parse_mptcp_ext("MPTcpExt: A B\nMPTcpExt: 1 2\nIpExt: A\nIpExt: 3\n") == {"A": 1, "B": 2}


def test_each_kernel_field_has_a_unique_metric_name() -> None:
    fields = kernel_answer()
    assert len(fields) > 60
    assert len({metric_name(field) for field in fields}) == len(fields)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("MPCapableSYNACKRX", "mptcp_ext_mp_capable_syn_ack_rx_total"),
        ("MPJoinSynAckHMacFailure", "mptcp_ext_mp_join_syn_ack_hmac_failure_total"),
        ("MPJoinSynRx", "mptcp_ext_mp_join_syn_rx_total"),
        ("MPTCPRetrans", "mptcp_ext_mptcp_retrans_total"),
        ("MD5SigFallback", "mptcp_ext_md5_sig_fallback_total"),
        ("MPCurrEstab", "mptcp_ext_mp_curr_estab"),
    ],
)
def test_kernel_field_names_become_snake_case(field: str, name: str) -> None:
    assert metric_name(field) == name


# The number of samples depends on the policy, not on the traffic.

NAMES = st.sampled_from(["ethernet", "wifi", "lte", None])
CAPS = st.fixed_dictionaries(
    {
        "policy": st.just("policy"),
        "rule": st.sampled_from(["a", "b", "c"]),
        "path": NAMES,
        "direction": st.sampled_from(["down", "up"]),
        "capped": st.integers(0, 20_000),
        "landing": st.integers(0, 20_000),
        "rate": st.none() | st.integers(8, 1 << 34),
        "lowest_ceil": st.none() | st.integers(8, 1 << 34),
        "ceil": st.none() | st.integers(8, 1 << 34),
        "total_ceil": st.integers(0, 1 << 40),
        "classes": st.integers(0, 20_000),
        "shared_classes": st.integers(0, 20_000),
        "bytes": st.integers(0, 1 << 60),
        "share": st.just("path"),
    }
)
PATHS = st.fixed_dictionaries(
    {
        "path": NAMES,
        "interface": st.sampled_from(["wan0", "wan1", None]),
        "subflows": st.integers(0, 20_000),
        "bytes_sent": st.integers(0, 1 << 60),
        "bytes_received": st.integers(0, 1 << 60),
    }
)
BUDGETS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["p", "q"]),
        "rule": st.just("a"),
        "client": st.ip_addresses().map(str) | st.none(),
        "used": st.integers(0, 1 << 50),
        "volume": st.integers(0, 1 << 50),
        "until": st.integers(0, 1 << 32),
    }
)


@given(st.lists(CAPS, max_size=60), st.lists(PATHS, max_size=30), st.lists(BUDGETS, max_size=100))
def test_number_of_samples_is_bounded_by_the_policy(
    caps: list[dict[str, Any]], paths: list[dict[str, Any]], budgets: list[dict[str, Any]]
) -> None:
    summary = summary_answer() | {"rules": caps, "paths": paths, "budgets": budgets, "budget_totals": []}
    found = samples(exposition(families(summary, None, None)))  # this fails if a sample occurs twice
    values = [value for _, labels in found for _, value in labels]
    assert not {each["client"] for each in budgets} & set(values)
    # Metrics, times rules, paths and directions. Other metrics begin with "cap" and "path_", too: two samples at most.
    for prefix, maximum in (("cap", 9 * 3 * 4 * 2), ("path_", 3 * 4), ("budget", 4 * 2)):
        assert sum(name.startswith(f"mptcp_throttler_{prefix}") for name, _ in found) <= maximum + 2


def test_unused_budget_has_metrics() -> None:
    """Defect: a budget per client had no metric, and its alerts no value, until a client had used some of it."""
    summary = summary_answer()
    unused = {"name": "unused", "per": "client", "accounts": 0, "used_up": 0, "used": 0, "volume": 0}
    summary["budget_totals"].append(unused | {"first_volume": 4_000, "until": 1796000000.0})
    found = samples(full_exposition(summary))
    for name, value in (
        ("used_bytes", 0),
        ("left_bytes", 4_000),
        ("volume_bytes", 4_000),
        ("reset_time_seconds", 1796000000),
    ):
        assert found[sample_key(f"mptcp_throttler_budget_{name}", policy="policy", budget="unused")] == value
    # For a used budget the values come from the existing account.
    assert found[sample_key("mptcp_throttler_budget_used_bytes", policy="policy", budget="monthly")] == 600


def test_number_of_samples_does_not_depend_on_connections() -> None:
    summary = summary_answer() | {"connections": 10_000, "clients": 9_000}
    summary["subflows"]["active"] = 20_000
    summary["rules"][0]["capped"] = 10_000
    assert samples(full_exposition(summary)).keys() == samples(full_exposition()).keys()


def test_caps_of_old_policies_are_dropped_before_current_ones() -> None:
    summary = summary_answer()
    old = summary["rules"][-1]
    summary["rules"] += [old | {"rule": f"old-{number}"} for number in range(4096)]
    found = samples(full_exposition(summary))
    caps = [labels for name, labels in found if name == "mptcp_throttler_cap_bytes_total"]
    assert len(caps) == MAX_CAPS
    assert sample_key("mptcp_throttler_caps_in_force", **SPARE, direction="down") in found


def check_metrics(text: str) -> subprocess.CompletedProcess[str]:
    """Let Prometheus' own checker judge names, types and help texts."""
    return subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)


def test_promtool_accepts_the_metric_names(require: Callable[..., None]) -> None:
    require("promtool")
    checked = check_metrics(full_exposition())
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert check_metrics(full_exposition().replace("loop_late_total", "loopLate")).returncode
