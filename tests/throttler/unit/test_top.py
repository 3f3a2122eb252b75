# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``top`` without a terminal: its rows and columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from answering_socket import answering
from hypothesis import given
from hypothesis import strategies as st
from status_answers import answer_pages_of, capped, connection, page, subflow

from mptcp_throttler.cli import main
from mptcp_throttler.cli.top import amount, duration, milliseconds, percent, table


def lines_of(answer: dict[str, Any], width: int = 80) -> list[str]:
    return [line.plain for line in table(answer, width)]


def test_table_of_eighty_columns_shows_values_and_reasons() -> None:
    assert lines_of(page(connection(), total=12)) == [
        " client, subflow       path        age  down    up  shr   rtt loss   cap state",
        "10.77.1.2  4f037d87  2 subflows  33.4M down  102k up  16.6MB  1m",
        " 10.77.1.2:40000       ethernet     1m    5M   51k  15%    42 0.1%    5M held",
        "    rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active",
        " 10.77.2.2:40001       wifi         1m 28.4M   51k  85%    42 0.1%     - -",
        "12 connections, 1 shown",
    ]


def test_wide_terminal_shows_bytes_class_and_reason() -> None:
    lines = lines_of(page(connection()), width=200)
    assert lines[0].split()[-3:] == ["bytes", "class", "reason"]
    assert " ethernet " in lines[2]
    assert lines[2].endswith("14M 4d50:10   rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active")
    assert len(lines) == 5, "the reason is not in the subflow's line"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"landing": True, "classid": None}, "coming"),
        ({"landing": True}, "coming"),
        ({}, "held"),
        ({"classid": None}, "wanted"),
        ({"rate": None, "ceil": None}, "lifting"),
        ({"rate": None, "ceil": None, "classid": None}, "-"),
        ({"rate": None, "ceil": None, "classid": None, "backup": True}, "backup"),
    ],
    ids=[
        "in a transition, no class",
        "in a transition, with a class",
        "in force",
        "no class yet",
        "lifted, still in its class",
        "uncapped",
        "backup",
    ],
)
def test_state_of_a_cap_is_shown(changes: dict[str, Any], state: str) -> None:
    line = lines_of(page(connection(0, capped("10.0.0.1:1", **changes))))[2]
    assert line.split()[-1] == state


def test_upload_cap_has_its_own_line() -> None:
    upload = {"rule": "up", "rate": 1_000_000, "ceil": 2_000_000, "classid": "4d50:11", "landing": False}
    upload["reason"] = "upload: rule up …"
    lines = lines_of(page(connection(0, capped("10.0.0.1:1", upload=upload))))
    assert lines[4].split() == ["upload", "2M", "held"]
    assert lines[5] == "    upload: rule up …"
    lines = lines_of(page(connection(0, capped("10.0.0.1:1", upload=upload | {"landing": True}))))
    assert lines[4].split() == ["upload", "2M", "coming"], (
        "wrong state, because the upload's class does not have its rate yet"
    )
    assert lines[2].split()[-1] == "held", "the download's cap has the state of the upload's"


def test_unknown_values_are_shown_as_dashes() -> None:
    unknown = dict.fromkeys(("bytes_sent", "bytes_received", "rtt", "retransmits", "segments_out", "share", "path"))
    unknown |= dict.fromkeys(("rate_sent", "rate_received", "interface"))
    line = lines_of(page(connection(0, subflow("10.0.0.1:1", **unknown))))[2]
    assert line.split() == ["10.0.0.1:1", "-", "1m", "-", "-", "-", "-", "-", "-", "-"]


@given(st.integers(1, 250), st.integers(0, 40))
def test_lines_fit_any_terminal_width(width: int, count: int) -> None:
    answer = answer_pages_of(count)({"offset": 0, "limit": 40})
    assert all(len(line) <= max(width, 30) for line in lines_of(answer, width))


@given(st.floats(0, 1e13))
def test_numbers_fit_their_columns(value: float) -> None:
    assert len(amount(value)) <= 5 or value >= 1e13
    assert len(duration(value)) <= 4
    assert len(milliseconds(value)) <= 5
    assert len(percent(min(value, 1))) <= 4


def test_long_ipv6_addresses_keep_their_port() -> None:
    long_address = "[2001:db8:1111:2222:3333:4444:5555:6666]:40000"
    line = lines_of(page(connection(0, subflow(long_address))))[2]
    assert ":40000 " in line
    assert "…" in line
    assert long_address in lines_of(page(connection(0, subflow(long_address))), width=140)[2]


def test_once_prints_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["top", "--once", "--socket", str(tmp_path / "s"), "--rule", "spare-ethernet", "--limit", "7"]
    with answering(tmp_path / "s", lambda request: page(connection(), total=12)) as requests:
        assert main(arguments) == 0
    assert [each for _, each in requests] == [
        {"query": "connections", "sort": "rate", "limit": 7, "rule": "spare-ethernet"}
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "    rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active"
    assert lines[-1] == "12 connections, 1 shown"


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (
            ["top", "--once", "--rule", "nosuch"],
            "note: the policy in force has no rule nosuch; its rules: night, spare\n",
        ),
        (["top", "--once", "--path", "lte"], "note: the policy in force has no path lte; its paths: ethernet\n"),
        (["top", "--once", "--rule", "night", "--path", "ethernet"], ""),
        (["top", "--once"], ""),
        (["events", "--rule", "nosuch"], "note: the policy in force has no rule nosuch; its rules: night, spare\n"),
        (["events", "--rule", "night"], ""),
    ],
    ids=[
        "top, unknown rule",
        "top, unknown path",
        "top, known names",
        "top, no names",
        "events, unknown rule",
        "events, known rule",
    ],
)
def test_unknown_name_is_reported_if_the_answer_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], note: str
) -> None:
    """Defect: with a mistyped rule name, the output was that of a rule that caps no subflow."""
    policy = {"rules": ["night", "spare"], "paths_in_words": [{"path": "ethernet", "conditions": []}]}
    answers = {
        "connections": page(total=0),
        "events": {"schema": 2, "pid": 1, "last": 0, "first": 0, "events": []},
        "summary": {"schema": 2, "policy": policy},
    }
    with answering(tmp_path / "s", lambda request: answers[request["query"]]):
        assert main([*arguments, "--socket", str(tmp_path / "s")]) == 0
    assert capsys.readouterr().err == note


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"schema": 2, "error": '"client": "x" is not an address'}, '"client": "x" is not an address'),
        ({"version": "0", "connections": []}, "the daemon is older than this command"),
    ],
    ids=["error", "answer of an older daemon"],
)
def test_refused_query_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: dict[str, Any], message: str
) -> None:
    with answering(tmp_path / "s", lambda request: answer):
        assert main(["top", "--once", "--socket", str(tmp_path / "s")]) == 1
    assert capsys.readouterr().err.startswith(f"mptcp-throttler: {message}")
    assert main(["top", "--once", "--socket", str(tmp_path / "s")]) == 1
    assert "is it running?" in capsys.readouterr().err


def test_top_without_a_terminal_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--socket", str(tmp_path / "s")]) == 1
    assert capsys.readouterr().err == "mptcp-throttler: top needs a terminal; --once prints one table\n"
