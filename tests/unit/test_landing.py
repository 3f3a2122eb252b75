"""The soft landing: what a socket may do from look to look, the level of a shared cap, the lander's dialogue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_shaping_plan import NOW, policy, rule, subflow, throttle, verdict

from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.landing import Lander
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, TcpInfo
from mptcp_throttler.policy.model import LandingKind, Rule, Share, Throttle
from mptcp_throttler.shaping.landing import (
    LEAST_HOLD,
    LONGEST_DRAIN,
    LONGEST_SETTLE,
    RAMP_SECONDS,
    Landing,
    Phase,
    needs_landing,
)
from mptcp_throttler.shaping.model import NO_LIMIT, Ownership, SocketLimit
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.shaping.share import HEADROOM, level

FULL_FLIGHT = TcpInfo(
    rtt=40_000,
    min_rtt=20_000,
    mss=1448,
    cwnd=380,
    unacked=350,
    retransmissions=0,
    backoff=0,
    not_sent=2_000_000,
    pacing_rate=100_000_000,
    max_pacing_rate=None,
    delivery_rate=95_000_000,
    busy=3_000_000,
    receive_window_limited=0,
    send_buffer_limited=0,
)
IDLE = replace(FULL_FLIGHT, unacked=0, not_sent=0)

rates = st.integers(64_000, 10_000_000_000)


def test_drain_ramp_landed() -> None:
    landing = Landing.of(FULL_FLIGHT, 5_000_000, 0.0)
    draining = landing.look(0.0, 2_000_000)
    assert landing.phase is Phase.DRAIN
    assert draining.rate is None, "what waits leaves at full speed"
    assert draining.not_sent is not None
    assert 230_000 < draining.not_sent < 240_000, "20 ms at 95 Mbit/s"
    assert landing.look(0.1, 900_000) == draining
    began = landing.look(0.2, draining.not_sent)
    assert landing.phase is Phase.RAMP
    assert began.rate == 95_000_000
    half = landing.look(0.2 + RAMP_SECONDS / 2, 50_000)
    assert half.rate == pytest.approx((95e6 * 5e6) ** 0.5, rel=0.01), "half-way of a geometric fall"
    assert landing.look(1.5, 50_000) == SocketLimit(5_000_000)
    assert landing.phase is Phase.LANDED


def test_a_drain_that_does_not_end_is_cut_short() -> None:
    landing = Landing.of(FULL_FLIGHT, 5_000_000, 0.0)
    landing.look(LONGEST_DRAIN - 0.01, 2_000_000)
    assert landing.phase is Phase.DRAIN
    landing.look(LONGEST_DRAIN, 2_000_000)
    assert landing.phase is Phase.RAMP


def test_the_lower_the_cap_the_less_may_wait_towards_the_end() -> None:
    ends = []
    for target in (1_000_000, 5_000_000):
        landing = Landing.of(FULL_FLIGHT, target, 0.0)
        landing.look(0.0, 0)
        ends.append(8 * (landing.look(RAMP_SECONDS, 0).not_sent or 0) / target)
    assert ends[0] < 0.06 < 0.16 < ends[1], "seconds at the cap"


def test_what_may_wait_is_bounded_until_the_scheduler_has_learnt() -> None:
    landing = Landing.of(FULL_FLIGHT, 5_000_000, 0.0)
    landing.look(0.0, 0)
    settling = landing.look(RAMP_SECONDS, 0)
    assert landing.phase is Phase.SETTLE
    assert landing.capped
    assert settling.rate == 5_000_000
    assert settling.not_sent is not None
    assert landing.look(RAMP_SECONDS + 0.5, 0) == SocketLimit(5_000_000)
    assert landing.phase is Phase.LANDED


@given(start=rates, target=rates, looks=st.lists(st.tuples(st.floats(0, 0.2), st.integers(0, 10**8)), max_size=60))
def test_a_landing_only_ever_falls_never_below_its_target_and_ends(
    start: int, target: int, looks: list[tuple[float, int]]
) -> None:
    tcp = replace(FULL_FLIGHT, pacing_rate=start, delivery_rate=start)
    landing = Landing.of(tcp, target, 0.0)
    now, last = 0.0, float("inf")
    for pause, not_sent in [*looks, (LONGEST_DRAIN, 0), (RAMP_SECONDS + LONGEST_SETTLE + 0.001, 0)]:
        now += pause
        limit = landing.look(now, not_sent)
        rate = float("inf") if limit.rate is None else limit.rate
        assert target - 1 <= rate <= last
        assert limit.not_sent is None or limit.not_sent >= LEAST_HOLD
        last = rate
    assert landing.phase is Phase.LANDED
    assert landing.look(now, 0) == SocketLimit(target)


def test_who_needs_to_land() -> None:
    assert needs_landing(FULL_FLIGHT, 5_000_000)
    assert not needs_landing(FULL_FLIGHT, 80_000_000), "a gentle fall"
    assert not needs_landing(IDLE, 5_000_000), "nothing on its way"


@given(ceil=rates, wishes=st.lists(st.none() | st.integers(0, 10**10), min_size=1, max_size=20))
def test_a_level_gives_the_whole_cap_and_little_more(ceil: int, wishes: list[int | None]) -> None:
    found = level(ceil, wishes)
    assert ceil / len(wishes) * 0.99 - 1 <= found <= ceil
    taken = sum(found / HEADROOM if wish is None else min(wish, found / HEADROOM) for wish in wishes)
    assert taken <= ceil * 1.01 + len(wishes)
    if None in wishes and found < ceil:
        assert taken >= ceil * 0.99 - len(wishes), "what satisfied ones leave goes to the hungry"


def test_levels() -> None:
    assert level(5_000_000, [None]) == 5_000_000
    assert level(5_000_000, [None, None]) == 2_750_000
    assert level(5_000_000, [None, 0, 0, 0]) == 5_000_000
    assert level(9_000_000, [None, 1_000_000, None]) == 4_400_000


def soft_planner(*rules: Rule) -> Planner:
    planner = Planner(Ownership())
    planner.soft = True
    planner.set_policy(policy(*rules))
    planner.prepare_path_classes(NOW)
    return planner


def test_a_soft_cap_has_its_entry_once_landed() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    assert planner.landing == {subflow(1)}
    assert not planner.entries.desired
    planner.landed(subflow(1))
    assert set(planner.entries.desired) == {subflow(1)}
    assert not planner.landing
    planner.landed(subflow(2))
    assert set(planner.entries.desired) == {subflow(1)}


def test_a_subflow_that_leaves_while_landing_gets_no_entry() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.forget(1, NOW)
    assert not planner.landing
    planner.landed(subflow(1))
    assert not planner.entries.desired


def test_an_entry_that_a_killed_daemon_left_needs_no_landing() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.landed(subflow(1))
    classes, entries = dict(planner.classes.desired), dict(planner.entries.desired)
    successor = Planner(planner.ownership)
    successor.soft = True
    successor.set_policy(policy(rule()))
    successor.adopt(classes, entries)
    successor.set_verdicts(1, [verdict(1, rule())], NOW)
    assert not successor.landing
    assert set(successor.entries.desired) == {subflow(1)}


def test_a_cap_that_falls_keeps_its_class_until_all_its_users_have_landed() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule()), verdict(2, rule())], NOW)
    for number in (1, 2):
        planner.landed(subflow(number))
    lower = rule(cap=throttle(1_000_000))
    planner.set_policy(policy(lower))
    planner.set_verdicts(1, [verdict(1, lower), verdict(2, lower)], NOW)
    rates = [spec.rate for spec in planner.classes.desired.values()]
    assert rates == [5_000_000]
    assert planner.landing == {subflow(1), subflow(2)}
    planner.landed(subflow(1))
    assert [spec.rate for spec in planner.classes.desired.values()] == [5_000_000]
    planner.landed(subflow(2))
    assert [spec.rate for spec in planner.classes.desired.values()] == [1_000_000]
    planner.set_policy(policy(rule()))
    assert [spec.rate for spec in planner.classes.desired.values()] == [5_000_000], "a cap rises at once"


def test_a_cap_that_falls_settles_when_its_landing_users_leave() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.landed(subflow(1))
    planner.set_policy(policy(rule(cap=throttle(1_000_000))))
    planner.forget(1, NOW)
    assert [spec.rate for spec in planner.classes.desired.values()] == [1_000_000]


def test_at_once_is_at_once() -> None:
    hard = rule(cap=Throttle(5_000_000, 5_000_000, None, Share.PATH, LandingKind.AT_ONCE))
    planner = soft_planner(hard)
    planner.set_verdicts(1, [verdict(1, hard)], NOW)
    assert set(planner.entries.desired) == {subflow(1)}
    assert planner.ceil_of(subflow(1)) is None


class FakePacing:
    """Sockets that take their limits at once, as the kernel's do a round trip later."""

    def __init__(self) -> None:
        self.limits: dict[int, SocketLimit] = {}
        self.closed = False

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        self.limits.update(limits)

    def forget(self, cookies: Iterable[int]) -> None:
        for cookie in cookies:
            self.limits.pop(cookie, None)

    def close(self) -> None:
        self.closed = True


