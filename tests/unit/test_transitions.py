"""Rate transitions: what a socket may do from sample to sample, the level of a shared cap, who is limited to what."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_shaping_plan import NOW, policy, rule, subflow, throttle, verdict

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, TcpInfo
from mptcp_throttler.policy.model import Onset, Rule, Share, Throttle
from mptcp_throttler.shaping.model import NO_LIMIT, Ownership, SocketLimit
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.shaping.rate_transition import (
    MAX_DRAIN_SECONDS,
    MAX_SETTLE_SECONDS,
    MIN_UNSENT_BYTES,
    RAMP_SECONDS,
    Phase,
    RateTransition,
    needs_transition,
)
from mptcp_throttler.shaping.share import HEADROOM, max_min_level
from mptcp_throttler.shaping.transitions import FIRST_RECHECK_SECONDS, MAX_UNSAMPLED_SECONDS, Limits, Transitions

FULL_FLIGHT = TcpInfo(
    rtt=40_000,
    mss=1448,
    unacked=350,
    not_sent=2_000_000,
    pacing_rate=100_000_000,
    max_pacing_rate=None,
    delivery_rate=95_000_000,
    receive_window_limited=0,
)
IDLE = FULL_FLIGHT._replace(unacked=0, not_sent=0)

rates = st.integers(64_000, 10_000_000_000)


def test_drain_ramp_done() -> None:
    transition = RateTransition.of(FULL_FLIGHT, 5_000_000, 0.0)
    draining = transition.step(0.0, 2_000_000)
    assert transition.phase is Phase.DRAIN
    assert draining.rate is None, "what waits leaves at full speed"
    assert draining.not_sent is not None
    assert 230_000 < draining.not_sent < 240_000, "20 ms at 95 Mbit/s"
    assert transition.step(0.1, 900_000) == draining
    began = transition.step(0.2, draining.not_sent)
    assert transition.phase is Phase.RAMP
    assert began.rate == 95_000_000
    half = transition.step(0.2 + RAMP_SECONDS / 2, 50_000)
    assert half.rate == pytest.approx((95e6 * 5e6) ** 0.5, rel=0.01), "half-way of a geometric fall"
    assert transition.step(1.5, 50_000) == SocketLimit(5_000_000)
    assert transition.phase is Phase.DONE


def test_a_drain_that_does_not_end_is_cut_short() -> None:
    transition = RateTransition.of(FULL_FLIGHT, 5_000_000, 0.0)
    transition.step(MAX_DRAIN_SECONDS - 0.01, 2_000_000)
    assert transition.phase is Phase.DRAIN
    transition.step(MAX_DRAIN_SECONDS, 2_000_000)
    assert transition.phase is Phase.RAMP


def test_the_lower_the_cap_the_less_may_wait_towards_the_end() -> None:
    ends = []
    for target in (1_000_000, 5_000_000):
        transition = RateTransition.of(FULL_FLIGHT, target, 0.0)
        transition.step(0.0, 0)
        ends.append(8 * (transition.step(RAMP_SECONDS, 0).not_sent or 0) / target)
    assert ends[0] < 0.06 < 0.16 < ends[1], "seconds at the cap"


def test_what_may_wait_is_bounded_until_the_scheduler_follows() -> None:
    transition = RateTransition.of(FULL_FLIGHT, 5_000_000, 0.0)
    transition.step(0.0, 0)
    settling = transition.step(RAMP_SECONDS, 0)
    assert transition.phase is Phase.SETTLE
    assert transition.capped
    assert settling.rate == 5_000_000
    assert settling.not_sent is not None
    assert transition.step(RAMP_SECONDS + 0.5, 0) == SocketLimit(5_000_000)
    assert transition.phase is Phase.DONE


@given(start=rates, target=rates, samples=st.lists(st.tuples(st.floats(0, 0.2), st.integers(0, 10**8)), max_size=60))
def test_a_transition_only_ever_falls_never_below_its_target_and_ends(
    start: int, target: int, samples: list[tuple[float, int]]
) -> None:
    tcp = FULL_FLIGHT._replace(pacing_rate=start, delivery_rate=start)
    transition = RateTransition.of(tcp, target, 0.0)
    now, last = 0.0, float("inf")
    for pause, not_sent in [*samples, (MAX_DRAIN_SECONDS, 0), (RAMP_SECONDS + MAX_SETTLE_SECONDS + 0.001, 0)]:
        now += pause
        limit = transition.step(now, not_sent)
        rate = float("inf") if limit.rate is None else limit.rate
        assert target - 1 <= rate <= last
        assert limit.not_sent is None or limit.not_sent >= MIN_UNSENT_BYTES
        last = rate
    assert transition.phase is Phase.DONE
    assert transition.step(now, 0) == SocketLimit(target)


def test_who_needs_a_transition() -> None:
    assert needs_transition(FULL_FLIGHT, 5_000_000)
    assert not needs_transition(FULL_FLIGHT, 80_000_000), "a gentle fall"
    assert not needs_transition(IDLE, 5_000_000), "nothing on its way"


@given(ceil=rates, demands=st.lists(st.none() | st.integers(0, 10**10), min_size=1, max_size=20))
def test_a_level_gives_the_whole_cap_and_little_more(ceil: int, demands: list[int | None]) -> None:
    found = max_min_level(ceil, demands)
    assert ceil / len(demands) * 0.99 - 1 <= found <= ceil
    taken = sum(found / HEADROOM if demand is None else min(demand, found / HEADROOM) for demand in demands)
    assert taken <= ceil * 1.01 + len(demands)
    if None in demands and found < ceil:
        assert taken >= ceil * 0.99 - len(demands), "what satisfied ones leave goes to the backlogged"


def test_levels() -> None:
    assert max_min_level(5_000_000, [None]) == 5_000_000
    assert max_min_level(5_000_000, [None, None]) == 2_750_000
    assert max_min_level(5_000_000, [None, 0, 0, 0]) == 5_000_000
    assert max_min_level(9_000_000, [None, 1_000_000, None]) == 4_400_000


def soft_planner(*rules: Rule) -> Planner:
    planner = Planner(Ownership())
    planner.soft_caps = True
    planner.set_policy(policy(*rules))
    planner.prepare_path_classes(NOW)
    return planner


def test_a_soft_cap_has_its_entry_once_its_transition_is_complete() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    assert planner.pending() == [subflow(1)]
    assert not planner.entries.desired
    planner.complete(subflow(1))
    assert set(planner.entries.desired) == {subflow(1)}
    assert not planner.pending()
    planner.complete(subflow(2))
    assert set(planner.entries.desired) == {subflow(1)}


def test_a_subflow_that_leaves_in_transition_gets_no_entry() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.forget(1, NOW)
    assert not planner.pending()
    planner.complete(subflow(1))
    assert not planner.entries.desired


def test_an_entry_that_a_killed_daemon_left_needs_no_transition() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.complete(subflow(1))
    classes, entries = dict(planner.classes.desired), dict(planner.entries.desired)
    successor = Planner(planner.ownership)
    successor.soft_caps = True
    successor.set_policy(policy(rule()))
    successor.adopt(classes, entries)
    successor.set_verdicts(1, [verdict(1, rule())], NOW)
    assert not successor.pending()
    assert set(successor.entries.desired) == {subflow(1)}


def test_a_cap_that_falls_keeps_its_class_until_the_transitions_of_all_its_users_are_complete() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule()), verdict(2, rule())], NOW)
    for number in (1, 2):
        planner.complete(subflow(number))
    lower = rule(cap=throttle(1_000_000))
    planner.set_policy(policy(lower))
    planner.set_verdicts(1, [verdict(1, lower), verdict(2, lower)], NOW)
    rates = [spec.rate for spec in planner.classes.desired.values()]
    assert rates == [5_000_000]
    assert set(planner.pending()) == {subflow(1), subflow(2)}
    planner.complete(subflow(1))
    assert [spec.rate for spec in planner.classes.desired.values()] == [5_000_000]
    planner.complete(subflow(2))
    assert [spec.rate for spec in planner.classes.desired.values()] == [1_000_000]
    planner.set_policy(policy(rule()))
    assert [spec.rate for spec in planner.classes.desired.values()] == [5_000_000], "a cap rises at once"


def test_a_cap_that_falls_settles_when_its_pending_users_leave() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.complete(subflow(1))
    planner.set_policy(policy(rule(cap=throttle(1_000_000))))
    planner.forget(1, NOW)
    assert [spec.rate for spec in planner.classes.desired.values()] == [1_000_000]


def test_at_once_is_at_once() -> None:
    hard = rule(cap=Throttle(5_000_000, 5_000_000, None, Share.PATH, Onset.AT_ONCE))
    planner = soft_planner(hard)
    planner.set_verdicts(1, [verdict(1, hard)], NOW)
    assert set(planner.entries.desired) == {subflow(1)}
    assert planner.soft_cap(subflow(1)) is None


class Scene:
    """A planner and its transitions over made-up sockets, all in full flight unless said otherwise."""

    def __init__(self, *rules: Rule, obeys: bool = True) -> None:
        self.planner = soft_planner(*rules)
        self.transitions = Transitions(self.planner)
        self.tcp: dict[FourTuple, TcpInfo] = {}
        self.cookies: dict[FourTuple, int] = {}
        self.limits: dict[int, SocketLimit] = {}
        self.obeys = obeys
        self.planned = 0
        self.sampled = 0

    def sample(self, four_tuple: FourTuple) -> KernelSubflow | None:
        tcp = self.tcp.get(four_tuple)
        if tcp is None:
            return None
        cookie = self.cookies.get(four_tuple, four_tuple.remote[-1])
        limit = self.limits.get(cookie, NO_LIMIT)
        if self.obeys and limit.rate is not None:
            tcp = tcp._replace(max_pacing_rate=limit.rate, pacing_rate=limit.rate, not_sent=limit.not_sent or 50_000)
        return KernelSubflow(1, four_tuple, True, 0, 0, False, cookie=cookie, tcp=tcp)

    def do(self, limits: Limits) -> None:
        self.limits |= limits.wanted
        for cookie in limits.forgotten:
            self.limits.pop(cookie, None)
        self.planned += limits.planned

    def observe(self, asked: Iterable[FourTuple], now: float) -> None:
        wanted = list(asked)
        found = {each: sample for each in wanted if (sample := self.sample(each)) is not None}
        self.sampled += len(wanted)
        for limits in self.transitions.observe(wanted, found, now):
            self.do(limits)

    def run(self, seconds: float, start: float = 0.0) -> None:
        now = start
        while now < start + seconds:
            self.do(self.transitions.follow(now))
            self.observe(self.transitions.urgent(), now)
            self.observe(self.transitions.watched(), now)
            now += 0.02
            for four_tuple, tcp in self.tcp.items():
                self.tcp[four_tuple] = tcp._replace(not_sent=max(0, tcp.not_sent - 250_000))


def test_a_subflow_in_full_flight_is_capped_within_a_second() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = FULL_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.5)
    assert not scene.planner.entries.desired
    scene.run(0.5, start=0.5)
    assert set(scene.planner.entries.desired) == {subflow(1)}
    scene.run(1.0, start=1.0)
    assert scene.limits == {1: SocketLimit(5_000_000)}
    assert scene.planned == 1


def test_an_idle_subflow_is_capped_and_paced_at_once() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    assert set(scene.planner.entries.desired) == {subflow(1)}
    assert scene.limits == {1: SocketLimit(5_000_000)}


def test_a_subflow_whose_socket_is_gone_waits_for_nothing() -> None:
    scene = Scene(rule())
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    assert set(scene.planner.entries.desired) == {subflow(1)}


def test_a_socket_that_takes_no_limit_is_capped_all_the_same() -> None:
    scene = Scene(rule(), obeys=False)
    scene.tcp[subflow(1)] = FULL_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(1.0)
    assert set(scene.planner.entries.desired) == {subflow(1)}
    assert scene.limits == {1: SocketLimit(5_000_000)}, "it may have been slow to take one"


def test_a_subflow_that_leaves_its_cap_is_released() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = FULL_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(1.0)
    scene.planner.forget(1, NOW)
    scene.run(0.01, start=1.0)
    assert scene.limits == {1: NO_LIMIT}
    scene.run(0.01, start=1.0 + FIRST_RECHECK_SECONDS)
    assert scene.limits == {}


def test_a_released_socket_that_stays_idle_is_sampled_ever_more_seldom() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    scene.planner.forget(1, NOW)
    scene.obeys = False
    scene.tcp[subflow(1)] = IDLE._replace(max_pacing_rate=5_000_000)
    scene.do(scene.transitions.follow(1.0))
    before = scene.sampled
    for second in range(1, 301):
        scene.do(scene.transitions.follow(float(second)))
        scene.observe(scene.transitions.urgent(), float(second))
    assert scene.sampled - before <= 12
    assert scene.limits == {1: NO_LIMIT}


def test_a_port_that_is_used_again_has_a_socket_without_the_old_limit() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    scene.cookies[subflow(1)] = 77
    scene.planner.forget(1, NOW)
    scene.planner.set_verdicts(2, [verdict(1, rule())], NOW)
    scene.run(0.05, start=1.0)
    assert scene.limits == {77: SocketLimit(5_000_000)}


def test_many_at_once_have_each_its_part() -> None:
    scene = Scene(rule())
    verdicts = [verdict(number, rule()) for number in range(1, 11)]
    for each in verdicts:
        scene.tcp[each.four_tuple] = FULL_FLIGHT
    scene.planner.set_verdicts(1, verdicts, NOW)
    scene.run(1.0)
    assert len(scene.planner.entries.desired) == 10
    scene.run(4.0, start=1.0)
    assert {limit.rate for limit in scene.limits.values()} == {round(500_000 * HEADROOM)}


def test_ten_times_the_sharers_cost_ten_times_as_much() -> None:
    def cost(users: int) -> float:
        scene = Scene(rule())
        verdicts = [
            replace(verdict(1, rule()), four_tuple=FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\1", 1024 + number))
            for number in range(users)
        ]
        began = time.perf_counter()
        for number, each in enumerate(verdicts):
            scene.planner.set_verdicts(number, [each], NOW)
        scene.do(scene.transitions.follow(0.0))
        found = {
            each.four_tuple: KernelSubflow(1, each.four_tuple, True, 0, 0, False, cookie=number, tcp=IDLE)
            for number, each in enumerate(verdicts)
        }
        for limits in scene.transitions.observe(list(found), found, 0.0):
            scene.do(limits)
        assert len(scene.planner.entries.desired) == users
        return time.perf_counter() - began

    assert min(cost(5_000) for _ in range(3)) < 30 * min(cost(500) for _ in range(3)), "quadratic would be 100 times"


def test_limits_that_a_killed_daemon_left_are_lifted_where_no_cap_explains_them() -> None:
    scene = Scene(rule())
    left = FULL_FLIGHT._replace(max_pacing_rate=5_000_000)
    for number in (1, 2):
        scene.tcp[subflow(number)] = left
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    adopted = [KernelSubflow(1, subflow(n), True, 0, 0, False, cookie=n, tcp=left) for n in (1, 2)]
    scene.do(scene.transitions.adopt(adopted, 0.0))
    scene.run(0.01)
    assert scene.limits[2] == NO_LIMIT
    assert scene.limits.get(1) != NO_LIMIT


def test_a_stop_lifts_all_limits() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    scene.do(scene.transitions.release_all(1.0))
    assert scene.limits == {1: NO_LIMIT}
    scene.observe(scene.transitions.urgent(), 1.0)
    assert scene.limits == {}
    assert not scene.transitions.releasing


def test_what_cannot_be_sampled_is_not_left_uncapped() -> None:
    scene = Scene(rule())
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.do(scene.transitions.follow(0.0))
    scene.do(scene.transitions.missed(MAX_UNSAMPLED_SECONDS / 2))
    assert not scene.planner.entries.desired
    scene.do(scene.transitions.missed(MAX_UNSAMPLED_SECONDS + 0.1))
    assert set(scene.planner.entries.desired) == {subflow(1)}


def test_where_no_limit_is_taken_caps_begin_at_once() -> None:
    scene = Scene(rule())
    for number in (1, 2):
        scene.tcp[subflow(number)] = FULL_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule()), verdict(2, rule())], NOW)
    scene.run(0.1)
    assert not scene.planner.entries.desired
    scene.do(scene.transitions.refused())
    assert set(scene.planner.entries.desired) == {subflow(1), subflow(2)}


def test_the_one_that_is_left_of_two_may_take_the_whole_cap() -> None:
    scene = Scene(rule())
    for number in (1, 2):
        scene.tcp[subflow(number)] = FULL_FLIGHT
        scene.planner.set_verdicts(number, [verdict(number, rule())], NOW)
    scene.run(5.0)
    assert scene.limits[1].rate == round(2_500_000 * HEADROOM)
    scene.planner.forget(2, NOW)
    scene.run(0.1, start=5.0)
    assert scene.limits[1].rate == 5_000_000


def test_a_cap_that_falls_does_not_wait_for_those_that_come_meanwhile() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.complete(subflow(1))
    lower = rule(cap=throttle(1_000_000))
    planner.set_policy(policy(lower))
    planner.set_verdicts(1, [verdict(1, lower)], NOW)
    planner.set_verdicts(2, [verdict(2, lower)], NOW)
    planner.complete(subflow(1))
    assert planner.pending() == [subflow(2)]
    assert [spec.rate for spec in planner.classes.desired.values()] == [1_000_000]


def test_a_subflow_on_its_way_to_another_cap_is_held_by_the_one_that_it_had() -> None:
    one, other = rule("one"), rule("other", cap=throttle(1_000_000))
    scene = Scene(one)
    scene.tcp[subflow(1)] = FULL_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, one)], NOW)
    scene.run(2.0)
    (entry,) = scene.planner.entries.desired.values()
    scene.tcp[subflow(1)] = FULL_FLIGHT
    scene.planner.set_policy(policy(other))
    scene.planner.set_verdicts(1, [verdict(1, other)], NOW)
    scene.planner.expire(NOW)
    scene.run(0.1, start=2.0)
    assert scene.planner.entries.desired == {subflow(1): entry}
    assert entry.minor in scene.planner.classes.desired
    assert scene.limits[1].rate is not None
    assert scene.limits[1].rate <= 5_000_000, "it is never set free in between"
    scene.run(2.0, start=2.1)
    (later,) = scene.planner.entries.desired.values()
    assert later.minor != entry.minor
    scene.planner.expire(NOW)
    assert set(scene.planner.classes.desired) == {later.minor}


def test_a_subflow_that_loses_its_cap_and_gets_it_back_between_two_slices_begins_anew() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.do(scene.transitions.follow(0.0))
    many = [subflow(1), *(FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\2\0\1", port) for port in range(2000))]
    sample = scene.sample(subflow(1))
    assert sample is not None
    slices = scene.transitions.observe(many, {subflow(1): sample}, 0.0)
    scene.do(next(slices))
    scene.planner.forget(1, NOW)
    scene.do(scene.transitions.follow(0.0))
    scene.planner.set_verdicts(2, [verdict(1, rule())], NOW)
    scene.do(scene.transitions.follow(0.0))
    for limits in slices:
        scene.do(limits)
    scene.run(0.1, start=0.1)
    assert scene.limits == {1: SocketLimit(5_000_000)}
