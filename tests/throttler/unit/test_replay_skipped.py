# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for fragments and other packets that replay does not read."""

from __future__ import annotations

import io
import struct

from capture_files import BOTH, CAPTURED_FRAMES, COOKED, COOKED_2, ETHERNET, RAW, START, Frame, pcap
from hypothesis import given
from hypothesis import strategies as st
from replaying import Run

from mptcp_throttler.replay.capture import CaptureFile


def fragments_of(frame: bytes) -> list[bytes]:
    """Return two fragments of an Ethernet frame with IPv4. The first ends 32 bytes after the TCP header."""
    total = int.from_bytes(frame[16:18], "big")
    first = 20 + (frame[46] >> 4 << 2) + 32

    def fragment(length: int, offset: int, payload: bytes) -> bytes:
        return frame[:16] + struct.pack("!HHH", length, 1, offset) + frame[22:34] + payload

    return [
        fragment(first, 0x2000, frame[34 : 14 + first]),
        fragment(20 + total - first, (first - 20) // 8, bytes(total - first)),
    ]


def test_data_in_later_fragments_count(replay: Run) -> None:
    """Defect: the bytes of later fragments were not counted."""
    data = [number for number, (_, _, frame) in enumerate(CAPTURED_FRAMES) if frame[16:18] > b"\x04\x00"]
    assert len(data) > 4
    frames: list[Frame] = []
    for number, (time, interface, frame) in enumerate(CAPTURED_FRAMES):
        parts = fragments_of(frame) if number in data[:-1] else [frame]
        frames += [(time, interface, part) for part in parts]
    _, expected, _ = replay(pcap(CAPTURED_FRAMES))
    code, out, _ = replay(pcap(frames))
    assert (code, out) == (0, expected)
    assert "30.0 KB down" in out


def test_packets_of_other_protocols_are_ignored(replay: Run) -> None:
    others = [(START, "v0", bytes(12) + number.to_bytes(2, "big") + bytes(60)) for number in (0x0806, 0x8864, 0x1234)]
    _, expected, _ = replay(pcap(BOTH), "--interface", "v0")
    assert replay(pcap([*others, *BOTH]), "--interface", "v0") == (0, expected, "")
    code, _, err = replay(pcap(others), "--interface", "v0")
    assert code == 0
    assert err == "note: no segment to or from port 3128 was read; set another port with --port\n"


@given(st.binary(max_size=80), st.sampled_from([ETHERNET, RAW, COOKED, COOKED_2]))
def test_any_packet_is_read_without_an_exception(packet: bytes, link_type: int) -> None:
    capture = CaptureFile(io.BytesIO(pcap([(START, "v0", packet)], link_type)), "capture")
    assert all(0 <= len(found.payload) <= max(found.length, 80) for found in capture)
