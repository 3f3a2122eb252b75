# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for byte counts per path and per cap, from samples and from the meter of closed sockets."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fake_kernel import IDLE, four_tuple
from hypothesis import given
from hypothesis import strategies as st
from policy_values import a_rule, a_throttle, replace

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Subflow
from mptcp_throttler.policy.model import Direction, Onset, Share, Throttle
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.stages.stage import Samples
from mptcp_throttler.telemetry import traffic
from mptcp_throttler.telemetry.decision import Comparer
from mptcp_throttler.telemetry.traffic import CapKey, PathKey, Rates, Traffic

THROTTLE = a_throttle(1_000_000, 1_000_000, None, Share.PATH)
RULE = a_rule("cap", ("a",), THROTTLE)
FIRST, SECOND = four_tuple("10.1.0.1"), four_tuple("10.1.0.2")


def verdict(
    subflow: FourTuple, path: str | None = "a", direction: Direction = Direction.DOWN, cap: bool = True
) -> Verdict:
    scope = ScopeKey("cap", Share.PATH, direction=direction)
    if not cap:
        return Verdict(subflow, path, None, None, None, "", direction)
    return Verdict(subflow, path, RULE, scope, THROTTLE, "", direction)


def connection(token: int, *subflows: FourTuple, interface: str = "w0") -> Connection:
    tracked = [Subflow(each, True, 0, 0, False, interface, 0.0) for each in subflows]
    return Connection(token, tuple(tracked), 0.0)


class Scene:
    """A Traffic object with a clock that the test sets."""

    def __init__(self, started: bool = True) -> None:
        self.now = 100.0
        self.sweep_seconds = 0.0
        self.is_dry = False
        self.traffic = Traffic(lambda: self.now, lambda: self.sweep_seconds)
        self.comparer = Comparer()
        self.verdicts: dict[int, tuple[Verdict, ...]] = {}
        self.tokens: dict[FourTuple, int] = {}
        if started:
            self.traffic.begin({})

    def decide(self, token: int, *verdicts: Verdict, interface: str = "w0") -> None:
        tracked = connection(token, *(each.four_tuple for each in verdicts), interface=interface) if verdicts else None
        before = self.verdicts.pop(token, ())
        self.traffic.record_decision(
            self.comparer.compare(token, tracked, before, verdicts, self.now, is_dry=self.is_dry)
        )
        self.verdicts[token] = verdicts
        self.tokens |= dict.fromkeys((each.four_tuple for each in verdicts), token)

    def sample(self, *sockets: tuple[FourTuple, int, int, int]) -> None:
        """Sample *sockets*, each given as subflow, cookie, acknowledged bytes and received bytes."""
        self.now += 1.0
        sampled_sockets = {
            each[0]: KernelSubflow(
                self.tokens.get(each[0], 1),
                each[0],
                True,
                0,
                0,
                False,
                self.now,
                each[2],
                each[3],
                cookie=each[1],
                tcp=IDLE,
            )
            for each in sockets
        }
        for _ in self.traffic.observe(Samples(self.now, sampled_sockets, True)):
            pass

    @property
    def path(self) -> tuple[int, int]:
        """Bytes sent and received on path a over w0."""
        return self.path_totals(PathKey("a", "w0"))

    def path_totals(self, key: PathKey) -> tuple[int, int]:
        total = self.traffic.paths.get(key)
        return (0, 0) if total is None else (total.sent, total.received)

    def cap(self, direction: Direction = Direction.DOWN) -> int:
        return self.traffic.caps[CapKey("cap", "a", direction)].bytes


def test_samples_count_the_bytes_since_the_previous_sample() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST), verdict(FIRST, direction=Direction.UP))
    scene.sample((FIRST, 1, 1_000, 10))
    scene.sample((FIRST, 1, 1_500, 12))
    assert scene.path == (1_500, 12)
    assert (scene.cap(), scene.cap(Direction.UP)) == (1_500, 12)
    assert scene.traffic.rates(FIRST) == Rates(4_000, 16)
    assert scene.traffic.byte_counts(FIRST) == (1_500, 12)


def test_bytes_count_for_the_cap_in_force_at_the_sample() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST, cap=False))
    scene.sample((FIRST, 1, 1_000, 0))
    scene.decide(7, verdict(FIRST))
    scene.sample((FIRST, 1, 1_700, 0))
    scene.decide(7, verdict(FIRST, path="b", cap=False))
    scene.sample((FIRST, 1, 1_800, 0))
    assert scene.cap() == 700
    assert scene.path == (1_700, 0)
    assert scene.path_totals(PathKey("b", "w0")) == (100, 0)


