# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the sessions at both ends of a tunnel: replayed, forged or reordered messages must not change a path."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_tunnel.learning import SECOND
from mptcp_tunnel.message import SIZE, Kind, Message
from mptcp_tunnel.model import End, PathCounters
from mptcp_tunnel.session import IDLE_PROBE_INTERVAL, MAX_UNPROVEN_ANSWERS, PROBE_INTERVAL, Session

PROXY, RELAY = End(ip_address("203.0.113.5"), 51820), End(ip_address("198.51.100.7"), 40001)
ATTACKER, VICTIM = End(ip_address("192.0.2.66"), 40001), End(ip_address("192.0.2.99"), 99)
MS = SECOND // 1000


class OnePath:
    """A relay and a proxy whose clocks differ, with one path: 20 ms to the proxy and 30 ms back."""

    def __init__(self) -> None:
        self.relay = Session(Kind.PROBE, [PROXY], b"r" * 16)
        self.proxy = Session(Kind.ANSWER, [None], b"p" * 16)
        self.now = 10 * SECOND
        self.clock_lead = 5000 * SECOND
        """Nanoseconds by which the proxy's clock is ahead."""

    def probe(self) -> Message:
        self.now += IDLE_PROBE_INTERVAL
        ((_, message),) = self.relay.due_probes(self.now)
        return message

    def receive_at_proxy(self, message: Message, source: End, after: int = 20 * MS) -> tuple[Message | None, bool]:
        return self.proxy.receive(message, source, self.now + self.clock_lead + after)

    def exchange(self, source: End = RELAY) -> bool:
        """Send a probe and its answer. Return whether the proxy changed its address for the path."""
        answer, address_changed = self.receive_at_proxy(self.probe(), source)
        assert answer is not None
        assert self.relay.receive(answer, PROXY, self.now + 50 * MS) == (None, False)
        return address_changed


def test_second_probe_proves_the_address() -> None:
    ends = OnePath()
    assert not ends.exchange()
    assert ends.proxy.paths[0].remote is None
    assert ends.exchange()
    assert ends.proxy.paths[0].remote == RELAY
    assert not ends.exchange()
    assert ends.relay.alive(ends.now + 50 * MS) == [True]
    assert ends.proxy.alive(ends.now + ends.clock_lead + 20 * MS) == [True]
    assert ends.relay.alive(ends.now + 5 * SECOND) == [False]


def test_proxy_follows_a_changed_address_of_the_relay() -> None:
    ends = OnePath()
    other = RELAY._replace(port=40002)
    assert [ends.exchange() for _ in range(3)] == [False, True, False]
    assert [ends.exchange(other) for _ in range(3)] == [False, True, False]
    assert ends.proxy.paths[0].remote == other


def test_replayed_probes_change_no_address() -> None:
    """Attack: copies that arrive before the originals redirect half of a tunnel to a victim."""
    ends = OnePath()
    for _ in range(3):
        ends.exchange()
    for _ in range(20):
        probe = ends.probe()
        for source in (ATTACKER, VICTIM):
            answer, address_changed = ends.receive_at_proxy(probe, source, 10 * MS)  # before the original
            assert not address_changed
            assert answer is not None  # the answer is no larger than the probe, and useless without the key
        answer, address_changed = ends.receive_at_proxy(probe, RELAY)
        assert not address_changed
        assert answer is not None
        ends.relay.receive(answer, PROXY, ends.now + 50 * MS)
        assert ends.receive_at_proxy(probe, RELAY) == (None, False), "a second copy was not ignored"
        assert ends.proxy.paths[0].remote == RELAY


def test_restarted_proxy_rejects_old_probes() -> None:
    ends = OnePath()
    old_probes = []
    for _ in range(5):
        old_probes.append(ends.probe())
        answer, _ = ends.receive_at_proxy(old_probes[-1], RELAY)
        assert answer is not None
        ends.relay.receive(answer, PROXY, ends.now + 50 * MS)
    ends.proxy = Session(Kind.ANSWER, [None], b"q" * 16)
    for each in old_probes:
        assert ends.receive_at_proxy(each, ATTACKER)[1] is False
    assert ends.proxy.paths[0].remote is None
    assert [ends.exchange() for _ in range(2)] == [False, True]


