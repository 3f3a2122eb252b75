# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the histogram of times from a cap's decision to its full effect: when a cap is counted, with which time."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_kernel import FakeKernel, four_tuple
from policy_values import replace
from test_daemon import CAPPED, UNCAPPED, running, scenario, until
from test_shaping_plan import NOW, policy, rule, subflow, throttle, uncapped, verdict
from test_status_answers import LTE, WIFI

from mptcp_throttler.policy.model import Onset, Share
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.shaping.model import Ownership
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.telemetry.decision import remove_caps
from mptcp_throttler.telemetry.latency import CAP_BOUNDS, MAX_CAP_SECONDS, LatencyHistogram

CAP = rule()
FASTER = rule(cap=throttle(8_000_000))
SLOWER = rule(cap=throttle(2_000_000))
OTHER = replace(CAP, name="other")


class Scene:
    """A planner, a fake kernel that applies changes when the test requests it, and a clock."""

    def __init__(self, *, soft: bool = False, dry: bool = False) -> None:
        self.now = 100.0
        self.planner = Planner(Ownership())
        self.histogram = LatencyHistogram(CAP_BOUNDS, MAX_CAP_SECONDS)
        self.planner.clock, self.planner.report_delay = lambda: self.now, self.histogram.count
        self.planner.soft_caps = soft
        self.is_dry = dry
        self.planner.set_policy(policy(CAP))

    def decide(self, *verdicts: Verdict, young: bool = False, token: int = 1) -> None:
        four_tuples = [each.four_tuple for each in verdicts] if young else []
        self.planner.set_verdicts(token, remove_caps(verdicts) if self.is_dry else verdicts, NOW, four_tuples)

    def apply(self, after: float = 0.0) -> None:
        """Apply the whole plan, classes first, as the reconciler does."""
        self.now += after
        self.apply_classes()
        self.planner.entries.record_upserts(dict(self.planner.entries.upserts))

    def apply_classes(self) -> None:
        self.planner.classes.record_upserts(dict(self.planner.classes.upserts))

    @property
    def totals(self) -> tuple[int, float]:
        """Number of counted caps, and sum of their times in seconds."""
        found = self.histogram.as_json()
        return found["total"], round(found["sum"], 6)


def test_immediate_cap_counts_when_its_entry_is_created() -> None:
    scene = Scene()
    scene.decide(verdict(1, CAP))
    assert scene.totals == (0, 0)
    scene.apply(0.003)
    assert scene.totals == (1, 0.003)
    assert scene.histogram.as_json()["count"][:3] == [0, 0, 1]
    scene.decide(verdict(1, CAP))
    scene.planner.entries.kernel_changed({subflow(1)}, True)
    assert scene.totals == (1, 0.003), "a repeated decision or a repaired entry was counted"


def test_soft_cap_counts_when_its_transition_is_complete() -> None:
    """Defect: caps that begin with a transition (most caps) were missing from the histogram."""
    scene = Scene(soft=True)
    scene.decide(verdict(1, CAP))
    scene.apply(0.5)
    assert scene.totals == (0, 0)
    scene.planner.complete(subflow(1))
    scene.apply(0.5)
    assert scene.totals == (1, 1.0)


def test_cap_of_a_young_subflow_counts_when_its_entry_is_created() -> None:
    scene = Scene(soft=True)
    scene.decide(verdict(1, CAP), young=True)
    scene.apply(0.002)
    assert scene.totals == (1, 0.002)


def test_cap_whose_class_still_falls_counts_when_the_class_has_its_rate() -> None:
    scene = Scene(soft=True)
    scene.decide(verdict(1, CAP))
    scene.planner.set_interim({subflow(1): 20_000_000})
    scene.planner.complete(subflow(1))
    scene.apply(0.1)
    assert scene.totals == (0, 0), "a cap was counted while its class had a higher rate"
    scene.planner.set_interim({subflow(1): 9_000_000})
    scene.apply(1.0)
    assert scene.totals == (0, 0)
    scene.planner.set_interim({subflow(1): None})
    scene.now += 0.5
    scene.planner.entries.kernel_changed({subflow(1)}, True)
    assert scene.totals == (0, 0), "a cap was counted before its class was changed"
    scene.apply()
    assert scene.totals == (1, 1.6)


@pytest.mark.parametrize("soft", [False, True])
def test_changed_rate_counts_when_the_class_has_the_new_rate(soft: bool) -> None:
    scene = Scene(soft=soft)
    scene.decide(verdict(1, CAP))
    scene.planner.complete(subflow(1))
    scene.apply()
    assert scene.totals == (1, 0)
    scene.decide(verdict(1, FASTER))
    scene.apply(0.01)
    assert scene.totals == (2, 0.01)
    scene.decide(verdict(1, SLOWER))
    scene.apply(0.5)
    if soft:
        assert scene.totals == (2, 0.01), "a lower rate was counted before its transition was complete"
        scene.planner.complete(subflow(1))
        scene.apply()
    assert scene.totals == (3, 0.51)


def test_time_of_another_cap_starts_with_its_decision() -> None:
    scene = Scene()
    scene.decide(verdict(1, CAP))
    scene.now += 5
    scene.decide(verdict(1, OTHER))
    scene.apply(0.01)
    assert scene.totals == (1, 0.01)


