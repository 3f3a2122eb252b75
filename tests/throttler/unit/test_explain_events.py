# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the commands ``explain`` and ``events``, which print the status socket's answers as text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from answering_socket import answering

from mptcp_common import status_client
from mptcp_throttler.cli import main
from mptcp_throttler.cli.queries import event_lines, explanation

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC).timestamp()
HEAD = {"schema": 2, "time": NOON, "version": "0", "pid": 1}


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use UTC as this host's time zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def explain_answer(**changes: Any) -> dict[str, Any]:
    subflow = {
        "remote": "10.77.1.2:53912",
        "local": "10.77.8.2:3128",
        "path": "ethernet",
        "interface": "wan0",
        "direction": "down",
        "verdict": "capped at 5 Mbit/s",
        "rate": 5_000_000,
        "ceil": 5_000_000,
        "rule": "spare-ethernet",
        "since": NOON - 30,
        "tried": [
            {"rule": "night", "matched": False, "failed": "outside its hours, 22:00-06:00", "until": NOON + 10 * 3600},
            {"rule": "few", "matched": False, "failed": "at most 1 active subflow", "until": None},
            {"rule": "spare-ethernet", "matched": True, "failed": None, "until": NOON + 86_400 + 6 * 3600},
        ],
        "stages": [{"stage": "guard", "what": "cap relaxed: its other path is degraded", "since": NOON - 5}],
        "cap_state": "in force",
        **changes,
    }
    connection = {"token": "4f037d87", "client": "10.77.1.2", "since": NOON - 90_000, "subflows": [subflow]}
    return {**HEAD, "time_zone": "UTC", "connections": [connection]}


def test_explanation_lists_rules_in_order_and_when_they_end() -> None:
    assert list(explanation(explain_answer())) == [
        "connection 4f037d87 from 10.77.1.2, 1 active subflow, since Thu 2026-11-19 11:00:00",
        "  10.77.1.2:53912, path ethernet through wan0, download: "
        "capped at 5 Mbit/s, rule spare-ethernet, since 11:59:30, in force",
        "    rule night: does not match: outside its hours, 22:00-06:00",
        "    rule few: does not match: at most 1 active subflow",
        "    rule spare-ethernet: matches; until Sat 18:00 (UTC)",
        "    then guard: cap relaxed: its other path is degraded, since 11:59:55",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cap_state": "coming"}, "since 11:59:30, coming into force"),
        ({"cap_state": "being lifted", "rate": None, "ceil": None, "verdict": "not capped"}, "being lifted"),
        ({"cap_state": "none"}, "not in the kernel yet"),
        ({"rate": 3_000_000}, "capped at 5 Mbit/s, 3 Mbit/s of it guaranteed, rule"),
        (
            {"verdict": "capped at 5 Mbit/s (dry run)", "cap_state": "none"},
            "5 Mbit/s (dry run), rule spare-ethernet, since 11:59:30",
        ),
        ({"direction": "up"}, "through wan0, upload: capped"),
        ({"path": None, "interface": None}, "10.77.1.2:53912, on no path, download:"),
    ],
)
def test_verdict_is_described(changes: dict[str, Any], words: str) -> None:
    assert words in list(explanation(explain_answer(**changes)))[1]


