# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for topologies and emulated paths as data: MTUs, arguments and counts of the emulator, and refused paths."""

from __future__ import annotations

import struct

import pytest

from mptcp_lab.emulation import userspace
from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, PathError, UniformLoss, seed_of
from mptcp_lab.testbed import Topology, paths
from mptcp_lab.testbed.plan import steps

WIFI = EmulatedPath(
    "wifi",
    down=Direction(20_000_000, 8_000, 2_000, GilbertElliott(0.01, 0.3, 0.7, 0.001)),
    up=Direction(10_000_000, loss=UniformLoss(0.005)),
)


def commands(topology: Topology, node: str) -> list[str]:
    names = {each.name: f"mpx-0-{each.name}" for each in topology.nodes}
    return [" ".join(step.argv) for step in steps(topology, names) if step.node == node]


def test_mtu_of_a_direction_is_that_of_its_sender() -> None:
    small = Direction(mtu=1000)
    both, up = (paths((EmulatedPath("p", down, small),)) for down in (small, Direction()))
    link = "ip link add eth0 index 1001 mtu {0} type veth peer name lan mtu {0} netns mpx-0-hop1"
    assert link.format(1000) in commands(both, "client")
    assert link.format(1500) in commands(up, "client")
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
        (lambda: Direction(delay=-1), "delay -1 µs: 0 to 10 seconds"),
        (lambda: Direction(delay=100, jitter=101), "jitter 101 µs: 0 to the delay, 100"),
    ],
)
def test_path_is_refused_when_it_cannot_be_emulated(create: object, message: str) -> None:
    with pytest.raises(PathError, match=message):
        create()  # type: ignore[operator]
