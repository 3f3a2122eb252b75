# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the relay detects from the kernel's counters that the kernel has given up Multipath TCP, and reports this
once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_proxy import parents
from mptcp_proxy.given_up import GivenUpCounts, Watch, current_counts, read_given_up_counts
from mptcp_proxy.places import Places

NETSTAT = (
    "TcpExt: SyncookiesSent TW\nTcpExt: 7 9\n"
    "MPTcpExt: MPCapableSYNTX MPCapableSYNTXDisabled Blackhole\nMPTcpExt: 5 30 2\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NETSTAT, GivenUpCounts(2, 30)),
        ("TcpExt: A\nTcpExt: 1\n", GivenUpCounts()),
        ("MPTcpExt: MPCapableSYNTX\nMPTcpExt: 5\n", GivenUpCounts()),
        ("", GivenUpCounts()),
    ],
)
def test_counters_are_read(text: str, expected: GivenUpCounts) -> None:
    assert read_given_up_counts(text) == expected


@given(st.text(alphabet="MPTcpExt: Blackhole\n", max_size=99))
def test_malformed_counters_count_as_zero(text: str) -> None:
    assert read_given_up_counts(text) == GivenUpCounts()


def test_counters_of_this_kernel_are_read() -> None:
    assert current_counts().times >= 0


def test_black_hole_is_active_while_the_counter_grows() -> None:
    counts = [GivenUpCounts(1, 5), GivenUpCounts(1, 5), GivenUpCounts(1, 6), GivenUpCounts(1, 6)]
    watch = Watch(lambda: counts.pop(0))
    assert [watch.new_counts() for _ in range(3)] == [None, GivenUpCounts(1, 6), None]


def test_relay_reports_each_black_hole_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Places, "runtime", property(lambda self: tmp_path))
    monkeypatch.setattr(parents, "_LOOK_UP_INTERVAL", 0.001)
    counts = [
        GivenUpCounts(),
        GivenUpCounts(1, 1),
        GivenUpCounts(1, 2),
        GivenUpCounts(1, 2),
        GivenUpCounts(1, 9),
        GivenUpCounts(2, 12),
        GivenUpCounts(2, 12),
    ]
    reads = 0

    def read() -> GivenUpCounts:
        nonlocal reads
        reads += 1
        return counts[min(reads, len(counts)) - 1]

    parents.ParentsFile(Places("mptcprelay"), read_counts=read).start([])
    deadline = time.monotonic() + 60
    while reads <= len(counts):  # the last count has been handled
        assert time.monotonic() < deadline
        time.sleep(0.001)
    messages = [line for line in capsys.readouterr().err.splitlines() if "given up" in line]
    assert len(messages) == 2
    assert "MPTcpExtBlackhole 1" in messages[0]
    assert "MPTcpExtBlackhole 2" in messages[1]
    assert "sysctl -w net.mptcp.blackhole_timeout=0" in messages[0]
