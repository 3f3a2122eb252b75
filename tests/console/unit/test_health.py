# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the faults that the console reports of a throttler that answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_throttler import World

from mptcp_console.health import RECENT_SECONDS, Health
from mptcp_console.overviews import policy_page

NOW = 1_795_000_000.0
REAL_SUMMARY = json.loads((Path(__file__).parents[1] / "answers" / "summary.json").read_text())


def summary(time: float = NOW, pid: int = 1, **more: Any) -> dict[str, Any]:
    return World(pid=pid, clock=lambda: time).answer({"query": "summary"}) | more


def counters(segments: int = 0, events: int = 0, changes: int = 0, uploads: int | None = None) -> dict[str, Any]:
    """Return the counters of lost segments and events, and of refused changes: caps on downloads, and on uploads."""
    return {
        "observers": {"segments_dropped": segments, "kernel_events_lost": events},
        "reconciler": {"failures": changes},
        "upload_reconciler": None if uploads is None else {"failures": uploads},
    }


def test_healthy_throttler_has_no_faults() -> None:
    assert Health().update(summary()) == []
    assert Health().update(summary() | {"captures": None, "ledger_error": None, "counters": None}) == []


def test_lasting_fault_is_reported_until_it_ends() -> None:
    """Defect: no page showed that an interface was not captured, or that the ledger could not be written."""
    health = Health()
    faulty: dict[str, Any] = {"captures": {"wan0": False, "wan1": True}, "ledger_error": "ledger l: disk full"}
    for second in (0, 600):
        capture_fault, ledger_fault = health.update(summary(NOW + second, **faulty))
        assert capture_fault.startswith("Nothing is captured on wan0,")
        assert ledger_fault.startswith("Budget usage cannot be saved to disk (ledger l: disk full); caps hold")
    assert health.update(summary(NOW + 601)) == []


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({"segments": 1}, "1 segment lost by the capture within a minute"),
        ({"events": 2}, "Path manager events lost, 2 times within a minute"),
        ({"changes": 3}, "3 changes refused by the kernel within a minute"),
        ({"changes": 1, "uploads": 2}, "3 changes refused by the kernel"),
    ],
    ids=["segments", "events", "changes", "changes-in-both-directions"],
)
def test_loss_is_reported_for_a_minute(losses: dict[str, int], expected: str) -> None:
    health = Health()
    assert health.update(summary(counters=counters())) == []
    for second in (1.0, 30.0, RECENT_SECONDS):
        (text,) = health.update(summary(NOW + second, counters=counters(**losses)))
        assert text.startswith(expected)
    assert health.update(summary(NOW + RECENT_SECONDS + 2, counters=counters(**losses))) == []


def test_losses_before_the_first_summary_are_not_reported() -> None:
    health = Health()
    assert health.update(summary(counters=counters(1000, 1000, 1000))) == []
    assert health.update(summary(NOW + 1, pid=2, counters=counters(2000, 0, 0))) == []
    assert health.update(summary(NOW - 3600, pid=2, counters=counters(3000, 0, 0))) == []


def test_answer_of_a_real_throttler_is_understood() -> None:
    assert [each.partition(" (")[0] for each in Health().update(REAL_SUMMARY)] == [
        "Nothing is captured on wan1, which is down or missing; capturing resumes when it returns",
        "Budget usage cannot be saved to disk",
    ]
    shown = policy_page(REAL_SUMMARY)
    assert shown["captures"] == {"wan0": True, "wan1": False}
    assert shown["bpf"] == {"pacing": True, "counting": False}
    assert shown["ledger_error"] == "ledger l: disk full"
    assert shown["effect"] == REAL_SUMMARY["effect"]
