# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for emulated paths without a kernel: fates of packets, the emulator's arguments and counts, and refused paths.

The emulator is built with the address and undefined-behaviour sanitizers, and with warnings as errors.
"""

from __future__ import annotations

import struct
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from mptcp_lab.emulation import userspace
from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, Loss, PathError, UniformLoss, seed_of
from mptcp_lab.testbed import Topology, paths
from mptcp_lab.testbed.features import fails_when_missing, missing
from mptcp_lab.testbed.plan import steps

STRICT = (*userspace.COMPILER_FLAGS, "-Werror", "-Wconversion", "-g", "-fsanitize=address,undefined",
          "-fno-sanitize-recover=all")  # fmt: skip
NATIVE = userspace.SOURCES[0].parent
SEEDS = st.integers(0, (1 << 64) - 1)


def compiled(target: Path, *arguments: str) -> Path:
    reason = missing("gcc")
    if reason is not None:
        if fails_when_missing():
            pytest.fail(f"CI may not skip: {reason}", pytrace=False)
        pytest.skip(f"NOT TESTED: {reason}")
    subprocess.run(["gcc", *STRICT, "-o", str(target), *arguments], check=True)
    return target


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("elements_driver.c")
    target = tmp_path_factory.mktemp("elements") / "driver"
    return compiled(target, f"-I{NATIVE}", str(source), str(NATIVE / "elements.c"))


def fates(driver: Path, count: int, gap: int, *elements: str) -> list[int | None]:
    """Return the time in nanoseconds at which each packet leaves, or None if it is lost."""
    done = subprocess.run([str(driver), str(count), str(gap), *elements], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [None if line == "lost" else int(line) for line in done.stdout.split()]


@settings(deadline=None, max_examples=examples(30))
@given(delay=st.integers(0, 10_000_000), share=st.floats(0, 1), gap=st.integers(0, 5_000_000), seed=SEEDS)
def test_delay_is_as_configured_and_keeps_the_order(
    driver: Path, delay: int, share: float, gap: int, seed: int
) -> None:
    jitter = int(delay * share)
    leaves = fates(driver, 300, gap, "delay", str(delay), str(jitter), str(seed))
    times = [time for time in leaves if time is not None]
    assert len(times) == 300
    assert all(before <= after for before, after in pairwise(times))
    assert all((delay - jitter) * 1000 <= time - i * gap <= (delay + jitter) * 1000 for i, time in enumerate(times))


def test_jitter_is_drawn_evenly(driver: Path) -> None:
    # The packets are far apart, so that none waits for an earlier one.
    times = fates(driver, 20_000, 10_000_000, "delay", "3000", "2000", "1")
    quarters = Counter((time - i * 10_000_000) // 1_000_000 for i, time in enumerate(times) if time is not None)
    assert [quarters[number] / 20_000 for number in (1, 2, 3, 4)] == pytest.approx([0.25] * 4, abs=0.02)


@pytest.mark.parametrize("loss", [UniformLoss(0.01), UniformLoss(1.0), GilbertElliott(0.02, 0.5, 0.8, 0.001)])
def test_loss_has_its_mean_and_the_same_seed_loses_the_same(driver: Path, loss: Loss) -> None:
    every = [userspace.elements("path", "down", Direction(loss=loss), seed) for seed in (3, 3, 4)]
    found = [fates(driver, 100_000, 0, *elements) for elements in every]
    assert found[0].count(None) / 100_000 == pytest.approx(loss.mean, rel=0.15)
    assert found[0] == found[1]
    assert found[0] != found[2] or loss.mean in (0, 1)


def test_lost_packet_delays_no_other(driver: Path) -> None:
    def delays(*elements: str) -> list[int]:
        times = fates(driver, 50, 10_000_000, *elements, "delay", "3000", "2000", "9")
        return [time - i * 10_000_000 for i, time in enumerate(times) if time is not None]

    with_loss = delays("gemodel", "0", "1", "1", "0.5", "1")
    assert 0 < len(with_loss) < 50
    assert with_loss == delays()[: len(with_loss)]


WIFI = EmulatedPath(
    "wifi",
    down=Direction(20_000_000, 8_000, 2_000, GilbertElliott(0.01, 0.3, 0.7, 0.001)),
    up=Direction(10_000_000, loss=UniformLoss(0.005), queue_ms=100),
)


def commands(topology: Topology, node: str) -> list[str]:
    names = {each.name: f"mpx-0-{each.name}" for each in topology.nodes}
    return [" ".join(step.argv) for step in steps(topology, names) if step.node == node]


def test_mtu_of_a_direction_is_that_of_its_sender() -> None:
    small = Direction(mtu=1000)
    both, down, up = (
        paths((EmulatedPath("p", d, u),)) for d, u in ((small, small), (small, Direction()), (Direction(), small))
    )
    link = "ip link add eth0 index 1001 mtu {0} type veth peer name lan mtu {0} netns mpx-0-hop1"
    assert link.format(1000) in commands(both, "client")
    for topology in (down, up):
        assert link.format(1500) in commands(topology, "client")
    assert "ip -4 route add 10.77.1.2 via 10.77.1.2 dev lan mtu 1000" in commands(down, "hop1")
    assert "ip -4 route add default via 10.77.1.1 dev eth0 table 101 mtu 1000" in commands(up, "client")


def test_emulator_is_given_loss_before_delay_each_with_its_own_seed() -> None:
    seeds = [str(seed_of(4, "wifi", *names)) for names in (("down", "loss"), ("down", "delay"), ("up", "loss"))]
    assert len(set(seeds)) == 3
    assert userspace.arguments(WIFI, seed=4) == (
        *("queue", "0", "gemodel", "0.01", "0.3", "0.7", "0.001", seeds[0], "delay", "8000", "2000", seeds[1]),
        *("queue", "1", "gemodel", "0.0", "1.0", "1.0", "0.005", seeds[2]),
    )


def test_counts_include_packets_that_the_kernel_dropped() -> None:
    kernel = "    0  12345   17 1     0     3     4      999  1\n    1  12345    0 1     0     0     0       42  1\n"
    counts = userspace.counts(WIFI, struct.pack("=10Q", 10, 2, 8, 1, 5, 20, 0, 20, 0, 0), kernel)
    assert counts == {"down": userspace.Counts(10, 2, 8, 1, 5 + 3 + 4), "up": userspace.Counts(20, 0, 20, 0, 0)}
    assert "12 of 22 packets were dropped" in str(counts["down"].fault())
    assert counts["down"].since(counts["down"]).fault() is None


@pytest.mark.parametrize(("passed", "late", "fault"), [(100, 100, False), (101, 101, True), (100_000, 2_000, False)])
def test_too_many_late_packets_are_a_fault(passed: int, late: int, fault: bool) -> None:
    """Up to 100 packets are too few for a verdict."""
    found = userspace.Counts(seen=2 * passed, lost=passed, passed=passed, late=late, dropped=0).fault()
    assert (found or "").startswith(f"{late} of {passed} packets were released") is fault


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: Direction(rate=7_999), "rate 7999 bit/s: at least 8000"),
        (lambda: Direction(delay=-1), "delay -1 µs: 0 to 10 seconds"),
        (lambda: Direction(delay=100, jitter=101), "jitter 101 µs: 0 to the delay, 100"),
        (lambda: Direction(mtu=575), "mtu 575: 576 to 9000"),
        (lambda: UniformLoss(1.5), "loss one_minus_k 1.5: a probability is 0 to 1"),
        (lambda: GilbertElliott(0.0, 0.0), "never change"),
    ],
)
def test_path_is_refused_when_it_cannot_be_emulated(create: object, message: str) -> None:
    with pytest.raises(PathError, match=message):
        create()  # type: ignore[operator]