def test_messages_of_the_wrong_kind_or_path_are_ignored() -> None:
    ends = OnePath()
    probe = ends.probe()
    assert ends.relay.receive(probe, PROXY, ends.now) == (None, False)
    assert ends.receive_at_proxy(probe._replace(path=1), RELAY) == (None, False)


def test_busy_tunnel_is_probed_more_often() -> None:
    ends = OnePath()
    assert ends.relay.probe_interval(ends.now) == IDLE_PROBE_INTERVAL
    ends.relay.process_counters([PathCounters(1, 100, 0, 0)], ends.now)
    assert ends.relay.probe_interval(ends.now) == PROBE_INTERVAL
    ends.relay.process_counters([PathCounters(1, 100, 0, 0)], ends.now + 6 * SECOND)
    assert ends.relay.probe_interval(ends.now + 6 * SECOND) == IDLE_PROBE_INTERVAL


def test_path_is_not_silent_when_traffic_starts() -> None:
    """Defect: a path was declared silent at once.

    The tunnel had been probed once a second, but once it carried traffic, an answer had to come within 0.3 s.
    """
    ends = OnePath()
    for _ in range(3):
        ends.exchange()
    now = ends.now + 900 * MS
    ends.relay.process_counters([PathCounters(1, 100, 0, 0)], now)
    assert ends.relay.alive(now) == [True]
    assert list(ends.relay.due_probes(now + PROBE_INTERVAL)), "the path was not probed soon"
    assert ends.relay.alive(now + 2 * SECOND) == [False]


class Differences(NamedTuple):
    """How much longer each path's delay is than the shortest, and for how long each end holds packets, in ms."""

    to_proxy: list[int]
    to_relay: list[int]
    relay_hold_time: int
    proxy_hold_time: int


UNEQUAL_PATHS = Differences([0, 30], [0, 70], relay_hold_time=70 + 10, proxy_hold_time=30 + 10)


