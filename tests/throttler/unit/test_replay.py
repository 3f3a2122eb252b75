# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``mptcp-throttler replay``: all kinds of captures yield the same timeline, other files a clear error."""

from __future__ import annotations

import gzip
import io
import struct
import sys
from pathlib import Path

import pytest
from capture_files import (
    BOTH,
    COOKED,
    COOKED_2,
    ETHERNET,
    RAW,
    START,
    Frame,
    bare,
    cooked_2,
    cooked_capture_frame,
    pcap,
    pcapng,
    tag_inserter,
)
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replaying import POLICY, Run, entries

from mptcp_throttler.cli import main

CAPTURES = {
    "Ethernet": pcap(BOTH),
    "big-endian": pcap(BOTH, big=True),
    "802.1Q": pcap(BOTH, wrap=tag_inserter(0x8100)),
    "QinQ": pcap(BOTH, wrap=tag_inserter(0x88A8, 0x8100)),
    "frames with their check sequences": pcap(BOTH, ETHERNET | 0x54000000, lambda frame: frame + b"\1\2\3\4"),
    "cooked v1": pcap(BOTH, COOKED, cooked_capture_frame),
    "cooked v1, 802.1Q": pcap(BOTH, COOKED, lambda frame: cooked_capture_frame(tag_inserter(0x8100)(frame))),
    "cooked v2": pcap(BOTH, COOKED_2, cooked_2),
    "cooked v2, 802.1Q": pcap(BOTH, COOKED_2, lambda frame: cooked_2(tag_inserter(0x8100)(frame))),
    "raw IP": pcap(BOTH, RAW, bare),
    "cut after the TCP header": pcap(BOTH, snap=118),
    "compressed": gzip.compress(pcap(BOTH)),
    "pcapng": pcapng(BOTH),
    "pcapng, cooked v2": pcapng(BOTH, COOKED_2, cooked_2),
}


def test_all_kinds_of_captures_yield_the_same_timeline(replay: Run) -> None:
    by_address = ("--interface", "10.77.1.0/24=v1", "--interface", "fd77:1::/64=v1", "--interface", "v0")
    expected = replay(CAPTURES["Ethernet"], *by_address)
    assert "path second" not in expected[1]
    assert '"path": "second"' in replay(CAPTURES["Ethernet"], *by_address, "--json")[1]
    for kind, capture in CAPTURES.items():
        assert replay(capture, *by_address) == expected, kind


def test_interface_names_in_pcapng_determine_paths(replay: Run) -> None:
    _, out, err = replay(pcapng(BOTH), "--json")
    paths = {each["remote"]: each["path"] for each in entries(out) if each["kind"] == "decided"}
    assert paths == {
        "10.77.0.1:48830": "first",
        "10.77.1.1:35941": "second",
        "[fd77::1]:36484": "first",
        "[fd77:1::1]:37719": "second",
    }
    assert err == ""
    _, _, err = replay(pcapng(BOTH, named=False))
    assert err == (
        "note: the capture names no interface, so no subflow is on path second; "
        "--interface [PREFIX=]NAME sets the interface of the subflows\n"
    )


def test_json_has_the_same_events_in_one_object_per_line(replay: Run) -> None:
    found = entries(replay(pcapng(BOTH[:11]), "--json")[1])
    assert [each["kind"] for each in found] == [
        *("segment", "segment", "segment", "connection", "subflow", "decided", "segment"),
        *("segment", "segment", "segment", "subflow", "lifted", "decided"),
        *("segment", "segment", "segment", "closed", "segment", "closed", "summary"),
    ]
    assert found[5] == {
        "time": START + 0.000032,
        "kind": "decided",
        "token": "d1ecc642",
        "remote": "10.77.0.1:48830",
        "local": "10.77.0.2:3128",
        "path": "first",
        "rule": "spare",
        "rate": 5_000_000,
        "ceil": 5_000_000,
        "direction": "down",
        "text": "capped: rule spare caps path first at 5 Mbit/s: 1 subflow active, 2 anticipated",
    }
    assert found[-1]["connections"] == 1
    assert found[-1]["notes"] == []


