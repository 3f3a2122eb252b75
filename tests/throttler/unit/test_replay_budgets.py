# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for budgets in ``mptcp-throttler replay``: bytes and times are those of the capture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from capture_files import BOTH, pcap
from replaying import Run, entries

BUDGET = """
version: 1
paths: {ethernet: {clients: [10.77.1.0/24]}}
rules:
  - name: volume
    paths: [ethernet]
    budget: {period: month, steps: [{after: 10 KB, throttle: {rate: 1 Mbit/s}}, {after: 1 GB, throttle: none}]}
"""
CAPTURES = Path(__file__).parents[1] / "captures"


def test_budget_counts_captured_bytes_and_reports_its_step(replay: Run) -> None:
    """Defect: replay named the budget of a subflow, but did not count its bytes."""
    capture = (CAPTURES / "ethernet.pcap").read_bytes()
    _, out, _ = replay(capture, policy=BUDGET)
    until = "until 2026-12-01 00:00 UTC"
    step = f"rule volume caps what exceeds 10.0 KB {until}"
    lines = [line.partition("  ")[2].strip() for line in out.splitlines()]
    not_capped = f"10.77.1.2:52106 not capped: budget of rule volume: under 50 % of 10.0 KB used {until}"
    index = lines.index(f"client 10.77.1.2: {step}")
    assert lines.index(not_capped) < index
    assert lines[index + 1] == f"10.77.1.2:52106 capped: {step}"
    assert re.match(r"19:45:59\.[89]", out.splitlines()[index]), (
        "the event does not have the time of the packet that reached the step"
    )
    assert out.splitlines()[-1] == "budget volume of client 10.77.1.2: 30.0 KB of 10.0 KB used"
    found = entries(replay(capture, "--json", policy=BUDGET)[1])
    assert [(each["rule"], each["text"]) for each in found if each["kind"] == "budget"] == [
        ("volume", f"client 10.77.1.2: {step}")
    ]
    (account,) = found[-1]["budgets"]
    assert (account["client"], account["step"], account["next_step"]) == ("10.77.1.2", 10_000, 10**9)
    assert account["used"] == 30_001 + 1, "the bytes in both directions do not count"


@pytest.mark.parametrize(("reset", "used"), [("00:00", 10), ("22:14", 5)])
def test_budget_period_ends_at_the_captures_time(replay: Run, reset: str, used: int) -> None:
    policy = f"""
version: 1
paths: {{}}
rules:
  - name: volume
    budget:
      {{period: day, reset_time: "{reset}", per: path, count: up,
       steps: [{{after: 8 B, throttle: {{rate: 1 Mbit/s}}}}]}}
"""
    frames = [*BOTH[:11], *((at + 60, interface, frame) for at, interface, frame in BOTH[11:])]
    _, out, _ = replay(pcap(frames), policy=policy)
    assert out.splitlines()[-1] == f"budget volume: {used} B of 8 B used"
    assert ("rule volume caps what exceeds 8 B" in out) == (used > 8)
