# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for emulated paths in the kernel: each path behaves as configured, and never fails silently.

The bounds are loose enough for a busy machine. docs/emulation.md has exact figures.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mptcp_lab.emulation import userspace
from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, UniformLoss
from mptcp_lab.testbed import EmulationError, LiveNode, Testbed, paths
from mptcp_lab.testbed.crossing import crossed, ends, lost
from mptcp_lab.testbed.hops import TOLERANCE
from mptcp_lab.testbed.ownership import NAMESPACES
from mptcp_lab.testbed.services import wait_until

pytestmark = pytest.mark.kernel
MBIT = 1_000_000
PATIENCE = 300.0
"""Time limit in seconds for an action that a slow machine may have to repeat."""
FRAME, PAYLOAD = 1514, 1472
"""Bytes of a full packet as the shapers count them, and bytes of its payload."""


@pytest.fixture(autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("root", "namespaces", "veth", "tbf", "ethtool", "nfqueue", "gcc")


@contextmanager
def emulated(*profiles: EmulatedPath, seed: int = 1) -> Iterator[Testbed]:
    with Testbed(paths(profiles), seed=seed) as testbed:
        yield testbed


@contextmanager
def loaded(testbed: Testbed, rate: float, seconds: float, device: str = "eth0") -> Iterator[None]:
    """Load both directions, each with *rate* bits per second, until the scope ends."""
    with ExitStack() as stack:
        for direction in ("up", "down"):
            sender, source, _, target = ends(testbed, direction, device)
            words = (source, target, "9", str(rate / 8 / FRAME), str(PAYLOAD), str(seconds))
            stack.enter_context(sender.running(sender.agent("stream", "send", *words), name="load"))
        yield


@contextmanager
def void(said: str) -> Iterator[None]:
    """Check that the testbed declares the run void, with a message that matches *said*."""
    with pytest.raises(EmulationError, match=said):
        yield


@contextmanager
def listener(node: LiveNode, family: int, address: str) -> Iterator[tuple[Any, ...]]:
    with node.entered():
        server = socket.socket(family, socket.SOCK_STREAM)
    with server:
        server.bind((address, 0))
        server.listen()
        yield server.getsockname()


def connect_time(testbed: Testbed, family: int, source: str, target: tuple[Any, ...]) -> float:
    """Return how long connect(2) takes, in milliseconds."""
    with testbed["client"].entered():
        client = socket.socket(family, socket.SOCK_STREAM)
    with client:
        client.settimeout(60)
        client.bind((source, 0))
        start = time.monotonic()
        client.connect(target)
        return (time.monotonic() - start) * 1e3


def test_each_path_has_its_own_delay_in_both_families() -> None:
    """A busy machine can only make an attempt slower than its path, never faster."""
    near = EmulatedPath("ethernet", Direction(100 * MBIT, 1_000), Direction(100 * MBIT, 1_000))
    far = EmulatedPath("wifi", Direction(20 * MBIT, 30_000, 5_000), Direction(20 * MBIT, 10_000))
    with emulated(near, far) as testbed:
        for version, family, address in ((4, socket.AF_INET, "10.77.9.2"), (6, socket.AF_INET6, "fd77:9::2")):
            with listener(testbed["origin"], family, address) as target:
                for device, least, most in (("eth0", 2, 30), ("wlan0", 35, 75)):
                    source = testbed["client"].address(device, version)
                    times: list[float] = []
                    while len(times) < 3 or (min(times) > most and len(times) < 30):
                        times.append(connect_time(testbed, family, source, target))
                    assert least <= min(times) <= most


def test_order_loss_and_counts_are_of_the_direction_that_was_asked() -> None:
    shaky, lossy = Direction(100 * MBIT, 10_000, 10_000), Direction(delay=1_000, loss=UniformLoss(1.0))
    some = Direction(loss=UniformLoss(0.1))
    with emulated(EmulatedPath("shaky", shaky, shaky), EmulatedPath("p", down=lossy, up=some)) as testbed:
        for direction in ("down", "up"):
            assert list(crossed(testbed, direction, 5_000)) == list(range(5_000))
        assert crossed(testbed, "down", 500, "wlan0") == {}
        arrived = len(crossed(testbed, "up", 1_000, "wlan0"))
        counts = testbed.emulation.counts()["p"]["up"]
        assert (counts.seen, counts.passed, counts.lost, counts.dropped) == (1_000, arrived, 1_000 - arrived, 0)
        testbed.check_emulation()


@pytest.mark.nightly
def test_delays_rate_and_losses_are_as_configured() -> None:
    """Judge the packets that leave the path, not the emulator's own counters. Wait while the machine is busy."""
    rate, bursts = 100 * MBIT, GilbertElliott(p=0.02, r=0.5, one_minus_h=0.8, one_minus_k=0.001)
    even = Direction(rate, delay=8_000)
    with emulated(EmulatedPath("even", even, even), EmulatedPath("lossy", Direction(loss=bursts))) as testbed:

        def exact() -> bool:
            found = [delay for way in ("down", "up") for delay in crossed(testbed, way, 100, per_second=100).values()]
            assert min(found) >= 8
            return median(found) < 8.5

        def filled() -> bool:
            """Return whether both directions are full. Each of them is offered 3 % more than its rate."""
            devices = ((testbed["client"], "eth0"), (testbed["core"], "to-eth0"))
            with loaded(testbed, 1.03 * rate, seconds=10):
                time.sleep(2)
                began, before = time.monotonic(), [node.interface_bytes(device).received for node, device in devices]
                time.sleep(3)
                after, passed = [n.interface_bytes(d).received for n, d in devices], time.monotonic() - began
            rates = [8 * (late - early) / passed for early, late in zip(before, after, strict=True)]
            assert max(rates) < 1.015 * rate
            return min(rates) > 0.97 * rate

        wait_until(exact, "the median delay is within 0.5 ms", timeout=PATIENCE)
        with loaded(testbed, 0.8 * rate, seconds=PATIENCE):
            wait_until(exact, "the median delay is within 0.5 ms under load", timeout=PATIENCE)
        wait_until(filled, "both directions carry their rate", timeout=PATIENCE)
        gone = lost(crossed(testbed, "down", 40_000, "wlan0"), 40_000)
    assert len(gone) / 40_000 == pytest.approx(bursts.mean, rel=0.2)
    begun = 1 + sum(number > before + 1 for before, number in pairwise(gone))
    assert len(gone) / begun == pytest.approx(1.64, rel=0.2), "the mean number of packets lost in a row"


@pytest.mark.nightly
def test_a_seed_decides_what_is_lost() -> None:
    lossy = EmulatedPath("p", Direction(loss=GilbertElliott(0.02, 0.5)), Direction(loss=UniformLoss(0.05)))

    def found(seed: int) -> list[list[int]]:
        with emulated(lossy, seed=seed) as testbed:
            return [lost(crossed(testbed, direction, 2_000), 2_000) for direction in ("down", "up")]

    first, again, other = found(1), found(1), found(2)
    assert first == again
    assert all(first)
    assert all(one != another for one, another in zip(first, other, strict=True))


def test_an_emulator_that_ended_voids_the_run() -> None:
    testbed = Testbed(paths((EmulatedPath("p", down=Direction(delay=1_000)),)))
    with void("path p: the emulator ended with -9; the run is void"), testbed:
        testbed.check_emulation()
        testbed.emulation.processes["p"].kill()
        with void("the run is void"):
            testbed.check_emulation()
    assert not list(NAMESPACES.glob(f"mpx-{testbed.claimed.id}-*"))


def test_an_emulator_that_is_stopped_for_a_while_voids_the_run_in_which_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOLERANCE)
    with emulated(EmulatedPath("p", up=Direction(delay=300_000))) as testbed:
        emulator = testbed.emulation.processes["p"]
        sender, source, _, target = ends(testbed, "up", "eth0")

        def in_hands() -> int:
            """Return how many packets the emulator has received but not yet sent. Only these can count as late."""
            counts = testbed.emulation.counts()["p"]["up"]
            return counts.seen - counts.lost - counts.passed

        def stopped_with_many() -> bool:
            emulator.signal(signal.SIGCONT)
            sender.run(sender.agent("stream", "send", source, target, "9", "50000", "64", "0.02"))
            emulator.signal(signal.SIGSTOP)
            stat = Path(f"/proc/{emulator.pid}/stat")
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
            return in_hands() > 2 * userspace.LATE_FEW

        # A slow machine may need more than one try.
        wait_until(stopped_with_many, "it is stopped with many packets in its hands", timeout=PATIENCE)
        # This pause is longer than the delay, so that all packets that the emulator holds are late.
        time.sleep(0.5)
        emulator.signal(signal.SIGCONT)
        wait_until(lambda: in_hands() == 0, "all packets have left")
        with void("path p, up: .* packets came late"):
            testbed.check_emulation()
        testbed.check_emulation()


