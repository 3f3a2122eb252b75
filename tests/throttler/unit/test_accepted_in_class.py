# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the netfilter entries of subflows whose sockets inherited a cap's class when they were accepted."""

from __future__ import annotations

import pytest
from test_rate_transition import IDLE, MUCH_IN_FLIGHT
from test_shaping_plan import NOW, rule, subflow, throttle, uncapped, verdict
from test_transitions import Scene

from mptcp_throttler.policy.model import Share
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping import cap as cap_module
from mptcp_throttler.shaping.model import FIRST_MINOR, Target
from mptcp_throttler.shaping.plan import UNCAPPED, Planner

CAP = ScopeKey("cap", Share.PATH)


def scene_with_capped_subflow(*, inherits_class: bool = True) -> Scene:
    scene = Scene(rule())
    handle = scene.planner.class_of(CAP)
    assert handle is not None
    scene.planner.initial_classes = {handle} if inherits_class else ()
    scene.tcp[subflow(1)] = IDLE._replace(unacked=100)
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW, {subflow(1)})
    return scene


def entries(planner: Planner) -> dict[int, Target]:
    return {each: planner.entries.desired[subflow(each)] for each in (1, 2) if subflow(each) in planner.entries.desired}


def test_class_of_a_path_cap_is_found_by_its_scope() -> None:
    planner = Scene(rule()).planner
    assert planner.class_of(CAP) == 0x4D50_0010
    assert planner.class_of(ScopeKey("none", Share.PATH)) is None


def test_subflow_that_loses_its_cap_bypasses_the_class_until_it_ends() -> None:
    planner = scene_with_capped_subflow().planner
    assert entries(planner)[1].minor == 0x10
    planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    assert entries(planner) == {1: UNCAPPED}
    planner.set_verdicts(1, [uncapped(1, rule())], NOW + 1)
    assert entries(planner) == {1: UNCAPPED}
    planner.set_verdicts(1, (), NOW + 2)
    assert entries(planner) == {}


def test_subflow_bypasses_its_old_class_if_the_new_cap_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defect: the subflow's socket kept the class that it inherited, so the old cap applied again."""
    planner = scene_with_capped_subflow().planner
    connection_rule = rule("own", throttle(1_000_000, Share.CONNECTION))
    planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    monkeypatch.setattr(cap_module, "LAST_MINOR", FIRST_MINOR)
    for _ in range(2):
        with pytest.raises(cap_module.PlanError):
            planner.set_verdicts(1, [verdict(1, connection_rule)], NOW + 1)
        assert entries(planner) == {1: UNCAPPED}


def test_subflow_accepted_outside_the_class_needs_no_entry() -> None:
    planner = scene_with_capped_subflow(inherits_class=False).planner
    planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    assert entries(planner) == {}


def test_subflow_that_is_capped_again_with_much_data_in_flight_has_a_transition() -> None:
    scene = scene_with_capped_subflow()
    scene.planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    scene.tcp[subflow(1)] = MUCH_IN_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    assert subflow(1) in scene.planner.pending()
    assert entries(scene.planner) == {}
    scene.run(1.5)
    assert entries(scene.planner)[1].minor == 0x10
