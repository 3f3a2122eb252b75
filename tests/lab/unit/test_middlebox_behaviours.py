# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the behaviours of middleboxes, without a kernel. The program has sanitizers.

Scapy makes and reads the packets, so that our own code does not judge itself.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from test_emulation_elements import compiled

from mptcp_lab.emulation import userspace
from mptcp_lab.emulation.model import BEHAVIOURS, LONG_ADDRESS, SHORT_ADDRESS

NATIVE = userspace.MIDDLEBOX_SOURCES[0].parent
MPTCP, STAMPS = 30, ("Timestamp", (7, 9))
DSS = (MPTCP, bytes.fromhex("200500000001aabbccdd11223344556600010000")[:18])
Run = Callable[..., list[list[Any]]]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [str(source) for source in userspace.MIDDLEBOX_SOURCES if source.name != "middlebox.c"]
    target = tmp_path_factory.mktemp("middlebox") / "driver"
    return compiled(target, f"-I{NATIVE}", str(Path(__file__).with_name("middlebox_driver.c")), *sources)


def drive(driver: Path, behaviour: str, *packets: tuple[str, Any]) -> tuple[list[list[Any]], int]:
    """Return the packets that left after each of *packets* (way, packet), and the number of changed packets."""
    lines = "".join(f"{way} {packet if way == 'wait' else bytes(packet).hex()}\n" for way, packet in packets)
    done = subprocess.run([str(driver), behaviour], input=lines, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    *groups, changed = f"\n{done.stdout}".split("\n\n")
    left = [[bytes.fromhex(line) for line in group.split("\n") if line] for group in groups]
    return [[IP(data) if len(data) >= 40 else data for data in group] for group in left], int(changed)


@pytest.fixture(scope="module")
def run(driver: Path) -> Run:
    return lambda behaviour, *packets: drive(driver, behaviour, *packets)[0]


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


def is_correct(packet: Any) -> bool:
    """Return whether lengths and checksums are the ones that Scapy computes."""
    again = IP(bytes(packet))
    del again[IP].len, again[IP].chksum, again[TCP].chksum, again[TCP].dataofs
    return bytes(IP(bytes(again))) == bytes(packet)


CHANGED = {
    "nothing": 0, "nat": 4, "remove-syn": 1, "remove-data": 3, "nop-syn": 1, "nop-data": 3, "sequence": 4,
    "split-both": 3, "split-first": 3, "split-second": 3, "split-second-later": 1, "duplicate": 4, "reorder": 0,
    # The first packet is held, the second one is added to it, and the third one is held until the end.
    "coalesce": 3,
    # The address changes, and the sequence number of all that follows.
    "alg-longer": 2, "alg-shorter": 0,
}  # fmt: skip
"""Number of packets that each behaviour changes in the next test."""


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_changed_packets_are_correct_and_counted(driver: Path, behaviour: str) -> None:
    text = f"PORT {SHORT_ADDRESS}".encode().ljust(500)
    sent = [up(b"", 999, flags="S"), up(text), up(b"y" * 500, 1500), down(b"z" * 700)]
    groups, changed = drive(driver, behaviour, *sent, ("wait", 10_000_000))
    assert changed == CHANGED[behaviour]
    packets = [packet for group in groups for packet in group]
    assert len(packets) >= 3
    assert all(is_correct(packet) for packet in packets)


@settings(deadline=None, max_examples=examples(40))
@given(behaviour=st.sampled_from(sorted(BEHAVIOURS)), noise=st.lists(st.binary(min_size=1, max_size=120), max_size=6))
def test_any_bytes_pass_the_middlebox(run: Run, behaviour: str, noise: list[bytes]) -> None:
    header = bytes(up(b"data")[1])
    changed = [bytes(a ^ b for a, b in zip(header, each.ljust(len(header), b"\0"), strict=False)) for each in noise]
    run(behaviour, *(("up", each) for each in (*noise, *changed)), ("wait", 10_000_000))


@pytest.mark.parametrize("how", ["remove", "nop"])
@pytest.mark.parametrize("of", ["syn", "data"])
def test_middlebox_removes_options_or_replaces_them_by_nops(run: Run, how: str, of: str) -> None:
    (syn,), (data,), (ack,) = run(f"{how}-{of}", up(flags="S"), up(b"data"), up())
    assert (MPTCP in kinds(syn), MPTCP in kinds(data), MPTCP in kinds(ack)) == (of != "syn", of != "data", True)
    assert payload(data) == b"data"
    assert ((syn if of == "syn" else data)[TCP].dataofs < ack[TCP].dataofs) is (how == "remove")


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
def test_alg_translates_an_address_and_adapts_later_numbers(run: Run, behaviour: str) -> None:
    old, new = (SHORT_ADDRESS, LONG_ADDRESS) if behaviour == "alg-longer" else (LONG_ADDRESS, SHORT_ADDRESS)
    first, grown = f"PORT {old}7,8\r\n".encode(), len(new) - len(old)
    end = 1000 + len(first)
    groups = run(behaviour, up(b"USER x\r\n", 992), up(first), up(b"RETR\r\n", end), up(first),
                 down(b"200\r\n", 5000, ack=end + grown), down(b"", 5000, ack=1000))  # fmt: skip
    before, translated, after, repeated, back, old_ack = [group[0] for group in groups]
    assert (payload(before), before[TCP].seq) == (b"USER x\r\n", 992)
    assert payload(translated) == first.replace(old.encode(), new.encode())
    assert (payload(after), after[TCP].seq) == (b"RETR\r\n", end + grown)
    assert bytes(repeated) == bytes(translated), "a retransmission is translated in the same way"
    assert (back[TCP].ack, old_ack[TCP].ack) == (end, 1000)
