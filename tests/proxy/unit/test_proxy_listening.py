# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the list of listening ports and their processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mptcp_proxy.listening import (
    ListeningSocket,
    conflicting_socket,
    identities,
    listening_now,
    listening_or_none,
    read_listening,
)

SS_OUTPUT = """\
LISTEN 0      4096               *:3128            *:*    users:(("squid",pid=5745,fd=23),("squid",pid=5743,fd=13))
\t bbr cwnd:10 tcp-ulp-mptcp
LISTEN 0      128        127.0.0.1:631       0.0.0.0:*
LISTEN 0      511    10.0.0.1%eth0:80        0.0.0.0:*    users:(("apache2",pid=9,fd=3))
\t cubic cwnd:10
LISTEN 0      128            [::1]:631          [::]:*
ESTAB  0      0          10.0.0.1:22        10.0.0.2:999
"""


SS_OUTPUT_WITH_INODES = """\
LISTEN 0      4096               *:3128            *:*    uid:13 ino:501 sk:1001 cgroup:/ v6only:0 <->
LISTEN 0      4096               *:3128            *:*    uid:13 ino:502 sk:a cgroup:/ v6only:0 <->
LISTEN 0      128        127.0.0.1:631       0.0.0.0:*    ino:9 sk:7 cgroup:/ <->
"""


def test_sockets_are_distinguished_without_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run_ss(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, SS_OUTPUT_WITH_INODES, "")

    monkeypatch.setattr(subprocess, "run", run_ss)
    assert identities({3128}) == ("*:3128 ino:501 sk:1001", "*:3128 ino:502 sk:a")
    assert identities({80}) == ()
    # The option "p" must be missing, because with it ss reads each descriptor of each process.
    assert {tuple(command) for command in commands} == {("ss", "-HOltne")}


def test_process_with_an_undecodable_name_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: because of any listening process with the byte 0xff in its name, supervisor and Squid ended."""
    ss = tmp_path / "ss"
    ss.write_bytes(
        b"#!/bin/sh\ncat <<'END'\n" + SS_OUTPUT.replace("apache2", "@").encode().replace(b"@", b"\xff") + b"END\n"
    )
    ss.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [(each.port, each.program) for each in listening_now()] == [
        (3128, "squid"),
        (631, ""),
        (80, "\ufffd"),
        (631, ""),
    ]
    assert identities({80}) == ("10.0.0.1%eth0:80",)


@pytest.mark.parametrize("failure", ["missing program", "timeout", "exit status 1"])
def test_listeners_are_unknown_if_ss_fails(monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    """Defect: the supervisor ended if ss took too long, and concluded from a failing ss that no process listens."""

    def run_ss(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if failure == "missing program":
            raise FileNotFoundError
        if failure == "timeout":
            raise subprocess.TimeoutExpired(command, 30)
        return subprocess.CompletedProcess(command, 1, "", "Cannot open netlink socket")

    monkeypatch.setattr(subprocess, "run", run_ss)
    assert listening_now() == ()
    assert listening_or_none() is None
    assert identities({3128}) is None


def test_output_of_ss_is_read() -> None:
    assert list(read_listening(SS_OUTPUT)) == [
        ListeningSocket("*", 3128, "squid", (5745, 5743), mptcp=True),
        ListeningSocket("127.0.0.1", 631, "", ()),
        ListeningSocket("10.0.0.1%eth0", 80, "apache2", (9,)),
        ListeningSocket("[::1]", 631, "", ()),
    ]


@pytest.mark.parametrize(
    ("host", "port", "taken"),
    [("", 3128, True), ("10.0.0.1", 3128, True), ("", 631, True), ("127.0.0.1", 631, True), ("127.0.0.2", 631, False),
     ("[::1]", 631, True), ("[::2]", 631, False), ("", 3129, False), ("10.0.0.1", 80, True), ("10.0.0.2", 80, False)],
)  # fmt: skip
def test_port_counts_as_taken_if_its_address_overlaps(host: str, port: int, taken: bool) -> None:
    assert (conflicting_socket(host, port, read_listening(SS_OUTPUT)) is not None) == taken


@pytest.mark.parametrize(
    ("bound", "host", "taken"),
    [
        # ss prints 0.0.0.0 for IPv4 only, [::] for IPv6 only, and * for both.
        ("0.0.0.0", "10.0.0.1", True),
        ("0.0.0.0", "[fd00::1]", False),
        ("0.0.0.0", "", True),
        # Squid's [::], in any notation, also serves IPv4.
        ("0.0.0.0", "[0::0]", True),
        ("[::]", "[fd00::1]", True),
        ("[::]", "10.0.0.1", False),
        ("[::]", "0.0.0.0", False),
        ("[::]", "", True),
        ("*", "10.0.0.1", True),
        ("*", "[fd00::1]", True),
        ("10.0.0.1", "0.0.0.0", True),
        ("[fd00::1]", "0.0.0.0", False),
        ("10.0.0.1", "[::]", True),
        ("[fd00:0::1]", "[fd00::1]", True),
        ("[::ffff:10.0.0.1]", "10.0.0.1", True),
        ("0.0.0.0", "proxy.example", True),
        ("10.0.0.1", "proxy.example", False),
    ],
)
def test_socket_takes_only_the_address_families_that_it_serves(bound: str, host: str, taken: bool) -> None:
    assert (conflicting_socket(host, 3128, [ListeningSocket(bound, 3128, "other", (1,))]) is not None) == taken