def test_bytes_from_before_the_start_do_not_count() -> None:
    scene = Scene(started=False)
    scene.decide(7, verdict(FIRST))
    assert not scene.traffic.watches_any()
    scene.traffic.begin({FIRST: KernelSubflow(7, FIRST, True, 0, 0, False, 0.0, 10_000, 10, cookie=1)})
    scene.sample((FIRST, 1, 10_400, 11))
    assert scene.path == (400, 1)


def test_meter_adds_the_bytes_after_the_last_sample() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST), verdict(SECOND))
    scene.sample((FIRST, 1, 1_000, 0))
    scene.decide(7)
    scene.traffic.socket_closed(1, (FIRST.remote, FIRST.remote_port, FIRST.local_port), 1_300, 5)
    # This socket was never sampled. Only the meter reports it, when it is closed.
    scene.traffic.socket_closed(2, (SECOND.remote, SECOND.remote_port, SECOND.local_port), 50, 0)
    assert scene.path == (1_350, 5)
    assert scene.cap() == 1_350


def test_meter_may_report_a_socket_before_the_tracker_reports_its_close() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST), verdict(SECOND))
    scene.sample((FIRST, 1, 1_000, 0))
    for cookie, subflow in ((1, FIRST), (2, SECOND)):
        scene.traffic.socket_closed(cookie, (subflow.remote, subflow.remote_port, subflow.local_port), 2_000, 0)
    scene.decide(7)
    assert scene.path == (4_000, 0)


def test_closed_socket_counts_once_although_another_socket_had_its_port() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST))
    scene.sample((FIRST, 1, 1_000, 0))
    scene.decide(7)
    addresses = (FIRST.remote, FIRST.remote_port, FIRST.local_port)
    scene.traffic.socket_closed(5, addresses, 70_000, 0)  # In between, another socket had the port.
    scene.traffic.socket_closed(1, addresses, 1_100, 0)
    scene.traffic.socket_closed(1, addresses, 1_100, 0)
    assert scene.path == (1_100, 0)


def test_report_is_not_used_for_the_next_socket_with_the_same_ports() -> None:
    scene = Scene()
    addresses = (FIRST.remote, FIRST.remote_port, FIRST.local_port)
    scene.decide(7, verdict(FIRST))
    scene.sample((FIRST, 1, 1_000, 0))
    scene.traffic.socket_closed(1, addresses, 1_500, 0)
    scene.decide(7)
    # This connection is never sampled, and has ended before the meter reports it.
    scene.decide(8, verdict(FIRST))
    scene.decide(8)
    scene.traffic.socket_closed(2, addresses, 40, 0)
    assert scene.path == (1_540, 0)


def test_counting_restarts_on_a_reused_port() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST))
    scene.sample((FIRST, 1, 1_000, 0))
    scene.decide(8, verdict(FIRST))  # The tracker missed the end of the previous connection.
    scene.sample((FIRST, 2, 300, 0))
    scene.decide(7)
    scene.sample((FIRST, 2, 400, 0))
    assert scene.path == (1_400, 0)


def test_sockets_closed_long_ago_are_removed() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST))
    scene.sample((FIRST, 1, 1_000, 0))
    scene.decide(7)
    scene.traffic.socket_closed(9, (b"", 1, 2), 1, 1)
    scene.now += traffic.CLOSED_SECONDS + 1
    scene.sample()
    scene.traffic.socket_closed(1, (FIRST.remote, FIRST.remote_port, FIRST.local_port), 2_000, 0)
    assert scene.path == (1_000, 0)
    assert len(scene.traffic._closed) == 0
    scene.now += traffic.REPORTED_SECONDS + 1
    scene.sample()
    assert len(scene.traffic._reported) == 0


def test_socket_counts_if_it_closes_long_after_its_subflow_ended() -> None:
    """The subflow has ended for the tracker, but the kernel continues to send its queued data."""
    scene = Scene()
    scene.decide(7, verdict(FIRST))
    scene.sample((FIRST, 1, 1_000, 0))
    scene.decide(7)
    for _ in range(100):
        scene.sample()
    scene.traffic.socket_closed(1, (FIRST.remote, FIRST.remote_port, FIRST.local_port), 2_000, 0)
    assert scene.path == (2_000, 0)


def test_counts_are_current_if_no_socket_is_open() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST))
    scene.sample((FIRST, 1, 1_000, 0))
    counted = scene.traffic.counted_at
    scene.now += 1.0
    scene.traffic.note_all_reported()
    assert scene.traffic.counted_at == counted, "the counts seem current, although a socket is open"
    scene.decide(7)
    scene.now += 1.0
    scene.traffic.note_all_reported()
    assert scene.traffic.counted_at == scene.now


def test_number_of_unreported_closed_sockets_is_bounded() -> None:
    scene = Scene()
    for number in range(traffic.MAX_CLOSED + 100):
        scene.decide(number, verdict(four_tuple("10.1.0.1", number)))
        scene.decide(number)
    assert len(scene.traffic._closed) == traffic.MAX_CLOSED
    last = four_tuple("10.1.0.1", traffic.MAX_CLOSED + 99)
    scene.traffic.socket_closed(1, (last.remote, last.remote_port, last.local_port), 5, 0)
    assert scene.path == (5, 0)


