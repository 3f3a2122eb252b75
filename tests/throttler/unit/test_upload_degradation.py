# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the guard on uploads, with simulated samples: if the other path degrades, caps are relaxed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from sampling import IDLE, MBIT, READ_AT_SAMPLE, four_tuple, make_samples

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Direction, Guard, Share
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.stages.degradation import (
    MIN_OVERDUE_BYTES,
    OVERDUE_DEMAND_SECONDS,
    OVERDUE_PROOF_SECONDS,
    SILENT_SECONDS,
    Cap,
    DegradationDetector,
    GuardCounters,
)

TICK_SECONDS = 0.1
CAP = 5 * MBIT
SHARED = ScopeKey("cap", Share.PATH, direction=Direction.UP)
HEADERS = 0.94
"""Share of payload in the sent bytes. A filled cap delivers this share of its rate as payload."""
IN_FLIGHT = 400_000
"""Bytes in flight on Wi-Fi when it failed."""
START = (1 << 64) - 5_000_000
"""Initial data sequence number. It is so high that the numbers wrap around during a test."""


@dataclass
class Upload:
    """One client's connection: capped data over Ethernet, and data over Wi-Fi."""

    number: int = 1
    ethernet: float = CAP * HEADERS
    """Rate in bit/s."""
    wifi: float = 30 * MBIT * HEADERS
    cap: int = CAP
    client: int = 77
    missing_bytes: int = 0
    """Bytes that Wi-Fi has not delivered yet. Their data sequence numbers are below those that Ethernet delivered."""
    received: dict[str, float] = field(default_factory=lambda: {"ethernet": 0.0, "wifi": 0.0})
    received_twice: float = 0.0
    """Bytes that were received twice."""
    sequence: dict[str, int] = field(default_factory=lambda: {"ethernet": START, "wifi": START})

    @property
    def four_tuples(self) -> dict[str, FourTuple]:
        paths = {"ethernet": 1, "wifi": 2}
        return {name: four_tuple(path, self.number, self.client) for name, path in paths.items()}

    def advance(self, seconds: float) -> None:
        for name in self.received:
            self.received[name] += getattr(self, name) / 8 * seconds
        highest = START + int(sum(self.received.values()) - self.received_twice) + self.missing_bytes
        if self.ethernet:
            self.sequence["ethernet"] = highest
        if self.wifi:
            self.sequence["wifi"] = highest - self.missing_bytes

    def retransmit(self) -> None:
        """Send the missing bytes of Wi-Fi over Ethernet, together with some data that Wi-Fi has delivered."""
        missing, self.missing_bytes = self.missing_bytes, 0
        self.received["ethernet"] += missing + 100_000
        self.received_twice += 100_000

    @property
    def sockets(self) -> list[KernelSubflow]:
        return [
            KernelSubflow(
                self.number, each, name == "ethernet", 0, 0, False, READ_AT_SAMPLE,
                bytes_received=int(self.received[name]), tcp=IDLE, data_sequence=self.sequence[name] % (1 << 64),
            )
            for name, each in self.four_tuples.items()
        ]  # fmt: skip


class Scene:
    def __init__(self, *uploads: Upload, guard: Guard | None = None, scope: ScopeKey = SHARED) -> None:
        self.uploads = uploads
        self.detector = DegradationDetector(guard or Guard(), GuardCounters(), Direction.UP)
        self.now = 0.0
        self.changes: list[float] = []
        """Times at which caps were relaxed or restored."""
        for each in uploads:
            caps: Mapping[FourTuple, Cap] = {each.four_tuples["ethernet"]: Cap(scope, each.cap)}
            self.detector.watch(each.number, [each.four_tuples["wifi"]], caps)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            for each in self.uploads:
                each.advance(TICK_SECONDS)
            sockets = [socket for each in self.uploads for socket in each.sockets]
            before = self.detector.relaxed_tokens()
            for changed in self.detector.observe(make_samples(self.now, sockets)):
                assert set(changed) >= self.detector.relaxed_tokens() ^ before
            self.changes += [self.now] * len(self.detector.relaxed_tokens() ^ before)

    def seconds_until_relaxed(self, max_seconds: float, number: int = 1) -> float:
        start = self.now
        while self.detector.relaxation(number) is None and self.now < start + max_seconds:
            self.run(TICK_SECONDS)
        return self.now - start