def test_lower_rate_counts_when_all_transitions_of_the_class_are_complete() -> None:
    scene = Scene(soft=True)
    for number in (1, 2):
        scene.decide(verdict(number, CAP), token=number, young=True)
    scene.apply()
    before = scene.totals
    for number in (1, 2):
        scene.decide(verdict(number, SLOWER), token=number)
    scene.planner.complete(subflow(1))
    scene.now += 1
    scene.planner.classes.kernel_changed({99}, True)
    assert scene.totals == before
    scene.planner.complete(subflow(2))
    scene.apply(1)
    assert scene.totals == (before[0] + 2, before[1] + 4.0)


def test_entry_of_the_previous_cap_does_not_count() -> None:
    scene = Scene(soft=True)
    scene.decide(verdict(1, CAP), young=True)
    scene.apply()
    scene.decide(verdict(1, OTHER))
    scene.planner.entries.kernel_changed({subflow(1)}, True)
    assert scene.totals == (1, 0), "the repaired entry of the previous cap was counted"
    scene.planner.complete(subflow(1))
    scene.apply(1)
    assert scene.totals == (2, 1)


def test_outdated_entry_does_not_count() -> None:
    scene = Scene()
    scene.decide(verdict(1, CAP))
    outdated = dict(scene.planner.entries.upserts)
    scene.decide(verdict(1, OTHER))
    scene.apply_classes()
    scene.planner.entries.record_upserts(outdated)
    assert scene.totals == (0, 0)
    scene.apply(0.5)
    assert scene.totals == (1, 0.5)


def test_subflow_that_ends_or_loses_its_cap_does_not_count() -> None:
    scene = Scene(soft=True)
    scene.decide(verdict(1, CAP), verdict(2, CAP))
    scene.decide(uncapped(1, CAP))
    scene.apply()
    for number in (1, 2):
        scene.planner.entries.kernel_changed({subflow(number)}, True)
    assert scene.totals == (0, 0)
    assert not any(cap.decision_times for cap in scene.planner.caps.values())


def test_cap_that_takes_too_long_does_not_count() -> None:
    scene = Scene()
    scene.decide(verdict(1, CAP))
    scene.apply(MAX_CAP_SECONDS + 1)
    assert scene.totals == (0, 0)
    assert scene.histogram.as_json()["total"] == 0


def test_caps_of_load_balancing_and_dry_runs_do_not_count() -> None:
    scene = Scene()
    balancing = replace(verdict(1, CAP), scope=ScopeKey("b", Share.CONNECTION, (1, "any")))
    scene.decide(balancing)
    scene.apply(0.01)
    assert scene.totals == (0, 0)
    scene = Scene(dry=True)
    scene.decide(verdict(1, CAP))
    scene.apply(0.01)
    assert scene.totals == (0, 0)


def test_time_starts_at_the_first_decision_after_a_dry_run() -> None:
    """Defect: a cap that a dry run had reported did not count after the dry run was switched off."""
    scene = Scene(dry=True)
    for token in (1, 2):
        scene.decide(verdict(token, CAP), token=token)
    scene.decide(token=2)
    scene.now += 30.0
    scene.is_dry = False
    scene.decide(verdict(1, CAP))
    scene.apply(0.25)
    assert scene.totals == (1, 0.25)
    scene.decide(verdict(1, CAP))
    scene.apply(5)
    assert scene.totals == (1, 0.25), "a repeated decision was counted"


def test_ramp_that_ends_without_a_class_change_counts_immediately() -> None:
    """Defect: the cap counted only when some class changed, or never."""
    scene = Scene(soft=True)
    scene.decide(verdict(1, CAP))
    scene.planner.set_interim({subflow(1): CAP.throttle.ceil})  # type: ignore[union-attr]
    scene.planner.complete(subflow(1))
    scene.apply(0.1)
    assert scene.totals == (0, 0), "a cap was counted before its ramp was complete"
    scene.now += 0.4
    scene.planner.set_interim({subflow(1): None})
    assert scene.totals == (1, 0.5)
    scene.apply(1)
    assert scene.totals == (1, 0.5)


def test_change_of_only_the_onset_does_not_count() -> None:
    scene = Scene(soft=True)
    scene.decide(verdict(1, CAP), young=True)
    scene.apply()
    before = scene.totals
    assert CAP.throttle is not None
    scene.decide(verdict(1, replace(CAP, throttle=replace(CAP.throttle, landing=Onset.IMMEDIATE))))
    scene.apply(0.5)
    assert scene.totals == before


@scenario
async def test_summary_has_times_of_downloads_and_uploads(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.fill(four_tuple(WIFI))
    async with running(tmp_path, UNCAPPED, kernel) as scene:

        def count_and_sum(direction: str) -> tuple[int, float]:
            found = scene.request(query="summary")["effect"][direction]
            return found["total"], found["sum"]

        assert count_and_sum("down") == count_and_sum("up") == (0, 0)
        await scene.reload(CAPPED)
        await until(lambda: count_and_sum("down")[0] == 1)
        assert count_and_sum("down")[1] > 0.2, "the time of the transition was not counted"
        assert scene.request(query="summary")["reaction"]["total"] == 0, "a reaction was counted without a join"
        await scene.reload(CAPPED.replace("paths: [a],", "paths: [a], direction: up,"))
        await until(lambda: count_and_sum("up")[0] == 1)
        assert count_and_sum("down")[0] == 1
