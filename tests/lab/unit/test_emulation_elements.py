# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for emulator and middlebox without a kernel: fates of packets, arguments and counts, and refused paths.

Both programs are built with the address and undefined-behaviour sanitizers, and with warnings as errors. Scapy makes
and parses the middlebox's packets, so that our own code does not judge itself.
"""

from __future__ import annotations

import struct
import subprocess
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP

from mptcp_lab.emulation import model, userspace
from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, PathError, UniformLoss, seed_of
from mptcp_lab.testbed import Topology, paths
from mptcp_lab.testbed.plan import steps

STRICT = (*userspace.COMPILER_FLAGS, "-Werror", "-Wconversion", "-g", "-fsanitize=address,undefined",
          "-fno-sanitize-recover=all")  # fmt: skip
NATIVE = userspace.SOURCES[0].parent
SEEDS = st.integers(0, (1 << 64) - 1)


def compiled(require: Callable[..., None], target: Path, *arguments: str) -> Path:
    """Compile a program, and return its file *target*."""
    require("gcc")
    subprocess.run(["gcc", *STRICT, "-o", str(target), *arguments], check=True)
    return target


@pytest.fixture(scope="module")
def elements_driver(tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]) -> Path:
    source = Path(__file__).with_name("elements_driver.c")
    target = tmp_path_factory.mktemp("elements") / "driver"
    return compiled(require, target, f"-I{NATIVE}", str(source), str(NATIVE / "elements.c"))


def fates(elements_driver: Path, count: int, gap: int, *elements: str) -> list[int | None]:
    """Return the time in nanoseconds at which each packet leaves, or None if it is lost."""
    done = subprocess.run(
        [str(elements_driver), str(count), str(gap), *elements], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return [None if line == "lost" else int(line) for line in done.stdout.split()]


@settings(deadline=None, max_examples=examples(30))
@given(delay=st.integers(0, 10_000_000), share=st.floats(0, 1), gap=st.integers(0, 5_000_000), seed=SEEDS)
def test_delay_is_as_configured_and_keeps_the_order(
    elements_driver: Path, delay: int, share: float, gap: int, seed: int
) -> None:
    jitter = int(delay * share)
    leaves = fates(elements_driver, 300, gap, "delay", str(delay), str(jitter), str(seed))
    times = [time for time in leaves if time is not None]
    assert len(times) == 300
    assert all(before <= after for before, after in pairwise(times))
    assert all((delay - jitter) * 1000 <= time - i * gap <= (delay + jitter) * 1000 for i, time in enumerate(times))


def test_jitter_is_drawn_evenly(elements_driver: Path) -> None:
    # The packets are far apart, so that none waits for an earlier one.
    times = fates(elements_driver, 20_000, 10_000_000, "delay", "3000", "2000", "1")
    quarters = Counter((time - i * 10_000_000) // 1_000_000 for i, time in enumerate(times) if time is not None)
    assert [quarters[number] / 20_000 for number in (1, 2, 3, 4)] == pytest.approx([0.25] * 4, abs=0.02)


@pytest.mark.parametrize("loss", [UniformLoss(0.01), UniformLoss(1.0), GilbertElliott(0.02, 0.5, 0.8, 0.001)])
def test_loss_has_its_mean_and_the_same_seed_loses_the_same(elements_driver: Path, loss: GilbertElliott) -> None:
    every = [userspace.elements("path", "down", Direction(loss=loss), seed) for seed in (3, 3, 4)]
    found = [fates(elements_driver, 100_000, 0, *elements) for elements in every]
    assert found[0].count(None) / 100_000 == pytest.approx(loss.mean, rel=0.15)
    assert found[0] == found[1]
    assert found[0] != found[2] or loss.mean in (0, 1)


def test_lost_packet_delays_no_other(elements_driver: Path) -> None:
    def delays(*elements: str) -> list[int]:
        times = fates(elements_driver, 50, 10_000_000, *elements, "delay", "3000", "2000", "9")
        return [time - i * 10_000_000 for i, time in enumerate(times) if time is not None]

    with_loss = delays("gemodel", "0", "1", "1", "0.5", "1")
    assert 0 < len(with_loss) < 50
    assert with_loss == delays()[: len(with_loss)]


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


def test_emulator_gets_loss_before_delay_each_with_its_own_seed() -> None:
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


@pytest.mark.parametrize(("passed", "late", "is_fault"), [(100, 100, False), (101, 101, True), (100_000, 2_000, False)])
def test_too_many_late_packets_are_a_fault(passed: int, late: int, is_fault: bool) -> None:
    """Up to 100 packets are too few for a verdict."""
    found = userspace.Counts(seen=2 * passed, lost=passed, passed=passed, late=late, dropped=0).fault()
    assert (found or "").startswith(f"{late} of {passed} packets were released") is is_fault


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: Direction(delay=-1), "delay -1 µs: 0 to 10 seconds"),
        (lambda: Direction(delay=100, jitter=101), "jitter 101 µs: 0 to the delay, 100"),
    ],
)
def test_path_that_cannot_be_emulated_is_refused(create: object, message: str) -> None:
    with pytest.raises(PathError, match=message):
        create()  # type: ignore[operator]


MPTCP, STAMPS = 30, ("Timestamp", (7, 9))
DSS = (MPTCP, bytes.fromhex("200500000001aabbccdd11223344556600010000")[:18])
Run = Callable[..., list[list[Any]]]


@pytest.fixture(scope="module")
def middlebox_driver(tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]) -> Path:
    sources = [str(source) for source in userspace.MIDDLEBOX_SOURCES if source.name != "middlebox.c"]
    target = tmp_path_factory.mktemp("middlebox") / "driver"
    return compiled(
        require, target, f"-I{NATIVE / 'middlebox'}", str(Path(__file__).with_name("middlebox_driver.c")), *sources
    )


def drive(middlebox_driver: Path, behaviour: str, *packets: tuple[str, Any]) -> tuple[list[list[Any]], int]:
    """Return the packets that left after each of *packets* (way, packet), and the number of changed packets."""
    lines = "".join(f"{way} {packet if way == 'wait' else bytes(packet).hex()}\n" for way, packet in packets)
    done = subprocess.run([str(middlebox_driver), behaviour], input=lines, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    *groups, changed = f"\n{done.stdout}".split("\n\n")
    left = [[bytes.fromhex(line) for line in group.split("\n") if line] for group in groups]
    return [[IP(data) if len(data) >= 40 else data for data in group] for group in left], int(changed)


@pytest.fixture(scope="module")
def run(middlebox_driver: Path) -> Run:
    return lambda behaviour, *packets: drive(middlebox_driver, behaviour, *packets)[0]


def up(data: bytes = b"", sequence: int = 1000, flags: str = "A", port: int = 40_000) -> tuple[str, Any]:
    header = TCP(sport=port, dport=3128, seq=sequence, ack=5000, flags=flags, options=[STAMPS, DSS])
    return "up", IP(src="10.77.1.2", dst="10.77.8.2") / header / data


def down(data: bytes = b"", sequence: int = 5000, ack: int = 1000) -> tuple[str, Any]:
    header = TCP(sport=3128, dport=40_000, seq=sequence, ack=ack, flags="A", options=[STAMPS, DSS])
    return "down", IP(src="10.77.8.2", dst="10.77.1.2") / header / data


def payload(packet: Any) -> bytes:
    return bytes(packet[TCP].payload)


def kinds(packet: Any) -> list[Any]:
    return [kind for kind, _ in packet[TCP].options]


def has_correct_sums(packet: Any) -> bool:
    """Return whether lengths and checksums equal those that Scapy computes."""
    again = IP(bytes(packet))
    del again[IP].len, again[IP].chksum, again[TCP].chksum, again[TCP].dataofs
    return bytes(IP(bytes(again))) == bytes(packet)


CHANGED = {
    "nothing": 0, "nat": 4, "remove-syn": 1, "remove-data": 3, "nop-syn": 1, "nop-data": 3, "sequence": 4,
    "split-both": 3, "split-first": 3, "split-second": 3, "split-second-later": 1, "duplicate": 4, "reorder": 0,
    # The first packet is held, the second one is added to it, and the third one is held until the end.
    "coalesce": 3,
    # The address in a packet changes, and the sequence number of the next packet.
    "alg-longer": 2, "alg-shorter": 0,
}  # fmt: skip
"""Number of packets that each behaviour changes, of those in the next test."""


@pytest.mark.parametrize("behaviour", model.BEHAVIOURS)
def test_changed_packets_are_correct_and_counted(middlebox_driver: Path, behaviour: str) -> None:
    text = f"PORT {model.SHORT_ADDRESS}".encode().ljust(500)
    sent = [up(b"", 999, flags="S"), up(text), up(b"y" * 500, 1500), down(b"z" * 700)]
    groups, changed = drive(middlebox_driver, behaviour, *sent, ("wait", 10_000_000))
    assert changed == CHANGED[behaviour]
    packets = [packet for group in groups for packet in group]
    assert len(packets) >= 3
    assert all(has_correct_sums(packet) for packet in packets)


@settings(deadline=None, max_examples=examples(40))
@given(
    behaviour=st.sampled_from(sorted(model.BEHAVIOURS)), noise=st.lists(st.binary(min_size=1, max_size=120), max_size=6)
)
def test_middlebox_accepts_any_bytes(run: Run, behaviour: str, noise: list[bytes]) -> None:
    header = bytes(up(b"data")[1])
    changed = [bytes(a ^ b for a, b in zip(header, each.ljust(len(header), b"\0"), strict=False)) for each in noise]
    run(behaviour, *(("up", each) for each in (*noise, *changed)), ("wait", 10_000_000))


@pytest.mark.parametrize("change", ["remove", "nop"])
@pytest.mark.parametrize("changed", ["syn", "data"])
def test_middlebox_removes_options_or_replaces_them_by_nops(run: Run, change: str, changed: str) -> None:
    (syn,), (data,), (ack,) = run(f"{change}-{changed}", up(flags="S"), up(b"data"), up())
    assert (MPTCP in kinds(syn), MPTCP in kinds(data), MPTCP in kinds(ack)) == (
        changed != "syn",
        changed != "data",
        True,
    )
    assert payload(data) == b"data"
    assert ((syn if changed == "syn" else data)[TCP].dataofs < ack[TCP].dataofs) is (change == "remove")


@pytest.mark.parametrize(
    "other",
    [up(b"z", 1300), up(b"z", 1100, port=40_001), down(b"z"), up(b"z", 1100, flags="FA"), up(b"", 1100)],
    ids=["gap", "port", "direction", "FIN", "empty"],
)
def test_middlebox_coalesces_only_segments_that_follow_each_other(run: Run, other: Any) -> None:
    def coalesced(second: Any) -> list[bytes]:
        packets = [each for group in run("coalesce", up(b"a" * 100), second, ("wait", 10_000_000)) for each in group]
        assert MPTCP in kinds(packets[0])
        return [payload(each) for each in packets]

    assert coalesced(up(b"b" * 50, 1100)) == [b"a" * 100 + b"b" * 50]
    assert coalesced(other) == [b"a" * 100, payload(other[1])]


@pytest.mark.parametrize("behaviour", ["alg-longer", "alg-shorter"])
def test_gateway_translates_an_address_and_adapts_later_numbers(run: Run, behaviour: str) -> None:
    """An application-level gateway changes an address in the data, and so the sequence numbers of all later data."""
    old, new = sorted((model.SHORT_ADDRESS, model.LONG_ADDRESS), key=len, reverse=behaviour == "alg-shorter")
    first, grown = f"PORT {old}7,8\r\n".encode(), len(new) - len(old)
    end = 1000 + len(first)
    groups = run(behaviour, up(b"USER x\r\n", 992), up(first), up(b"RETR\r\n", end), up(first),
                 down(b"200\r\n", 5000, ack=end + grown), down(b"", 5000, ack=1000))  # fmt: skip
    before, translated, after, repeated, back, old_ack = [group[0] for group in groups]
    assert (payload(before), before[TCP].seq) == (b"USER x\r\n", 992)
    assert payload(translated) == first.replace(old.encode(), new.encode())
    assert (payload(after), after[TCP].seq) == (b"RETR\r\n", end + grown)
    assert bytes(repeated) == bytes(translated), "the retransmission differs"
    assert (back[TCP].ack, old_ack[TCP].ack) == (end, 1000)