class TwoPaths:
    """A relay and a proxy with two paths: 10 ms to the proxy and 20 ms back, and 40 ms and 90 ms."""

    def __init__(self) -> None:
        self.relay = Session(Kind.PROBE, [PROXY] * 2, b"r" * 16)
        self.proxy = Session(Kind.ANSWER, [None] * 2, b"p" * 16)
        self.now, self.clock_lead = 10_000 * SECOND, -3 * SECOND
        """The time of the relay's clock, and how far the proxy's clock is ahead, in nanoseconds."""
        self.dead: set[int] = set()

    def exchange(self) -> None:
        self.now += IDLE_PROBE_INTERVAL
        for index, probe in self.relay.due_probes(self.now):
            to_proxy, to_relay = ((10, 20), (40, 90))[index]
            if index not in self.dead:
                answer, _ = self.proxy.receive(
                    probe, RELAY._replace(port=index + 1), self.now + self.clock_lead + to_proxy * MS
                )
                assert answer is not None
                self.relay.receive(answer, PROXY, self.now + (to_proxy + to_relay) * MS)

    def differences(self) -> Differences:
        relay_time, proxy_time = self.now + 200 * MS, self.now + self.clock_lead + 200 * MS
        return Differences(
            [each // MS for each in self.relay.delays(relay_time)],
            [each // MS for each in self.proxy.delays(proxy_time)],
            self.relay.hold_time(relay_time) // MS,
            self.proxy.hold_time(proxy_time) // MS,
        )


def test_path_that_died_earlier_stays_unused_when_all_are_silent() -> None:
    """Defect: if every path was silent, because the other daemon paused, packets were also sent on the dead path."""
    paths, present = TwoPaths(), [True, True]
    assert paths.relay.usable(paths.now, present) == [True, True], "a path was unused before the first answer"
    for _ in range(4):
        paths.exchange()
    assert paths.relay.usable(paths.now + 60 * SECOND, present) == [True, True], (
        "a path was unused although both became silent at the same time"
    )
    paths.dead = {1}
    for _ in range(4):
        paths.exchange()
    for later in (200 * MS, 60 * SECOND):
        assert paths.relay.usable(paths.now + later, present) == [True, False]
        assert paths.relay.usable(paths.now + later, [False, True])[1], "the only present path is not used"
    paths.relay.process_counters([PathCounters(1, 100, 0, 0)], paths.now + 60 * SECOND)
    assert paths.relay.usable(paths.now + 61 * SECOND, present) == [True, False], (
        "the dead path was used when the tunnel resumed"
    )
    paths = TwoPaths()
    for _ in range(6):
        paths.exchange()
        paths.relay.process_counters([PathCounters(paths.now, 100, 0, 0)], paths.now)
    paths.dead = {1}
    paths.now -= IDLE_PROBE_INTERVAL // 2
    paths.exchange()
    paths.relay.process_counters([PathCounters(2, 100, 0, 0)], paths.now + 60 * SECOND)
    assert paths.relay.usable(paths.now + 60 * SECOND, present) == [True, False], "the dead path is still used"
    paths.dead = set()
    paths.exchange()
    assert paths.relay.usable(paths.now + 200 * MS, present) == [True, True]


def test_delay_differences_are_found_with_different_clocks() -> None:
    paths = TwoPaths()
    for _ in range(4):
        paths.exchange()
    assert paths.differences() == UNEQUAL_PATHS


def test_long_dead_path_does_not_count_in_delays() -> None:
    """Defect: packets waited for the delay of a path that no longer carried anything."""
    paths = TwoPaths()
    for _ in range(4):
        paths.exchange()
    paths.dead = {1}
    for _ in range(40):
        paths.exchange()
    assert paths.differences() == Differences([0, 0], [0, 0], 10, 10)


@pytest.mark.parametrize("host", ["relay", "proxy"])
def test_delays_are_measured_again_after_a_restart_of_a_host(host: str) -> None:
    """Defect: after the clock of the host restarted, every message seemed late or early for 30 s."""
    paths = TwoPaths()
    for _ in range(4):
        paths.exchange()
    if host == "relay":
        paths.relay = Session(Kind.PROBE, [PROXY] * 2, b"s" * 16)
        paths.now, paths.clock_lead = 40 * SECOND, paths.now + paths.clock_lead - 40 * SECOND
    else:
        paths.proxy = Session(Kind.ANSWER, [None] * 2, b"q" * 16)
        paths.clock_lead = 40 * SECOND - paths.now
    for _ in range(40):
        # Path 1 loses every other message, so that its first one after the restart is not the first of the session.
        for dead in ({1}, set[int]()):
            paths.dead = dead
            paths.exchange()
            found = paths.differences()
            assert max(*found.to_proxy, *found.to_relay, found.relay_hold_time, found.proxy_hold_time) <= 70 + 10
    assert paths.differences() == UNEQUAL_PATHS
    queues = [path.estimator.queue for each in (paths.relay, paths.proxy) for path in each.paths]
    assert queues == [0, 0, 0, 0]
    assert paths.relay.alive(paths.now + 200 * MS) == [True, True]
    assert paths.proxy.alive(paths.now + paths.clock_lead + 200 * MS) == [True, True]


def test_true_address_is_proven_despite_copied_probes() -> None:
    """Defect: two attackers who copied the relay's probes replaced its address among the candidates of the path."""
    ends = OnePath()
    for _ in range(3):
        ends.exchange()
    for other, is_second in (
        (RELAY._replace(port=port), is_second) for port in (40002, 40003) for is_second in (False, True)
    ):
        probe = ends.probe()
        answer, address_changed = ends.receive_at_proxy(probe, other)
        assert answer is not None
        assert address_changed is is_second, "the address did not change at the second probe, but earlier or later"
        ends.relay.receive(answer, PROXY, ends.now + 50 * MS)
        copies = [ends.receive_at_proxy(probe, ATTACKER._replace(port=port), 25 * MS) for port in range(1, 1000)]
        assert not any(changed for _, changed in copies)
        assert sum(copied is not None for copied, _ in copies) <= MAX_UNPROVEN_ANSWERS, "a victim got too many answers"
    assert ends.proxy.paths[0].remote == other


def test_size_search_does_not_change_the_delay_of_a_path() -> None:
    ends = OnePath()
    for _ in range(3):
        ends.exchange()
    for _ in range(300):
        ends.now += PROBE_INTERVAL
        sent = [(message, SIZE, 0) for _, message in ends.relay.due_probes(ends.now)]
        sent += [(message, size, 12) for _, message, size in ends.relay.size_probes(ends.now)]
        for message, size, additional_ms in sent:
            if size + 28 <= 1440:
                answer, _ = ends.receive_at_proxy(message, RELAY, (20 + additional_ms) * MS)
                assert answer is not None
                ends.relay.receive(answer, PROXY, ends.now + (50 + 2 * additional_ms) * MS)
        assert ends.proxy.paths[0].estimator.queue == 0, (
            "the large messages counted as a queue in the reverse direction"
        )
    assert ends.relay.paths[0].sizes.largest == 1440
    assert ends.relay.paths[0].estimator.queue == 0


def test_late_reading_of_a_message_does_not_count_as_a_queue() -> None:
    ends = OnePath()
    for _ in range(3):
        ends.exchange()
    probe = ends.probe()
    received_at = ends.now + ends.clock_lead + 20 * MS
    answer, _ = ends.proxy.receive(probe, RELAY, received_at + 40 * MS, received_at)
    assert answer is not None
    ends.relay.receive(answer, PROXY, ends.now + 150 * MS, ends.now + 90 * MS)
    for session in (ends.relay, ends.proxy):
        assert session.paths[0].estimator.queue == 0
    assert ends.exchange() is False
    assert ends.proxy.paths[0].estimator.queue == 0


@pytest.mark.parametrize("host", ["relay", "proxy"])
def test_longer_route_does_not_count_as_a_queue(host: str) -> None:
    """Defect: after a change of uplink or address, the additional delay counted as a queue for 30 s."""
    ends, additional_ms = OnePath(), 70
    for _ in range(3):
        ends.exchange()
    ends.relay.forget_estimates(0)
    for _ in range(3):
        answer, _ = ends.receive_at_proxy(ends.probe(), RELAY._replace(port=40002), (20 + additional_ms) * MS)
        assert answer is not None
        ends.relay.receive(answer, PROXY, ends.now + (50 + 2 * additional_ms) * MS)
    assert ends.proxy.paths[0].remote == RELAY._replace(port=40002)
    assert (ends.relay if host == "relay" else ends.proxy).paths[0].estimator.queue == 0


def test_next_silence_predicts_when_a_path_is_silent() -> None:
    ends = OnePath()
    assert ends.relay.next_silence(ends.now) is None
    for _ in range(3):
        ends.exchange()
    for traffic_resumes in (False, True):
        if traffic_resumes:
            ends.relay.process_counters([PathCounters(1, 100, 0, 0)], ends.now + 60 * MS)
        now, checks = ends.now + 60 * MS, 0
        while ends.relay.alive(now) == [True]:
            after = ends.relay.next_silence(now)
            assert after is not None
            assert ends.relay.alive(after - 1) == [True], "the path was considered dead too early"
            now, checks = after, checks + 1
        assert checks <= 2


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([RELAY, ATTACKER, VICTIM]), st.integers(0, 60)), max_size=60)
)
def test_no_replay_changes_the_address_of_the_path(copies: list[tuple[int, End, int]]) -> None:
    """Copies of any of the last ten probes arrive from any address, at any time."""
    ends, sent = OnePath(), list[Message]()
    ends.exchange()
    ends.exchange()
    for index, source, after in copies:
        probe = ends.probe()
        sent = [*sent[-9:], probe]
        ends.receive_at_proxy(sent[min(index, len(sent) - 1)], source, after * MS // 4)
        answer, _ = ends.receive_at_proxy(probe, RELAY)
        if answer is not None:
            ends.relay.receive(answer, PROXY, ends.now + 50 * MS)
        assert ends.proxy.paths[0].remote == RELAY
