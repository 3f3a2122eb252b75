"""What pcapng says of an interface, which Scapy passes over."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from capture_files import BOTH, ETHERNET, START, block, option, pcap
from replaying import POLICY, Run

from mptcp_throttler.views.capture_file import CaptureFile, Record

SIMPLE, OLD, ENHANCED = 3, 2, 6
"""Types of blocks: Simple Packet, Packet (obsolete), Enhanced Packet."""
NIGHT = POLICY.replace("throttle:", "when: {hours: ['22:00-23:00']}, throttle:")
"""BOTH was captured at 22:13."""


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(offset: bytes = b"", order: str = "<", limit: int = 0, resolution: int = 6) -> bytes:
    options = option(9, bytes([resolution]), order)
    options += option(14, offset, order) if offset else b""
    return block(1, struct.pack(order + "HHI", ETHERNET, 0, limit) + options + bytes(4), order)


def packet(time: int, frame: bytes, order: str = "<", kind: int = ENHANCED, number: int = 0) -> bytes:
    """Return a block with *frame*; *time* is in the interface's units."""
    head = (number,) if kind == ENHANCED else (number, 0)
    form = "I4I" if kind == ENHANCED else "HH4I"
    parts = struct.pack(order + form, *head, time >> 32, time & 0xFFFFFFFF, len(frame), len(frame))
    return block(kind, parts + frame + bytes(-len(frame) % 4), order)


def simple(frame: bytes, length: int | None = None) -> bytes:
    size = len(frame) if length is None else length
    return block(SIMPLE, struct.pack("<I", size) + frame + bytes(-len(frame) % 4))


def seconds(value: int, order: str = "<") -> bytes:
    return struct.pack(order + "q", value)


def read(tmp_path: Path, capture: bytes) -> list[Record]:
    (tmp_path / "capture").write_bytes(capture)
    file = CaptureFile(tmp_path / "capture")
    records = list(file)
    assert file.damage is None
    return records


def with_offset(offset: int, order: str = "<") -> bytes:
    """Return BOTH, its times counted from *offset* on."""
    packets = [packet(round((time - offset) * 1e6), frame, order) for time, _, frame in BOTH]
    return b"".join([section(order), interface(seconds(offset, order), order), *packets])


@pytest.mark.parametrize("order", "<>")
def test_times_count_from_the_offset_of_their_interface(replay: Run, order: str) -> None:
    """Defect: a capture of 2023 was shown as one of 1973, and the hours of rules were judged by that."""
    expected = replay(pcap(BOTH), "--interface", "v0", policy=NIGHT)
    assert "capped: rule spare" in expected[1]
    assert replay(with_offset(1_600_000_000, order), "--interface", "v0", policy=NIGHT) == expected


@pytest.mark.parametrize("kind", [ENHANCED, OLD])
@pytest.mark.parametrize(
    ("offset", "resolution", "ticks", "time"),
    [
        (1_600_000_000, 6, 100_000_000 * 10**6 + 1, START + 1e-6),
        (-3600, 6, (1_700_000_000 + 3600) * 10**6, START),
        (1_700_000_000, 9, 500_000_000, START + 0.5),
        (1_700_000_000, 0x80 | 10, 256, START + 0.25),
        (0, 6, 1_700_000_000 * 10**6, START),
    ],
)
def test_an_offset_is_in_seconds_whatever_the_unit(
    tmp_path: Path, kind: int, offset: int, resolution: int, ticks: int, time: float
) -> None:
    capture = section() + interface(seconds(offset), resolution=resolution) + packet(ticks, b"x" * 60, kind=kind)
    (record,) = read(tmp_path, capture)
    assert record.time == pytest.approx(time, abs=2e-7)
    assert record.data == b"x" * 60


def test_each_interface_and_each_section_has_an_offset_of_its_own(tmp_path: Path) -> None:
    second = round(START * 1e6)
    capture = [section(), interface(seconds(-10)), interface(), interface(seconds(10))]
    capture += [packet(second, b"x" * 60, number=number) for number in (0, 1, 2)]
    capture += [section(), interface(), packet(second, b"x" * 60)]
    assert [each.time - START for each in read(tmp_path, b"".join(capture))] == [-10, 0, 10, 0]


@pytest.mark.parametrize("offset", [seconds(2**63 - 1), seconds(-(2**63)), b"\x01\0\0\0", b"\x01" * 12])
def test_an_offset_that_is_nonsense_ends_nothing(tmp_path: Path, offset: bytes) -> None:
    capture = section() + interface(offset) + packet(round(START * 1e6), b"x" * 60)
    (record,) = read(tmp_path, capture)
    assert record.time == (0.0 if len(offset) == 8 else START)


def test_without_a_limit_a_simple_packet_is_whole(replay: Run, tmp_path: Path) -> None:
    """Defect: an interface's limit of 0 bytes, which is none, had each such packet cut off before its first byte."""
    frames = [frame for _, _, frame in BOTH]
    capture = section() + interface() + b"".join(map(simple, frames))
    assert [(each.data, each.length) for each in read(tmp_path, capture)] == [(each, len(each)) for each in frames]
    _, out, err = replay(capture, "--interface", "v0")
    assert "2 connections, 4 subflows and 22 segments" in out
    assert err == ""


def test_with_a_limit_it_is_cut_there(tmp_path: Path) -> None:
    capture = section() + interface(limit=60) + simple(b"x" * 60, length=100) + simple(b"y" * 40)
    assert [(each.data, each.length) for each in read(tmp_path, capture)] == [(b"x" * 60, 100), (b"y" * 40, 40)]
