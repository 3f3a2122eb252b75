# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the count of connections to parents by protocol and subflows, from the output of ss."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mptcp_proxy.connection_counts import ConnectionCounts, count_subflows, count_subflows_now, counts_now, read_counts

TARGETS = ("10.77.8.2:3128", "[fd77:8::2]:3128")
SQUID = ' users:(("squid",pid=25078,fd=12))'
INITIAL = "tcp-ulp-mptcp flags:Mmec token:0000(id:0)/ffb60628(id:0) seq:24c44fae8ec8fdc3 sfseq:7a2423 maplen:81e"
JOINED = "tcp-ulp-mptcp flags:Jjec token:7c95cfd4(id:0)/ffb60628(id:4) seq:24c44fae8ec7fdc3 sfseq:3ce011 maplen:1000"
FALLBACK = "tcp-ulp-mptcp flags:mf token:0000(id:0)/0(id:0)"


def socket_line(
    remote: str = TARGETS[0], mptcp_info: str = "", users: str = SQUID, local: str = "10.77.1.2:58012"
) -> str:
    return f"0      0      {local}      {remote} {users}\n\t cubic wscale:10,10 rto:204 {mptcp_info}   "


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], ConnectionCounts()),
        (
            [socket_line(mptcp_info=INITIAL), socket_line(mptcp_info=JOINED, local="10.77.2.2%wlan0:48535", users="")],
            ConnectionCounts(multiple_subflows=1),
        ),
        ([socket_line(mptcp_info=INITIAL)], ConnectionCounts(single_subflow=1)),
        (
            [socket_line(mptcp_info=INITIAL), socket_line(mptcp_info=INITIAL.replace("ffb60628", "1"))],
            ConnectionCounts(single_subflow=2),
        ),
        ([socket_line()], ConnectionCounts(plain_tcp=1)),
        ([socket_line(mptcp_info=FALLBACK)], ConnectionCounts(plain_tcp=1)),
        ([socket_line(users=' users:(("curl",pid=7,fd=3))')], ConnectionCounts()),
        ([socket_line(users="")], ConnectionCounts(plain_tcp=1)),
        ([socket_line(remote="10.77.8.2:80"), socket_line(remote="10.77.8.20:3128")], ConnectionCounts()),
        ([socket_line(remote="[::ffff:10.77.8.2]:3128")], ConnectionCounts(plain_tcp=1)),
        ([socket_line(remote="[fd77:8::2]:3128", mptcp_info=INITIAL)], ConnectionCounts(single_subflow=1)),
        (
            [
                socket_line(remote="[fd77:8::2%eth0]:3128"),
                socket_line(mptcp_info=INITIAL),
                socket_line(mptcp_info=JOINED),
            ],
            ConnectionCounts(multiple_subflows=1, plain_tcp=1),
        ),
    ],
)
def test_connections_are_counted_by_protocol_and_subflows(lines: list[str], expected: ConnectionCounts) -> None:
    assert read_counts("\n".join(lines) + "\n", TARGETS, "squid") == expected


def test_subflows_are_counted_for_one_connection() -> None:
    others = [
        socket_line(mptcp_info=INITIAL.replace("ffb60628", "1")),
        socket_line(remote="10.77.8.2:80", mptcp_info=JOINED),
        socket_line(),
    ]
    printed = "\n".join([*others, socket_line(mptcp_info=INITIAL), socket_line(mptcp_info=JOINED, users="")])
    assert count_subflows(printed, TARGETS[0], 0xFFB60628) == 2
    assert count_subflows(printed, TARGETS[0], 1) == 1
    assert count_subflows(printed, TARGETS[1], 0xFFB60628) == 0


@pytest.mark.parametrize("name", [b"\xff", b"f\xc3"])
def test_process_with_an_undecodable_name_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    """Defect: because of a process name that is not UTF-8, for example because it was truncated, the doctor printed
    nothing."""
    other = socket_line(remote="192.0.2.7:443", users=' users:(("NAME",pid=9,fd=3))')
    printed = f"{other}\n{socket_line(mptcp_info=INITIAL)}\n".encode().replace(b"NAME", name)
    ss = tmp_path / "ss"
    ss.write_bytes(b"#!/bin/sh\ncat <<'END'\n" + printed + b"END\n")
    ss.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert counts_now(TARGETS) == ConnectionCounts(single_subflow=1)


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("ss", 30)])
def test_nothing_is_counted_if_ss_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def answer(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", answer)
    assert counts_now(TARGETS) == ConnectionCounts()
    assert count_subflows_now(TARGETS[0], 1) is None