def test_end_times_are_in_the_policys_zone_and_past_times_in_the_readers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the end of a rule's hours was printed in the host's time zone, without the zone's name.

    Hours in a rule are in the policy's time zone.
    """
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        with answering(tmp_path / "s", lambda request: explain_answer() | {"time_zone": "Europe/Athens"}):
            assert main(["explain", "10.77.1.2", "--socket", str(tmp_path / "s")]) == 0
    finally:
        monkeypatch.undo()
        time.tzset()
    lines = capsys.readouterr().out.splitlines()
    assert "since 06:59:30 EST," in lines[1], "past times are not in the reader's zone"
    assert lines[4] == "    rule spare-ethernet: matches; until Sat 20:00 (Europe/Athens)"


def test_explanation_names_the_kind_of_each_rule() -> None:
    tried = [
        {"rule": "volume", "kind": "budget", "matched": True, "failed": None, "until": None},
        {"rule": "all", "kind": "throttle", "matched": True, "failed": "lifted: the last", "until": NOON + 60},
        {"rule": "spread", "kind": "steer", "matched": False, "failed": "from 2 active subflows on", "until": None},
    ]
    lines = list(explanation({**explain_answer(tried=tried), "total": 3}))
    assert lines[2:5] == [
        "    budget of rule volume: matches",
        "    rule all: matches; lifted: the last; until 12:01 (UTC)",
        "    steering of rule spread: does not match: from 2 active subflows on",
    ]
    assert lines[-1] == "and 2 older connections"


@pytest.mark.parametrize(
    ("argument", "selection"),
    [
        ("10.77.1.2", {"client": "10.77.1.2"}),
        ("fd77::2", {"client": "fd77::2"}),
        ("[fd77::2]", {"client": "fd77::2"}),
        ("4F037D87", {"token": "4F037D87"}),
        ("10.77.1.2:53912", {"endpoint": "10.77.1.2:53912"}),
        ("[fd77::2]:53912", {"endpoint": "[fd77::2]:53912"}),
    ],
)
def test_explain_accepts_a_client_a_token_or_an_endpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str, selection: dict[str, str]
) -> None:
    with answering(tmp_path / "s", lambda request: explain_answer()) as requests:
        assert main(["explain", argument, "--socket", str(tmp_path / "s")]) == 0
        assert main(["explain", argument, "--json", "--socket", str(tmp_path / "s")]) == 0
    assert requests[0][1] == {"query": "explain", **selection}
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "    rule few: does not match: at most 1 active subflow"
    assert json.loads(lines[-1]) == explain_answer()


@pytest.mark.parametrize("argument", ["nobody", "10.77.1", "10.77.1.2:port", "10.77.1.2:70000", "4f037d87f", ""])
def test_explain_rejects_other_arguments(capsys: pytest.CaptureFixture[str], argument: str) -> None:
    assert main(["explain", argument]) == 2
    assert capsys.readouterr().err.startswith(f'mptcp-throttler: "{argument}" is not an address')


def test_explain_reports_that_no_connection_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(tmp_path / "s", lambda request: {**HEAD, "time_zone": "UTC", "connections": []}):
        assert main(["explain", "10.0.0.1", "--socket", str(tmp_path / "s")]) == 1
    assert capsys.readouterr().out.startswith("no such Multipath TCP connection is open; connections of plain")
    with answering(tmp_path / "s", lambda request: {"schema": 2, "error": "one clear line"}):
        assert main(["explain", "10.0.0.1", "--socket", str(tmp_path / "s")]) == 1
    assert capsys.readouterr().err == "mptcp-throttler: one clear line\n"


def event(seq: int, **changes: Any) -> dict[str, Any]:
    none = dict.fromkeys(("client", "remote", "local", "path", "rule", "direction"))
    return {
        "seq": seq,
        "time": NOON + seq / 4,
        "kind": "decided",
        "token": "4f037d87",
        **none,
        "text": "a text",
        **changes,
    }


def test_events_are_printed_as_lines() -> None:
    events_answer = [
        event(1, kind="connection", text="connection opened from 10.77.1.2:53912"),
        event(2, text="10.77.1.2:53912 on path ethernet: capped", rule="spare-ethernet"),
        event(3, kind="reload", token=None, text="policy reloaded"),
        event(400_000, kind="applied", text="cap of rule spare in force", rule="spare"),
    ]
    assert list(event_lines(events_answer)) == [
        "Friday, 2026-11-20",
        "12:00:00.250  connection  4f037d87  connection opened from 10.77.1.2:53912",
        "12:00:00.500  decided     4f037d87  10.77.1.2:53912 on path ethernet: capped (spare-ethernet)",
        "12:00:00.750  reload      -         policy reloaded",
        "Saturday, 2026-11-21",
        "15:46:40.000  applied     4f037d87  cap of rule spare in force",
    ]


class Ring:
    """Fake answers to ``events``, with numbered events as the daemon keeps them."""

    def __init__(self) -> None:
        self.first, self.last = 1, 5
        self.pid = 1

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        after = request.get("after", max(self.first - 1, self.last - request["limit"]))
        numbers = range(max(self.first, after + 1), self.last + 1)
        found = [event(number, text=f"number {number}") for number in numbers][: request["limit"]]
        return {**HEAD, "pid": self.pid, "first": self.first, "last": self.last, "events": found}


def test_events_command_requests_the_latest_events_with_its_filters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["events", "--socket", str(tmp_path / "s"), "--json", "--limit", "3"]
    with answering(tmp_path / "s", Ring()) as requests:
        assert main([*arguments, "--client", "10.0.0.1", "--rule", "x", "--token", "7"]) == 0
    assert requests[0][1] == {"query": "events", "limit": 3, "client": "10.0.0.1", "rule": "x", "token": "7"}
    assert [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()] == [3, 4, 5]


def test_follow_prints_each_event_once_and_reports_gaps(tmp_path: Path) -> None:
    ring = Ring()
    command = [sys.executable, "-m", "mptcp_throttler.cli", "events", "--follow", "--socket", str(tmp_path / "s")]
    with answering(tmp_path / "s", ring) as requests:
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

        def wait_for_requests(count: int) -> None:
            deadline = time.monotonic() + 60
            before = len(requests)
            while len(requests) < before + count:
                assert time.monotonic() < deadline
                time.sleep(0.01)

        wait_for_requests(1)
        ring.last = 7
        wait_for_requests(2)
        ring.first, ring.last = 21, 30
        wait_for_requests(2)
        ring.first, ring.last = 1, 2
        wait_for_requests(3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    numbers = [int(line.rpartition(" ")[2]) for line in out.splitlines()[1:]]
    assert numbers == [*range(1, 8), *range(21, 31), 1, 2]
    assert err.splitlines() == [
        "note: 13 events are missing: the daemon keeps only the latest events",
        "note: the daemon was restarted; its events begin here",
    ]
    times = [request_time for request_time, _ in requests]
    assert len(times) < 15 + (times[-1] - times[0]), "the command sent more than one query per second"


def test_follow_continues_after_a_restart_of_the_daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the command ended with status 1 at the first query without an answer.

    It also did not notice a restart if the new daemon had as many events as the old one.
    """
    ring, queries = Ring(), 0

    def answer_query(path: Path, request: dict[str, Any]) -> dict[str, Any]:
        nonlocal queries
        queries += 1
        if queries in (2, 3, 4):
            raise (FileNotFoundError, PermissionError, ConnectionResetError)[queries - 2]
        if queries == 5:
            ring.pid, ring.last = 2, 8
        if queries == 8:
            raise KeyboardInterrupt
        return ring(request)

    monkeypatch.setattr(status_client, "ask", answer_query)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    path = tmp_path / "s"
    assert main(["events", "--follow", "--socket", str(path)]) == 0
    out, err = capsys.readouterr()
    assert [int(line.rpartition(" ")[2]) for line in out.splitlines()[1:]] == [*range(1, 6), *range(1, 9)]
    assert err.splitlines() == [
        f"note: no daemon answers at {path}; is it running? Waiting for the daemon",
        "note: the daemon was restarted; its events begin here",
    ]


def test_follow_fails_immediately_if_no_daemon_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--follow", "--socket", str(tmp_path / "none")]) == 1
    assert "no daemon answers" in capsys.readouterr().err


def test_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    ring = Ring()
    ring.last = 100_000
    command = f"{sys.executable} -m mptcp_throttler.cli events --limit 9000 --socket {tmp_path / 's'} | head -1"
    with answering(tmp_path / "s", ring):
        completed = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert completed.stdout.count("\n") == 1
    assert completed.stderr == ""