class Scene:
    """A planner and a lander over fake sockets, all in full flight unless said otherwise."""

    def __init__(self, *rules: Rule, obeys: bool = True) -> None:
        self.planner = soft_planner(*rules)
        self.pacing = FakePacing()
        self.tcp: dict[FourTuple, TcpInfo] = {}
        self.obeys = obeys
        self.changes = 0
        self.lander = Lander(self.planner, self.pacing, self.look, self.landed)

    def landed(self) -> None:
        self.changes += 1

    def look(self, four_tuple: FourTuple) -> KernelSubflow | None:
        tcp = self.tcp.get(four_tuple)
        if tcp is None:
            return None
        cookie = four_tuple.remote[-1]
        limit = self.pacing.limits.get(cookie, NO_LIMIT)
        if self.obeys and limit.rate is not None:
            tcp = replace(tcp, max_pacing_rate=limit.rate, pacing_rate=limit.rate, not_sent=limit.not_sent or 50_000)
        return KernelSubflow(1, four_tuple, True, 0, 0, False, cookie=cookie, tcp=tcp)

    def run(self, seconds: float, until: float = 0.0) -> None:
        now = until
        while now < until + seconds:
            self.lander.step(now)
            now += 0.02
            for four_tuple, tcp in self.tcp.items():
                self.tcp[four_tuple] = replace(tcp, not_sent=max(0, tcp.not_sent - 250_000))