def test_reports_of_plain_tcp_sockets_are_removed_without_samples() -> None:
    scene = Scene()
    for number in range(1_000):
        scene.now += 1.0
        scene.traffic.socket_closed(number, (b"", number, 3128), 1, 1)
        scene.traffic.socket_closed(10_000 + number, (b"the same port again", 1, 3128), 1, 1)
    assert len(scene.traffic._reported) <= 4 * (traffic.REPORTED_SECONDS + 1)


def test_slow_sweeps_are_less_frequent() -> None:
    scene = Scene()
    assert not scene.traffic.watches_any(), "a sweep is due, although no subflow exists"
    scene.decide(7, verdict(FIRST))
    assert scene.traffic.watches_any()
    assert set(scene.traffic.watched()) == {FIRST}
    scene.sweep_seconds = 0.12
    scene.sample((FIRST, 1, 0, 0))
    scene.now += 5.9
    assert not scene.traffic.watches_any()
    assert not scene.traffic.watched()
    scene.now += 0.2
    assert scene.traffic.watches_any()
    scene.sweep_seconds = 0.001
    scene.sample((FIRST, 1, 0, 0))
    scene.now += 0.9
    assert not scene.traffic.watches_any()
    scene.now += 0.2
    assert scene.traffic.watches_any()


def test_uploads_count_for_no_cap_after_the_upload_rules_are_removed() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST), verdict(FIRST, direction=Direction.UP))
    scene.sample((FIRST, 1, 1_000, 10))
    scene.decide(7, verdict(FIRST))
    scene.sample((FIRST, 1, 2_000, 20))
    assert (scene.cap(), scene.cap(Direction.UP)) == (2_000, 10)


def test_age_of_a_cap_restarts_when_its_rate_changes() -> None:
    """Defect: the start of the previous cap was reported as the start of a cap.

    For example, a reload or a budget step replaced a cap of 5 Mbit/s with a cap of 2 Mbit/s.
    """
    scene = Scene()
    slower, immediate = replace(THROTTLE, ceil=500_000), replace(THROTTLE, landing=Onset.IMMEDIATE)

    def age(throttle: Throttle, **scope: Any) -> float:
        """Ten seconds later, give both subflows the cap. Return the age of this cap in seconds."""
        scene.now += 10.0
        capped = []
        for each in (verdict(FIRST), verdict(SECOND)):
            assert each.scope is not None
            capped.append(replace(each, throttle=throttle, scope=replace(each.scope, **scope)))
        scene.decide(7, *capped)
        first, second = (scene.traffic.cap_since(each, Direction.DOWN) for each in (FIRST, SECOND))
        assert first == second
        assert first is not None
        return scene.now - first

    assert [age(THROTTLE), age(THROTTLE), age(immediate)] == [0, 10, 20]
    assert [age(slower), age(slower)] == [0, 10], "the age of a new rate does not start at 0"
    assert [age(slower, step=1_000), age(slower, step=1_000), age(slower, step=2_000)] == [0, 10, 0]
    balanced = {"share": Share.CONNECTION, "member": (7, "a")}
    assert [age(THROTTLE, **balanced), age(slower, **balanced)] == [0, 10], (
        "a new rate from load balancing restarted the age"
    )


def test_cap_of_a_dry_run_starts_when_the_dry_run_ends() -> None:
    """Defect: after a dry run, explain reported that the cap had been in force since the dry run."""
    scene = Scene()
    verdicts = [verdict(FIRST), verdict(FIRST, direction=Direction.UP), verdict(SECOND, cap=False)]

    def ages(*, dry: bool) -> list[float]:
        """Ten seconds later, repeat the decision.

        Return for how many seconds the subflow has had its download cap, had its upload cap, and had no cap.
        """
        scene.now += 10.0
        scene.is_dry = dry
        scene.decide(7, *verdicts)
        requested = ((FIRST, Direction.DOWN), (FIRST, Direction.UP), (SECOND, Direction.DOWN))
        return [scene.now - (scene.traffic.cap_since(*each) or 0.0) for each in requested]

    assert [ages(dry=True), ages(dry=True)] == [[0, 0, 0], [10, 10, 10]]
    assert [ages(dry=False), ages(dry=False)] == [[0, 0, 20], [10, 10, 30]], (
        "the time without a cap depends on the dry run"
    )
    assert [ages(dry=True), ages(dry=True)] == [[0, 0, 40], [10, 10, 50]]
    assert scene.traffic.capped_count == 1
    (down,) = (each for each in scene.traffic.caps.values() if each.key.direction is Direction.DOWN)
    assert (down.subflows, len(scene.traffic.classes)) == (1, 2), "there is not one class in each direction"
    scene.decide(7)
    assert not scene.comparer._dry_tokens
    assert (scene.traffic.capped_count, down.subflows, scene.traffic.classes) == (0, 0, {})