def test_truncated_headers_are_counted(replay: Run) -> None:
    code, out, err = replay(pcap(BOTH, snap=68))
    assert code == 1, "replay succeeded, although no packet of the capture was read"
    assert "0 connections" in out
    assert "note: 22 packets without a whole TCP header; capture 160 bytes (tcpdump -s 160)" in err


def test_time_of_the_capture_opens_rules_and_expires_handshakes(replay: Run) -> None:
    when = "lift_last: false, when: {min_subflows: 1, hours: ['22:13-22:20']}"
    night = POLICY.replace("throttle: {rate: 5 Mbit/s}}", f"throttle: {{rate: 5 Mbit/s}}, {when}}}")
    handshake = BOTH[:4]
    later: Frame = (START + 4000, "v0", BOTH[11][2])
    _, out, _ = replay(pcap([*handshake, later]), policy=night)
    lines = out.splitlines()
    assert "22:20:00.000000  the hours of rule spare end" in lines
    end_text = "cap of rule spare ended after 400.0 s, 0 B: rule spare does not apply: outside its hours"
    assert f"                 10.77.0.1:48830 {end_text}" in lines
    # The capture does not contain the end of the handshake.
    (ended,) = entries(replay(pcap([BOTH[0], later]), "--json", policy=night)[1])[1:2]
    assert ended["kind"] == "segment", "an expired handshake caused an event"


@pytest.mark.parametrize(("frames_before", "frames_after"), [(1, 11), (11, 0)])
def test_wrong_time_in_a_packet_does_not_slow_down_replay(replay: Run, frames_before: int, frames_after: int) -> None:
    """Defect: before a packet with a time in the year 2100, replay advanced from 2023 to 2100 second by second.

    Before that packet there is a SYN, or an open connection.
    """
    seconds_to_2100 = 77 * 365.25 * 86_400
    frames = [*BOTH[:frames_before], (START + seconds_to_2100, "v0", BOTH[11][2]), *BOTH[:frames_after]]
    _, out, err = replay(pcap(frames), "--interface", "v0")
    assert f"1 connection, 2 subflows and {frames_before + 1 + frames_after} segments" in out
    assert err == ""


def test_mp_prio_changes_a_subflows_path(replay: Run) -> None:
    fin = BOTH[7][2]
    ack = fin[:47] + b"\x10" + fin[48:66] + bytes([30, 3, 0x51, 1]) + bytes([1] * 8)
    _, out, _ = replay(pcap([*BOTH[:7], (START + 0.2, "v0", ack)]))
    assert "10.77.0.1:48830 > ACK: MP_PRIO: backup" in out
    assert "10.77.0.1:48830 is now: initial subflow, backup" in out


def test_version_0_is_reported_and_not_tracked(replay: Run) -> None:
    syn = BOTH[0][2]
    version_0_syn = syn[:-2] + b"\x00\x81"
    code, out, err = replay(pcap([(START, "v0", version_0_syn)]))
    explanation = "requests MPTCP version 0 (RFC 6824), to which Linux replies in plain TCP: not tracked"
    assert f"10.77.0.1:48830 > SYN: MP_CAPABLE version 0, with checksums: {explanation}" in out
    assert code == 0
    assert "note: 1 SYN for MPTCP version 0 (RFC 6824), which is not tracked" in err


KEYS = "1112131415161718", "2122232425262728"
VERSION_0 = [
    (True, 0x02, f"1e0c 0081 {KEYS[0]}", "SYN: MP_CAPABLE version 0, with checksums"),
    (False, 0x12, f"1e0c 0081 {KEYS[1]}", "SYN ACK: MP_CAPABLE version 0, with checksums"),
    (True, 0x10, f"1e14 0081 {KEYS[0]} {KEYS[1]}", "ACK: MP_CAPABLE version 0, with checksums"),
    (True, 0x18, "1e14 2005 00000005 00000007 00000001 0004 beef", ""),
    (
        False,
        0x10,
        "1e08 3403 c0000201",
        "ACK: invalid MPTCP option of subtype 3: length 8 is invalid for this subtype",
    ),
    (True, 0x02, "1e0c 1007 01020304 a1a2a3a4", "SYN: MP_JOIN to connection 01020304, address id 7"),
]
"""Whether the client sends, TCP flags, option (RFC 6824), and its description, which is empty for data."""