@pytest.mark.parametrize("load", ["fills the caps", "slow path", "little data"])
def test_healthy_upload_keeps_its_cap(load: str) -> None:
    rates = {"fills the caps": (4.7, 28), "slow path": (3.0, 5.0), "little data": (0.2, 0.4)}[load]
    scene = Scene(Upload(ethernet=rates[0] * MBIT, wifi=rates[1] * MBIT))
    scene.run(60)
    assert not scene.changes


def test_cap_is_relaxed_if_the_other_path_carries_nothing() -> None:
    upload = Upload()
    scene = Scene(upload)
    scene.run(8)
    upload.wifi, upload.missing_bytes = 0, IN_FLIGHT
    scene.run(0.6)
    upload.retransmit()
    assert scene.seconds_until_relaxed(5) + 0.6 <= 1.5
    relaxation = scene.detector.relaxation(1)
    assert relaxation is not None
    assert relaxation.path == upload.four_tuples["wifi"].remote
    assert relaxation.baseline == pytest.approx(30 * HEADERS * MBIT, rel=0.05)
    assert relaxation.rate < 0.8 * relaxation.baseline


def test_cap_is_relaxed_if_missing_data_block_the_client() -> None:
    upload = Upload()
    scene = Scene(upload)
    scene.run(8)
    upload.wifi, upload.ethernet, upload.missing_bytes = 0.3 * MBIT, 0.5 * MBIT, IN_FLIGHT
    upload.sequence["ethernet"] += 2 * IN_FLIGHT
    assert scene.seconds_until_relaxed(5) <= 1.5


def test_cap_is_relaxed_if_the_other_path_slows_down() -> None:
    upload = Upload()
    scene = Scene(upload)
    scene.run(8)
    upload.wifi, upload.missing_bytes = 5 * MBIT, IN_FLIGHT
    assert scene.seconds_until_relaxed(5) <= 1.5


@pytest.mark.parametrize("cap", [CAP, 1 * MBIT])
def test_client_that_sends_less_keeps_its_cap(cap: int) -> None:
    upload = Upload(ethernet=cap * HEADERS, cap=cap)
    scene = Scene(upload)
    scene.run(8)
    upload.wifi = 9 * MBIT
    for missing_bytes in (0, 60_000, MIN_OVERDUE_BYTES - 10_000) * 20:
        upload.missing_bytes = missing_bytes
        scene.run(0.5)
    assert not scene.changes


def test_receiver_that_stops_reading_is_not_a_degradation() -> None:
    upload = Upload()
    scene = Scene(upload)
    scene.run(8)
    upload.ethernet = upload.wifi = 0
    scene.run(30)
    assert not scene.changes


def test_path_that_failed_while_idle_is_detected_when_it_carries_no_data() -> None:
    upload = Upload()
    scene = Scene(upload)
    scene.run(8)
    upload.wifi = upload.ethernet = 0
    scene.run(OVERDUE_PROOF_SECONDS + 1)
    upload.ethernet = CAP * HEADERS
    assert SILENT_SECONDS <= scene.seconds_until_relaxed(20) <= SILENT_SECONDS + 3
    slow = Upload(ethernet=0.1 * MBIT, cap=round(0.1 * MBIT))
    scene = Scene(slow)
    scene.run(8)
    slow.wifi = 0
    scene.run(12)
    assert not scene.changes, "the cap was relaxed, although it delays the data of one assignment by five seconds"


def test_only_connections_limited_by_a_shared_cap_are_relaxed() -> None:
    uploads = [Upload(number, CAP * HEADERS / 4, client=number) for number in range(1, 5)]
    scene = Scene(*uploads)
    scene.run(8)
    satisfied, *limited = uploads
    satisfied.missing_bytes = IN_FLIGHT
    scene.run(0.1)
    satisfied.missing_bytes = 0
    scene.run(OVERDUE_DEMAND_SECONDS)
    satisfied.ethernet, satisfied.wifi = 0.2 * MBIT, 0.3 * MBIT
    for each in limited:
        each.ethernet, each.wifi, each.missing_bytes = (CAP * HEADERS - 0.2 * MBIT) / 3, 2 * MBIT, IN_FLIGHT
    assert scene.seconds_until_relaxed(5, limited[0].number) <= 1.5
    scene.run(3)
    assert [scene.detector.relaxation(each.number) is not None for each in uploads] == [False, True, True, True]


def test_cap_is_restored_when_the_path_has_recovered() -> None:
    upload = Upload()
    scene = Scene(upload, guard=Guard(retry=30))
    scene.run(8)
    upload.wifi, upload.missing_bytes = 0, IN_FLIGHT
    scene.seconds_until_relaxed(5)
    upload.missing_bytes, upload.ethernet = 0, 90 * MBIT
    scene.run(4)
    assert len(scene.changes) == 1
    upload.wifi = 28 * MBIT
    scene.run(2)
    assert len(scene.changes) == 2
    upload.ethernet = CAP * HEADERS
    scene.run(20)
    assert len(scene.changes) == 2