def test_subflow_that_moves_to_another_interface_counts_there() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST))
    scene.decide(7, verdict(FIRST), interface="w1")
    scene.sample((FIRST, 1, 1_000, 10))
    assert (scene.path, scene.path_totals(PathKey("a", "w1"))) == ((0, 0), (1_000, 10))
    assert {key.interface: total.subflows for key, total in scene.traffic.paths.items()} == {"w0": 0, "w1": 1}


def test_totals_in_use_are_kept_when_unused_totals_are_removed() -> None:
    scene = Scene()
    scene.decide(8, verdict(SECOND))
    for number in range(traffic.MAX_CAPS + 10):
        scene.decide(7, verdict(FIRST, path=f"p{number}"))
    assert len(scene.traffic.caps) == traffic.MAX_CAPS
    assert scene.traffic.caps[CapKey("cap", "a", Direction.DOWN)].subflows == 1


_step = st.one_of(
    st.tuples(st.just("decide"), st.integers(1, 2), st.sampled_from([FIRST, SECOND]), st.booleans()),
    st.tuples(st.just("end"), st.integers(1, 2)),
    st.tuples(st.just("sample"), st.sampled_from([FIRST, SECOND]), st.integers(1, 3), st.integers(0, 5_000)),
    st.tuples(st.just("close"), st.sampled_from([FIRST, SECOND]), st.integers(1, 3), st.integers(0, 5_000)),
)


@given(st.lists(_step, max_size=40))
def test_totals_never_decrease(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    scene = Scene()
    before = [0, 0, 0]
    for kind, *arguments in steps:
        if kind == "decide":
            token, subflow, cap = arguments
            scene.decide(token, verdict(subflow, cap=cap))
        elif kind == "end":
            scene.decide(arguments[0])
        elif kind == "sample":
            subflow, cookie, octets = arguments
            scene.sample((subflow, cookie, octets, octets // 2))
        else:
            subflow, cookie, octets = arguments
            scene.traffic.socket_closed(
                cookie, (subflow.remote, subflow.remote_port, subflow.local_port), octets, octets
            )
        totals = scene.path
        cap = scene.traffic.caps.get(CapKey("cap", "a", Direction.DOWN))
        now = [*totals, 0 if cap is None else cap.bytes]
        assert all(earlier <= later for earlier, later in zip(before, now, strict=True))
        before = now


_decision = st.tuples(
    st.integers(1, 3),
    st.booleans(),
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None]), st.booleans(), st.booleans()),
        max_size=3,
        unique_by=lambda each: each[0],
    ),
)


@given(st.lists(_decision, max_size=30))
def test_subflow_counts_of_paths_and_caps_agree_with_the_verdicts(decisions: list[tuple]) -> None:  # type: ignore[type-arg]
    """Subflows change their path, lose caps, end and begin. Each connection has its own ports."""
    scene = Scene()
    for token, uploads, subflows in decisions:
        down = [(four_tuple("10.1.0.1", 10 * token + each), path, cap) for each, path, cap, _ in subflows]
        up = [(four_tuple("10.1.0.1", 10 * token + each), path, cap) for each, path, _, cap in subflows if uploads]
        scene.decide(
            token,
            *(verdict(subflow, path, cap=cap) for subflow, path, cap in down),
            *(verdict(subflow, path, Direction.UP, cap) for subflow, path, cap in up),
        )
        all_verdicts = [each for verdicts in scene.verdicts.values() for each in verdicts]
        paths = Counter(each.path for each in all_verdicts if each.direction is Direction.DOWN)
        assert {key.path: total.subflows for key, total in scene.traffic.paths.items() if total.subflows} == paths
        caps = Counter(CapKey("cap", each.path, each.direction) for each in all_verdicts if each.scope is not None)
        assert {key: total.subflows for key, total in scene.traffic.caps.items() if total.subflows} == caps
        assert scene.traffic.capped_count == len({each.four_tuple for each in all_verdicts if each.scope is not None})


def test_socket_of_an_earlier_connection_does_not_count_for_a_later_one() -> None:
    scene = Scene()
    scene.decide(7, verdict(FIRST))
    scene.sample((FIRST, 1, 1_000_000, 0))
    scene.decide(7)
    scene.decide(8, verdict(FIRST))
    scene.tokens[FIRST] = 7
    scene.sample((FIRST, 1, 1_000_000, 0))
    assert scene.path == (1_000_000, 0)
    scene.tokens[FIRST] = 8
    scene.sample((FIRST, 2, 40, 0))
    assert scene.path == (1_000_040, 0)
