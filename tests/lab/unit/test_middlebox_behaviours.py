# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for what each behaviour of a middlebox does to packets, without a kernel. The program has sanitizers.

Scapy makes and reads the packets, so that our own code does not judge itself.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from test_emulation_elements import compiled

from mptcp_lab.emulation import userspace
from mptcp_lab.emulation.behaviours import BEHAVIOURS, LONG_ADDRESS, SHORT_ADDRESS

NATIVE = userspace.MIDDLEBOX_SOURCES[0].parent
MPTCP, STAMPS = 30, ("Timestamp", (7, 9))
DSS = (MPTCP, bytes.fromhex("200500000001aabbccdd11223344556600010000")[:18])
Run = Callable[..., list[list[Any]]]


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return ``driven(behaviour, (way, packet), …)``, which returns the driver's output."""
    sources = [str(source) for source in userspace.MIDDLEBOX_SOURCES if source.name != "middlebox.c"]
    driver = compiled(
        tmp_path_factory.mktemp("middlebox") / "driver",
        f"-I{NATIVE}",
        str(Path(__file__).with_name("middlebox_driver.c")),
        *sources,
    )

    def given_to(behaviour: str, *given: tuple[str, Any]) -> str:
        text = "".join(f"{way} {what if way == 'wait' else bytes(what).hex()}\n" for way, what in given)
        done = subprocess.run([str(driver), behaviour], input=text, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    return given_to


@pytest.fixture(scope="module")
def run(driven: Callable[..., str]) -> Run:
    """Return ``run(behaviour, (way, packet), …)``, which returns for each packet the packets that left after it."""

    def given_to(behaviour: str, *given: tuple[str, Any]) -> list[list[Any]]:
        return [[_read(bytes.fromhex(line)) for line in group] for group in _split(driven(behaviour, *given))]

    return given_to


def _read(data: bytes) -> Any:
    return IP(data) if len(data) >= 40 else data


def _split(text: str) -> list[list[str]]:
    """Return the lines of each group; an empty line ends a group."""
    groups: list[list[str]] = [[]]
    for line in text.split("\n")[:-1]:
        if line:
            groups[-1].append(line)
        else:
            groups.append([])
    return groups[:-1]


def up(
    data: bytes = b"",
    sequence: int = 1000,
    flags: str = "A",
    options: Sequence[Any] = (STAMPS, DSS),
    port: int = 40_000,
) -> tuple[str, Any]:
    header = TCP(sport=port, dport=3128, seq=sequence, ack=5000, flags=flags, options=list(options))
    return "up", IP(src="10.77.1.2", dst="10.77.8.2") / header / data


def down(data: bytes = b"", sequence: int = 5000, ack: int = 1000, flags: str = "A") -> tuple[str, Any]:
    header = TCP(sport=3128, dport=40_000, seq=sequence, ack=ack, flags=flags, options=[STAMPS, DSS])
    return "down", IP(src="10.77.8.2", dst="10.77.1.2") / header / data


def payload(packet: Any) -> bytes:
    return bytes(packet[TCP].payload)


def kinds(packet: Any) -> list[Any]:
    return [kind for kind, _ in packet[TCP].options]


def good(packet: Any) -> bool:
    """Return whether lengths and checksums are the ones that Scapy computes."""
    again = IP(bytes(packet))
    del again[IP].len, again[IP].chksum, again[TCP].chksum, again[TCP].dataofs
    return bytes(IP(bytes(again))) == bytes(packet)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_every_behaviour_leaves_packets_whole(run: Run, behaviour: str) -> None:
    sent = [up(b"", flags="S"), up(b"x" * 500), up(b"y" * 500, 1500), down(b"z" * 700), ("wait", 10_000_000)]
    packets = [packet for group in run(behaviour, *sent) for packet in group]
    assert len(packets) >= 3
    assert all(good(packet) for packet in packets)


@pytest.mark.parametrize(
    ("behaviour", "changed"),
    [
        ("nothing", 0),
        ("nat", 4),
        ("remove-syn", 1),
        ("nop-data", 3),
        ("split-both", 3),
        ("split-second-later", 1),
        # The first packet is held, the second one is added to it, and the third one is held until the end.
        ("coalesce", 3),
        # The address changes, and everything after it.
        ("alg-longer", 2),
        ("alg-shorter", 0),
        ("duplicate", 4),
        ("reorder", 0),
    ],
)
def test_changed_packets_are_counted(driven: Callable[..., str], behaviour: str, changed: int) -> None:
    text = f"PORT {SHORT_ADDRESS}".encode().ljust(500)
    sent = [up(b"", 999, flags="S"), up(text), up(b"y" * 500, 1500), down(b"z" * 700)]
    assert driven(behaviour, *sent).split("\n")[-2] == str(changed)


@settings(deadline=None, max_examples=examples(40))
@given(behaviour=st.sampled_from(sorted(BEHAVIOURS)), noise=st.lists(st.binary(min_size=0, max_size=120), max_size=6))
def test_any_bytes_pass_the_middlebox(run: Run, behaviour: str, noise: list[bytes]) -> None:
    header = bytes(up(b"data")[1])
    changed = [bytes(a ^ b for a, b in zip(header, each.ljust(len(header), b"\0"), strict=False)) for each in noise]
    run(behaviour, *(("up", each) for each in (*[n for n in noise if n], *changed)), ("wait", 10_000_000))


@pytest.mark.parametrize("how", ["remove", "nop"])
@pytest.mark.parametrize("of", ["syn", "data"])
def test_middlebox_removes_options_or_replaces_them_by_nops(run: Run, how: str, of: str) -> None:
    (syn,), (data,), (ack,) = run(f"{how}-{of}", up(flags="S"), up(b"data"), up())
    assert (MPTCP in kinds(syn), MPTCP in kinds(data), MPTCP in kinds(ack)) == (of != "syn", of != "data", True)
    assert payload(data) == b"data"
    assert ((syn if of == "syn" else data)[TCP].dataofs < ack[TCP].dataofs) is (how == "remove")


def test_nat_is_undone_on_the_way_back(run: Run) -> None:
    (out,) = run("nat", up(b"x"))[0]
    assert (out.src, out[TCP].sport) != ("10.77.1.2", 40_000)
    assert out.src.startswith("10.77.1.")
    back = IP(src="10.77.8.2", dst=out.src) / TCP(sport=3128, dport=out[TCP].sport)
    (into,) = run("nat", up(b"x"), ("down", back))[1]
    assert (into.dst, into[TCP].dport) == ("10.77.1.2", 40_000)


def test_sequence_numbers_are_rewritten_and_acknowledged_as_they_were(run: Run) -> None:
    (out,), (back,), (syn,) = run(
        "sequence", up(b"abc", 1000), down(b"def", 5000, ack=1003), up(flags="S", sequence=0xFFFF_FFFF)
    )
    assert out[TCP].seq != 1000
    moved = out[TCP].seq - 1000
    assert back[TCP].seq != 5000
    assert out[TCP].ack == (5000 - (back[TCP].seq - 5000)) % (1 << 32)
    assert back[TCP].ack == (1003 - moved) % (1 << 32)
    assert syn[TCP].seq == (0xFFFF_FFFF + moved) % (1 << 32)
    assert syn[TCP].ack == 5000, "no acknowledgment: not changed"


@pytest.mark.parametrize(
    ("behaviour", "first", "second"),
    [("split-both", True, True), ("split-first", True, False), ("split-second", False, True)],
)
def test_middlebox_splits_segments(run: Run, behaviour: str, first: bool, second: bool) -> None:
    data = bytes(range(201))
    (a, b), (syn,), (small,) = run(behaviour, up(data, flags="FPA"), up(b"x" * 100, flags="S"), up(b"y"))
    assert payload(a) + payload(b) == data
    assert b[TCP].seq == a[TCP].seq + len(payload(a))
    assert (MPTCP in kinds(a), MPTCP in kinds(b)) == (first, second)
    assert all("Timestamp" in kinds(part) for part in (a, b))
    assert (str(a[TCP].flags), str(b[TCP].flags)) == ("A", "FPA")
    assert payload(syn) == b"x" * 100
    assert payload(small) == b"y"


def test_middlebox_coalesces_segments_that_follow_each_other(run: Run) -> None:
    groups = run("coalesce", up(b"a" * 100, 1000), up(b"b" * 50, 1100), up(b"c", 1150), ("wait", 10_000_000))
    assert [len(group) for group in groups] == [0, 1, 0, 1]
    assert payload(groups[1][0]) == b"a" * 100 + b"b" * 50
    assert MPTCP in kinds(groups[1][0])
    assert payload(groups[3][0]) == b"c"


@pytest.mark.parametrize(
    "other", [up(b"z", 1300), up(b"z", 1100, port=40_001), down(b"z"), up(b"z", 1100, flags="FA"), up(b"", 1100)]
)
def test_middlebox_coalesces_no_other_segments(run: Run, other: Any) -> None:
    groups = run("coalesce", up(b"a" * 100, 1000), other, ("wait", 10_000_000))
    assert [payload(packet) for group in groups for packet in group] == [b"a" * 100, payload(other[1])]


@pytest.mark.parametrize(
    ("behaviour", "old", "new"),
    [("alg-longer", SHORT_ADDRESS, LONG_ADDRESS), ("alg-shorter", LONG_ADDRESS, SHORT_ADDRESS)],
)
def test_alg_translates_an_address_and_moves_later_numbers(run: Run, behaviour: str, old: str, new: str) -> None:
    first, grown = f"PORT {old}7,8\r\n".encode(), len(new) - len(old)
    groups = run(
        behaviour,
        up(b"USER x\r\n", 992),
        up(first, 1000),
        up(b"RETR\r\n", 1000 + len(first)),
        up(first, 1000),
        down(b"200\r\n", 5000, ack=1000 + len(first) + grown),
        down(b"", 5000, ack=1000),
    )
    before, translated, after, again, back, old_ack = [group[0] for group in groups]
    assert (payload(before), before[TCP].seq) == (b"USER x\r\n", 992)
    assert payload(translated) == first.replace(old.encode(), new.encode())
    assert (payload(after), after[TCP].seq) == (b"RETR\r\n", 1000 + len(first) + grown)
    assert bytes(again) == bytes(translated), "what is sent again is translated again"
    assert back[TCP].ack == 1000 + len(first)
    assert old_ack[TCP].ack == 1000


def test_one_of_ten_segments_is_overtaken_by_three_or_waits_a_limited_time(run: Run) -> None:
    sent = [up(bytes([number]), 1000 + number) for number in range(1, 15)]
    order = [payload(packet)[0] for group in run("reorder", *sent) for packet in group]
    assert order == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 10, 14]
    groups = run("reorder", *sent[:10], ("wait", 10_000_000))
    assert payload(groups[-1][0]) == bytes([10])
