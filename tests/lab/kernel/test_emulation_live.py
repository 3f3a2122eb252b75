# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for emulated paths in the kernel: each path behaves as configured, or the run becomes void.

The bounds are loose enough for a busy machine. docs/emulation.md has exact figures.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from mptcp_lab.emulation import userspace
from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, UniformLoss
from mptcp_lab.testbed import EmulationError, Testbed, paths
from mptcp_lab.testbed.crossing import ends, missing_numbers, packet_delays
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
def loaded(testbed: Testbed, rate: float, seconds: float, device: str = "eth0") -> Iterator[None]:
    """Load both directions, each with *rate* bits per second, until the scope ends."""
    with ExitStack() as stack:
        for direction in ("up", "down"):
            sender, source, _, target = ends(testbed, direction, device)
            words = (source, target, "9", str(rate / 8 / FRAME), str(PAYLOAD), str(seconds))
            stack.enter_context(sender.running(sender.agent("stream", "send", *words), name="load"))
        yield


def test_delay_order_loss_and_counts_are_those_of_the_direction() -> None:
    """A busy machine can only make a packet later than its path, never earlier."""
    shaky, slow = Direction(100 * MBIT, 10_000, 10_000), Direction(20 * MBIT, 30_000)
    lossy, slightly_lossy = Direction(delay=1_000, loss=UniformLoss(1.0)), Direction(loss=UniformLoss(0.1))
    with Testbed(
        paths((EmulatedPath("shaky", slow, shaky), EmulatedPath("p", down=lossy, up=slightly_lossy)))
    ) as testbed:
        for direction, count, minimum, maximum in (("down", 500, 30, 45), ("up", 5_000, 0, 15)):
            delays = packet_delays(testbed, direction, count)
            assert list(delays) == list(range(count))
            assert minimum <= min(delays.values()) <= maximum
        assert packet_delays(testbed, "down", 500, "wlan0") == {}
        arrived = len(packet_delays(testbed, "up", 1_000, "wlan0"))
        counts = testbed.emulation.counts()["p"]["up"]
        assert (counts.seen, counts.passed, counts.lost, counts.dropped) == (1_000, arrived, 1_000 - arrived, 0)
        testbed.check_emulation()


@pytest.mark.nightly
def test_delays_rate_and_losses_are_as_configured() -> None:
    """The packets that leave the path are judged, not the emulator's own counters."""
    rate, bursts = 100 * MBIT, GilbertElliott(p=0.02, r=0.5, one_minus_h=0.8, one_minus_k=0.001)
    even = Direction(rate, delay=8_000)
    with Testbed(paths((EmulatedPath("even", even, even), EmulatedPath("lossy", Direction(loss=bursts))))) as testbed:

        def is_exact() -> bool:
            both = [packet_delays(testbed, way, 100, per_second=100) for way in ("down", "up")]
            delays = [delay for way in both for delay in way.values()]
            assert min(delays) >= 8
            return median(delays) < 8.5

        def is_full() -> bool:
            """Return whether both directions are full. Each of them is offered 3 % more than its rate."""
            devices = ((testbed["client"], "eth0"), (testbed["core"], "to-eth0"))
            with loaded(testbed, 1.03 * rate, seconds=10):
                time.sleep(2)
                began, before = time.monotonic(), [node.interface_bytes(device).received for node, device in devices]
                time.sleep(3)
                after, seconds = [n.interface_bytes(d).received for n, d in devices], time.monotonic() - began
            rates = [8 * (new - old) / seconds for old, new in zip(before, after, strict=True)]
            assert max(rates) < 1.015 * rate
            return min(rates) > 0.97 * rate

        wait_until(is_exact, "the median delay is within 0.5 ms", timeout=PATIENCE)
        with loaded(testbed, 0.8 * rate, seconds=PATIENCE):
            wait_until(is_exact, "the median delay is within 0.5 ms under load", timeout=PATIENCE)
        wait_until(is_full, "both directions carry their rate", timeout=PATIENCE)
        missing = missing_numbers(packet_delays(testbed, "down", 40_000, "wlan0"), 40_000)
    assert len(missing) / 40_000 == pytest.approx(bursts.mean, rel=0.2)
    count = 1 + sum(number > before + 1 for before, number in pairwise(missing))
    assert len(missing) / count == pytest.approx(1.64, rel=0.2), "the mean number of packets lost in a row differs"


def stop_and_kill_emulator(testbed: Testbed) -> None:
    """Check that a pause makes one run void, and then kill the emulator."""
    emulator = testbed.emulation.processes["p"]
    sender, source, _, target = ends(testbed, "up", "eth0")
    stat = Path(f"/proc/{emulator.pid}/stat")

    def waiting() -> int:
        """Return how many packets the emulator has received but not yet sent. Only these can count as late."""
        counts = testbed.emulation.counts()["p"]["up"]
        return counts.seen - counts.lost - counts.passed

    def is_stopped_with_packets() -> bool:
        emulator.signal(signal.SIGCONT)
        sender.run(sender.agent("stream", "send", source, target, "9", "50000", "64", "0.02"))
        emulator.signal(signal.SIGSTOP)
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the emulator is stopped")
        return waiting() > 2 * userspace.MAX_LATE

    # A slow machine may need more than one try.
    wait_until(is_stopped_with_packets, "the emulator is stopped and holds many packets", timeout=PATIENCE)
    # This pause is longer than the delay, so that all packets that the emulator holds are late.
    time.sleep(0.5)
    emulator.signal(signal.SIGCONT)
    wait_until(lambda: waiting() == 0, "all packets have left")
    with pytest.raises(EmulationError, match=r"path p, up: .* packets were released more than 1 ms too late"):
        testbed.check_emulation()
    testbed.check_emulation()
    emulator.kill()


def test_emulator_that_was_stopped_or_ended_makes_the_run_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOLERANCE)
    testbed = Testbed(paths([EmulatedPath("p", up=Direction(delay=300_000))]))
    with pytest.raises(EmulationError, match="path p: the emulator ended with -9; the run is void"), testbed:
        stop_and_kill_emulator(testbed)
    assert not list(NAMESPACES.glob(f"mpx-{testbed.claimed.id}-*"))