@pytest.mark.nightly
def test_the_emulator_is_clean_under_the_sanitizers(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Werror")
    monkeypatch.setattr(userspace, "COMPILER_FLAGS", (*userspace.COMPILER_FLAGS, *flags))
    shaky = Direction(100 * MBIT, 5_000, 5_000, GilbertElliott(0.1, 0.3, 0.8, 0.01))
    testbed = Testbed(paths((EmulatedPath("p", shaky, shaky),)))
    with void("the emulator ended with 0"), testbed:
        with loaded(testbed, 50 * MBIT, seconds=3):
            assert 1_000 < len(crossed(testbed, "down", 5_000)) < 5_000
            with testbed["hop1"].link_down("wan"):
                time.sleep(0.1)
            wait_until(lambda: len(crossed(testbed, "up", 50)) > 0, "the link carries again")
            assert 1_000 < len(crossed(testbed, "up", 5_000)) < 5_000
        # Lateness is not checked, because a sanitized emulator is slow.
        assert all(count.dropped == 0 for count in testbed.emulation.counts()["p"].values())
        emulator = testbed.emulation.processes["p"]
        assert emulator.stop(60) == 0, emulator.output()
        assert "ready" in emulator.output().split()
        assert "ERROR" not in emulator.output()
        assert "runtime error" not in emulator.output()