def version_0_frame(number: int) -> Frame:
    """Return a frame of VERSION_0. Its sequence numbers do not change, because replay does not follow them."""
    from_client, flags, option, _ = VERSION_0[number]
    options = bytes.fromhex(option)
    options += b"\x01" * (-len(options) % 4)
    ends = (bytes([10, 77, 0, 1]), 48_830), (bytes([10, 77, 0, 2]), 3128)
    (source, port), (target, other_port) = ends if from_client else ends[::-1]
    length_and_flags = (20 + len(options)) // 4 << 12 | flags
    tcp = (
        struct.pack("!HHIIHHHH", port, other_port, 1000, 2000 if flags & 0x10 else 0, length_and_flags, 65535, 0, 0)
        + options
    )
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0) + source + target
    ethernet = BOTH[0][2][:14] if from_client else BOTH[0][2][6:12] + BOTH[0][2][:6] + b"\x08\x00"
    return START + number / 1000, "v0", ethernet + ip + tcp


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_version_0_dialogue_is_described_without_keys(replay: Run, form: tuple[str]) -> None:
    code, out, err = replay(pcap([version_0_frame(number) for number in range(len(VERSION_0))]), *form)
    assert code == 0
    for key in KEYS:
        assert key not in out
        assert str(int(key, 16)) not in out
    assert "1 SYN for MPTCP version 0 (RFC 6824), which is not tracked" in out + err
    assert "not read" not in out + err
    if form:
        found = entries(out)
        segments = [(each["from"] == "client", each["text"]) for each in found if each["kind"] == "segment"]
        other_kinds = [each["kind"] for each in found if each["kind"] != "segment"]
        assert other_kinds == ["summary"], "there are events of connections, subflows or caps"
        assert (found[-1]["connections"], found[-1]["segments"]) == (0, len(VERSION_0))
    else:
        lines = [line.partition("10.77.0.1:48830 ")[2] for line in out.splitlines() if line.startswith("22:")]
        segments = [(line[0] == ">", line[2:]) for line in lines]
        assert f"0 connections, 0 subflows and {len(VERSION_0)} segments" in out
    expected = [(from_client, text) for from_client, _, _, text in VERSION_0 if text]
    assert [(direction, str(text).partition(": requests MPTCP")[0]) for direction, text in segments] == expected


def test_connections_from_before_the_capture_are_reported(replay: Run) -> None:
    _, out, err = replay(pcap(BOTH[4:11]))
    assert "0 connections, 0 subflows" in out
    assert "1 join whose HMAC could not be checked: keys are missing" in err
    assert "note: 1 subflow began before the capture" in err


def test_capture_from_the_clients_side_is_read(replay: Run) -> None:
    def cooked_at_the_client(frame: bytes) -> bytes:
        data = cooked_capture_frame(frame)
        return (b"\x00\x04" if data[:2] == b"\x00\x00" else b"\x00\x00") + data[2:]

    capture = pcap(BOTH, COOKED, cooked_at_the_client)
    _, out, err = replay(capture)
    assert "0 connections" in out
    assert "note: 22 segments ignored" in err
    assert replay(capture, "--elsewhere")[1] == replay(pcap(BOTH))[1]


def test_missing_segments_of_the_given_ports_are_reported(replay: Run) -> None:
    assert "no segment to or from port 8080 or 8081" in replay(pcap(BOTH), "--port", "8080", "--port", "8081")[2]


