# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the demo's output: the policy's cap, the terminal, the picture, and the result's provenance."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from mptcp_bench import live, provenance
from mptcp_bench.demo.parts import PATHS, parts
from mptcp_bench.shipped import ethernet_cap
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.recorder import Sample


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


def test_blocks_stay_within_their_height() -> None:
    assert live.sparkline([0, 50, 100, 200, -1], 100) == " ▄██ "


class Recorded:
    """A recorder that shows half of Ethernet's link, and nothing over Wi-Fi."""

    def current(self) -> dict[str, float]:
        return {"eth0": PATHS[0].rate / 2, "wlan0": 0.0}

    def latest(self, count: int) -> tuple[Sample, ...]:
        return tuple(Sample(0.1 * i, {"eth0": PATHS[0].rate // 160 * i, "wlan0": 0}) for i in range(count))


def test_each_path_is_shown_with_its_rate_a_bar_and_what_was() -> None:
    console = Console(file=StringIO(), width=90, height=20, force_terminal=True, color_system=None)
    view = live.View(console, Recorded(), PATHS)  # type: ignore[arg-type]
    with view:
        view.begin("a download")
        view.refresh()
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    ethernet, wifi = (
        next(line for line in shown if f"{path.rate / 2e6 * n:6.1f} Mbit/s" in line)
        for path, n in zip(PATHS, (1, 0), strict=True)
    )
    assert "█" * (live.BAR // 2) + " " * (live.BAR // 2) in ethernet
    assert "▄" * 10 in ethernet
    assert "█" not in wifi


def test_every_result_says_where_it_comes_from() -> None:
    where = ("command", "commit", "kernel", "processors", "squid", "python", "started")
    written = json.loads(provenance.to_json(provenance.collect(seed=7), {"value": 1}))
    assert written["value"] == 1
    assert written["provenance"]["seed"] == 7
    assert all(written["provenance"][key] for key in where)