def test_a_subflow_in_full_flight_is_landed_within_a_second() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = FULL_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.5)
    assert not scene.planner.entries.desired
    scene.run(0.5, until=0.5)
    assert set(scene.planner.entries.desired) == {subflow(1)}
    scene.run(1.0, until=1.0)
    assert scene.pacing.limits == {1: SocketLimit(5_000_000)}
    assert scene.changes == 1


def test_an_idle_subflow_is_capped_and_paced_at_once() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    assert set(scene.planner.entries.desired) == {subflow(1)}
    assert scene.pacing.limits == {1: SocketLimit(5_000_000)}


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
    assert scene.pacing.limits == {1: SocketLimit(5_000_000)}, "it may have been slow to take one"


def test_a_subflow_that_leaves_its_cap_is_set_free() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = FULL_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(1.0)
    scene.planner.forget(1, NOW)
    scene.run(0.01, until=1.0)
    assert scene.pacing.limits == {1: NO_LIMIT}
    scene.lander._finish_releases()
    assert scene.pacing.limits == {}


def test_many_land_at_once_each_on_its_part() -> None:
    scene = Scene(rule())
    verdicts = [verdict(number, rule()) for number in range(1, 11)]
    for each in verdicts:
        scene.tcp[each.four_tuple] = FULL_FLIGHT
    scene.planner.set_verdicts(1, verdicts, NOW)
    scene.run(1.0)
    assert len(scene.planner.entries.desired) == 10
    scene.run(4.0, until=1.0)
    assert {limit.rate for limit in scene.pacing.limits.values()} == {round(500_000 * HEADROOM)}


def test_limits_that_a_killed_daemon_left_are_taken_back_where_no_cap_explains_them() -> None:
    scene = Scene(rule())
    left = replace(FULL_FLIGHT, max_pacing_rate=5_000_000)
    for number in (1, 2):
        scene.tcp[subflow(number)] = left
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.lander.adopt([KernelSubflow(1, subflow(n), True, 0, 0, False, cookie=n, tcp=left) for n in (1, 2)])
    scene.run(0.01)
    assert scene.pacing.limits[2] == NO_LIMIT
    assert scene.pacing.limits.get(1) != NO_LIMIT


def test_a_stop_takes_all_limits_back() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    asyncio.run(scene.lander.close())
    assert scene.pacing.limits == {}
    assert scene.pacing.closed


def test_what_the_kernel_refuses_leaves_nobody_uncapped() -> None:
    scene = Scene(rule())

    def refuse(_: FourTuple) -> KernelSubflow | None:
        raise KernelError("list TCP sockets: no")

    scene.lander._look = refuse
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    assert set(scene.planner.entries.desired) == {subflow(1)}