@pytest.mark.parametrize(
    ("capture", "code", "message"),
    [
        (b"", 1, "mptcp-throttler: /capture: not a pcap or pcapng file: "),
        (b"GIF89a and more, for a header has 24 bytes", 1, "mptcp-throttler: /capture: not a pcap or "),
        (pcap(BOTH)[:11], 1, "mptcp-throttler: /capture: not a pcap or pcapng file: "),
        (pcapng(BOTH)[:11], 1, "mptcp-throttler: /capture: not a pcap or pcapng file: "),
        (b"\x1f\x8bnothing", 1, "mptcp-throttler: /capture: "),
        (pcap(BOTH)[:-3], 0, "note: /capture: ends in the middle of a packet\n"),
        (pcapng(BOTH)[:-3], 0, "note: /capture: PcapNg: "),
        (gzip.compress(pcap(BOTH))[:-9], 0, "note: /capture: "),
        (pcapng(BOTH)[:-70] + b"\xff" * 70, 0, "note: /capture: "),
        (
            pcap(BOTH, 127),
            1,
            "note: 22 packets of link type 127 not read; supported are Ethernet (1), Linux cooked (113, 276)",
        ),
    ],
    ids=[
        "empty",
        "GIF",
        "pcap cut in its header",
        "pcapng cut in its header",
        "damaged gzip",
        "pcap cut in a packet",
        "pcapng cut in a packet",
        "gzip cut",
        "pcapng overwritten at its end",
        "unknown link type",
    ],
)
def test_damaged_capture_is_reported_in_one_line(replay: Run, capture: bytes, code: int, message: str) -> None:
    exit_code, _, err = replay(capture, "--interface", "v1")
    assert exit_code == code
    assert err.startswith(message)
    assert all(line.startswith(("note: ", "mptcp-throttler: ")) for line in err.splitlines())


def test_replay_reads_standard_input(
    replay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = replay(pcap(BOTH))[1]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(pcap(BOTH)))))
    code = main(["replay", "-", "--policy", str(tmp_path / "policy.yaml")])
    assert code == 0
    assert "2 connections" in expected
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--interface", "10.0.0.0/33=eth0"],
            "--interface: '10.0.0.0/33' does not appear to be an IPv4 or IPv6 network",
        ),
        (["--config", "/nowhere"], "/nowhere: cannot be read: No such file or directory"),
    ],
    ids=["invalid prefix", "missing settings file"],
)
def test_wrong_options_are_reported(replay: Run, arguments: list[str], message: str) -> None:
    code, out, err = replay(pcap(BOTH), *arguments)
    assert code == 1
    assert out == ""
    assert err.startswith(message)


def test_settings_give_ports_interface_and_policy(
    tmp_path: Path, replay: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(pcap(BOTH))[0] == 0
    configuration = tmp_path / "throttler.yaml"
    configuration.write_text("interfaces: [v1]\npolicy: policy.yaml\nlisten_ports: [3128]\n")
    assert main(["replay", str(tmp_path / "capture"), "--config", str(configuration)]) == 0
    assert "leaves through v1" in capsys.readouterr().out
    configuration.write_text("interfaces: [v1]\npolicy: policy.yaml\nlisten_ports: [3129]\n")
    assert main(["replay", str(tmp_path / "capture"), "--config", str(configuration)]) == 0
    assert "no segment to or from port 3129" in capsys.readouterr().err


@st.composite
def damaged_captures(draw: st.DrawFn) -> bytes:
    """Draw a capture with some changed bytes, which may also end early."""
    data = bytearray(draw(st.sampled_from(list(CAPTURES.values()))))
    for _ in range(draw(st.integers(1, 30))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged_captures() | st.binary(max_size=300), st.booleans())
def test_any_file_yields_readable_lines(replay: Run, capture: bytes, as_json: bool) -> None:
    code, out, err = replay(capture, *(["--json"] if as_json else []))
    assert code in (0, 1)
    assert all(line.startswith(("note: ", "mptcp-throttler: ")) for line in err.splitlines()), err
    assert out.isprintable() or all(line.isprintable() for line in out.splitlines())
    if as_json:
        assert all(isinstance(each["kind"], str) for each in entries(out))


@pytest.mark.parametrize("name", ["cooked-v2", "ethernet"])
def test_capture_from_the_testbed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The capture was recorded by test_terminal_live.py on the testbed's proxy.

    The command was ``tcpdump -s 160``, on all interfaces or on wan0.
    """
    throttler = Path(__file__).parents[1]
    policy = throttler.parents[1] / "conf/policy.yaml"
    assert main(["replay", str(throttler / f"captures/{name}.pcap"), "--policy", str(policy)]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[-1] == "rule spare-ethernet: 1 cap, 0.2 s and 30.0 KB in all"
    assert output.err == ""
    if name == "ethernet":
        assert output.out == (throttler / "golden/replay-ethernet.txt").read_text()