def test_pause_doubles_while_the_path_stays_degraded() -> None:
    upload = Upload()
    scene = Scene(upload, guard=Guard(retry=5))
    scene.run(8)
    upload.wifi, upload.missing_bytes = 2 * MBIT, IN_FLIGHT
    scene.seconds_until_relaxed(5)
    upload.missing_bytes, upload.ethernet = 0, 90 * MBIT
    scene.run(30)
    assert len(scene.changes) == 1
    upload.ethernet = 2 * MBIT
    scene.run(60)
    assert len(scene.changes) == 2, "the cap was not restored for a test, although the client sends less than it allows"


def test_new_or_ended_subflow_has_no_missing_data() -> None:
    upload = Upload(ethernet=CAP * HEADERS)
    third = Upload(number=1, wifi=0, client=78)
    scene = Scene(upload)
    four_tuples = upload.four_tuples
    caps = {four_tuples["ethernet"]: Cap(SHARED, CAP)}
    other = third.four_tuples["wifi"]._replace(remote=bytes((10, 78, 3, 2)))
    scene.detector.watch(1, [four_tuples["wifi"], other], caps)
    unrelated = upload.sockets[0]._replace(four_tuple=other, bytes_received=50_000_000, data_sequence=START)
    for step in range(80):
        scene.now += TICK_SECONDS
        upload.advance(TICK_SECONDS)
        sockets = [*upload.sockets, *([unrelated] if step < 40 else [])]
        for changed in scene.detector.observe(make_samples(scene.now, sockets)):
            scene.changes += [scene.now] * len(changed)
    upload.wifi = 0
    scene.run(SILENT_SECONDS)
    assert not scene.changes


def test_ended_connections_are_removed() -> None:
    scene = Scene(Upload(1), Upload(2, client=2))
    scene.run(1)
    assert len(scene.detector.watched()) == 4
    for number in (1, 2):
        scene.detector.forget(number)
    assert not scene.detector.watched()
    assert not scene.detector.urgent()
    assert not scene.detector.connections
    assert not scene.detector.cap_loads


@pytest.mark.parametrize("read_interval", [0.0, 1.0])
def test_bytes_received_during_a_sweep_do_not_prove_a_degradation(read_interval: float) -> None:
    """*read_interval*: seconds between the reading of Wi-Fi's socket and the later reading of Ethernet's socket."""
    upload = Upload(wifi=10 * MBIT)
    scene = Scene(upload)
    scene.run(5)
    before = {each.four_tuple: each for each in upload.sockets}
    scene.now += 1.0
    upload.advance(1.0)
    after = {each.four_tuple: each for each in upload.sockets}
    wifi, ethernet = upload.four_tuples["wifi"], upload.four_tuples["ethernet"]
    sockets = [before[wifi]._replace(read=scene.now - read_interval), after[ethernet]._replace(read=scene.now)]
    list(scene.detector.observe(make_samples(scene.now, sockets)))
    assert scene.detector.connections[1].is_proven(scene.now) is (read_interval == 0.0)


def test_path_is_silent_only_if_all_of_its_subflows_carry_no_data() -> None:
    """A connection has two subflows over Wi-Fi. Only the first subflow carries data. The sweep reads the other subflow
    later.
    """
    upload = Upload()
    second = four_tuple(3, upload.number)
    scene = Scene()
    wifi, ethernet = upload.four_tuples["wifi"], upload.four_tuples["ethernet"]
    scene.detector.watch(1, [wifi, second], {ethernet: Cap(SHARED, CAP)})
    for step in range(1, 60):
        upload.advance(TICK_SECONDS)
        sockets = [*upload.sockets, KernelSubflow(1, second, False, 1, 1, False, READ_AT_SAMPLE, tcp=IDLE)]
        list(scene.detector.observe(make_samples(step * TICK_SECONDS, sockets)))
    upload.advance(TICK_SECONDS)
    read = {wifi: 6.0, ethernet: 6.0, second: 9.0}
    sockets = [*upload.sockets, KernelSubflow(1, second, False, 1, 1, False, READ_AT_SAMPLE, tcp=IDLE)]
    list(scene.detector.observe(make_samples(9.0, [each._replace(read=read[each.four_tuple]) for each in sockets])))
    assert not scene.detector.connections[1].is_proven(9.0)
