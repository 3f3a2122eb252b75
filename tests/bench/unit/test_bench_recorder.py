"""Rates from counters, and what the demo makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mptcp_bench import live, plot, provenance
from mptcp_bench.demo.parts import PATHS, parts
from mptcp_bench.shipped import ethernet_cap
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.recorder import Sample, greatest_rate, longest_gap, mean_rate, rates


def samples(*octets: int, step: float = 0.1) -> list[Sample]:
    return [Sample(round(i * step, 6), {"eth0": value, "wlan0": 0}) for i, value in enumerate(octets)]


def test_a_rate_is_the_difference_over_the_real_interval() -> None:
    late = [Sample(0.0, {"eth0": 0}), Sample(0.25, {"eth0": 1000})]
    assert [(r.time, r.bits) for r in rates(late)] == [(0.25, {"eth0": 32000.0})]


def test_mean_rate_uses_only_samples_within() -> None:
    recorded = samples(0, 1_000_000, 1_100_000, 1_200_000, 9_000_000)
    assert mean_rate(recorded, "eth0", 0.1, 0.35) == pytest.approx(8e6)
    with pytest.raises(ValueError, match="no two samples"):
        mean_rate(recorded, "eth0", 0.11, 0.25)


def test_longest_gap_is_the_longest_not_the_sum() -> None:
    recorded = samples(0, 100, 100, 200, 200, 200, 300, 400)
    assert longest_gap(recorded, ["eth0", "wlan0"], 1.0, 0.0, 1.0) == pytest.approx(0.2)
    assert longest_gap(samples(0, 1, 2, 3), ["eth0"], 1.0, 0.0, 1.0) == 0.0
    with pytest.raises(ValueError, match="no two samples"):
        longest_gap(samples(0, 1, 2, 3), ["eth0"], 1.0, 5.0, 6.0)


def test_no_samples_are_not_the_same_as_no_gap() -> None:
    with pytest.raises(ValueError, match="no two samples"):
        longest_gap(samples(0, 1, 2, 3), ["eth0"], 1.0, 5.0, 9.0)


def test_greatest_rate_finds_a_burst_that_the_mean_hides() -> None:
    recorded = samples(0, 100, 200, 1_200, 1_300, 1_400, 1_500)
    assert mean_rate(recorded, "eth0", 0.0, 1.0) == pytest.approx(8 * 1500 / 0.6)
    assert greatest_rate(recorded, "eth0", 0.2, 0.0, 1.0) == pytest.approx(8 * 1100 / 0.2)
    assert greatest_rate(recorded, "eth0", 0.2, 0.3, 1.0) == pytest.approx(8 * 200 / 0.2)
    with pytest.raises(ValueError, match="no 2 s of samples"):
        greatest_rate(recorded, "eth0", 2, 0.0, 1.0)


def test_the_cap_is_what_the_policy_says(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    rules = "version: 1\npaths: {ethernet: {subflow: initial}, other: {subflow: joined}}\nrules:\n"
    policy.write_text(
        f"{rules}  - {{name: a, paths: [other], throttle: {{rate: 1 Mbit/s}}}}\n"
        "  - {name: b, paths: [ethernet], throttle: {rate: 3 Mbit/s, ceil: 4 Mbit/s}}\n"
    )
    assert ethernet_cap(policy) == 4_000_000
    assert parts(4_000_000)[-1].allowed["eth0"] == 4_000_000
    assert "Ethernet 4 Mbit/s" in parts(4_000_000)[-1].subtitle
    policy.write_text(f"{rules}  - {{name: a, paths: [other], throttle: {{rate: 1 Mbit/s}}}}\n")
    with pytest.raises(TestbedError, match=r"policy\.yaml: no rule throttles the path 'ethernet'"):
        ethernet_cap(policy)
    policy.write_text("version: 1\nrules: 7\n")
    with pytest.raises(TestbedError, match=r"read the policy: .*policy\.yaml"):
        ethernet_cap(policy)
    assert ethernet_cap() > 0


def test_blocks_and_bars_stay_within_their_width() -> None:
    assert live.sparkline([0, 50, 100, 200, -1], 100) == " ▄██ "
    assert live.bar(0.5, 4) == "██  "
    assert live.bar(7.0, 4) == "████"
    assert live.bar(0.03, 4) == "▏   "


def test_picture_is_a_png(tmp_path: Path) -> None:
    target = tmp_path / "p.png"
    bands = [plot.Band(0.0, 0.2, "a", "b", "c"), plot.Band(0.2, 0.3, "d", "e", "f")]
    levels = [plot.Level(1, 5e6, "cap", "#000000")]
    recorded = samples(0, 10, 20, 30)
    plot.throughput(target, recorded, PATHS, bands=bands, levels=levels, title="t", subtitle="s")
    assert target.read_bytes().startswith(b"\x89PNG\r\n")


def test_every_result_says_where_it_comes_from() -> None:
    document = json.loads(provenance.document(provenance.collect(seed=7), {"value": 1}))
    assert document["value"] == 1
    assert document["provenance"]["seed"] == 7
    assert all(document["provenance"][key] for key in ("command", "commit", "kernel", "processors", "python"))
