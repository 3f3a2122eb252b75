# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the states of subflows whose caps begin or end, with random sequences of events."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rate_transition import IDLE, MUCH_IN_FLIGHT
from test_shaping_plan import NOW, rule, subflow, throttle, uncapped, verdict
from test_transitions import Scene

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.onset.downloads import State
from mptcp_throttler.shaping.plan import DRAIN_SECONDS

NUMBERS = st.integers(1, 4)
STEPS = st.one_of(
    st.tuples(
        st.sampled_from(["cap", "cap at accept", "uncap", "rest", "end", "closed", "busy", "idle", "new cookie"]),
        NUMBERS,
    ),
    st.tuples(st.just("wait"), st.sampled_from([1, 5, 50, 500])),
    st.tuples(st.just("missed"), st.just(0)),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_each_subflow_is_in_the_tables_of_its_state_until_it_ends(steps: list[tuple[str, int]]) -> None:
    scene, now, cap = Scene(rule(cap=throttle(1_000_000))), 10.0, rule(cap=throttle(1_000_000))
    for step, number in steps:
        four_tuple = subflow(number)
        match step:
            case "cap" | "cap at accept":
                scene.planner.set_verdicts(
                    number, [verdict(number, cap)], NOW, {four_tuple} if step == "cap at accept" else ()
                )
            case "uncap":
                scene.planner.set_verdicts(number, [uncapped(number, cap)], NOW)
            case "rest":
                scene.planner.set_verdicts(number, [uncapped(number, cap)._replace(rests=True)], NOW)
            case "end":
                scene.planner.set_verdicts(number, (), NOW)
            case "closed":
                scene.tcp.pop(four_tuple, None)
            case "busy" | "idle":
                scene.tcp[four_tuple] = MUCH_IN_FLIGHT if step == "busy" else IDLE
            case "new cookie":
                scene.cookies[four_tuple] = scene.cookies.get(four_tuple, number) + 100
            case "missed":
                scene.perform(scene.transitions.handle_failed_sampling(now))
            case _:
                scene.run(number / 100, now)  # hundredths of a second
                now += number / 100
        check_tables_of_states(scene)
    scene.tcp.clear()
    for number in range(1, 5):
        scene.planner.set_verdicts(number, (), NOW)
    for _ in range(2):
        scene.planner.expire(NOW + DRAIN_SECONDS)
        scene.run(0.1, now + 100)
        now += 200
    onsets = scene.transitions
    assert (onsets._sockets, onsets._urgent, onsets._first_checks, onsets._later_checks, scene.limits) == ({},) * 5


def check_tables_of_states(scene: Scene) -> None:
    onsets, by_state = scene.transitions, dict[State, set[FourTuple]]()
    for each, socket in onsets._sockets.items():
        by_state.setdefault(socket.state, set()).add(each)
    assert onsets._urgent.keys() == by_state.get(State.PENDING, set()) | by_state.get(State.TRANSITION, set())
    assert {*onsets._first_checks, *onsets._later_checks} == by_state.get(State.RELEASING, set())
    assert not onsets._first_checks.keys() & onsets._later_checks.keys()
    for checks in (onsets._first_checks, onsets._later_checks):
        assert list(checks.values()) == sorted(checks.values())
    for socket in onsets._sockets.values():
        assert (socket.transition is not None) is (socket.state is State.TRANSITION)
        assert socket.cookie or socket.state is State.PENDING
