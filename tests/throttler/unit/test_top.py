"""``top`` without a terminal: rows, columns and keys."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from answering_socket import answering
from hypothesis import given
from hypothesis import strategies as st
from status_answers import NOW, capped, connection, many, page, subflow

from mptcp_throttler.cli import main
from mptcp_throttler.cli.top import _Screen
from mptcp_throttler.views import compact
from mptcp_throttler.views.top import DOWN, END, HOME, PAGE_DOWN, UP, Page, View, keys, press, request
from mptcp_throttler.views.top_rows import body, rates_between
from mptcp_throttler.views.top_screen import screen, table


def shown(answer: dict[str, Any], width: int = 80, height: int = 24, **view: Any) -> list[str]:
    rates = rates_between(None, answer)
    return [line.text for line in screen(View(**view), Page(answer, 0), rates, None, width, height)]


def test_eighty_columns_hold_what_changes() -> None:
    lines = shown(page(connection()))
    assert lines[1:5] == [
        " client, subflow       path        age  down    up  shr   rtt loss   cap state",
        "10.77.1.2  4f037d87  2 subflows  33.4M down  102k up  16.6MB  1m".ljust(80),
        " 10.77.1.2:40000       ethernet     1m    5M   51k  15%    42 0.1%    5M held",
        " 10.77.2.2:40001       wifi         1m 28.4M   51k  85%    42 0.1%     - -",
    ]
    assert lines[-1].startswith("q quit  s sort  w why  c client")
    assert len(lines) == 24


def test_the_chosen_row_tells_what_has_no_column() -> None:
    detail = " ".join(shown(page(connection()), cursor=1)[-4:-1])
    assert "cap 5 Mbit/s, 2.5 Mbit/s of it guaranteed  class 4d50:10  14MB down, 20kB up  wan0" in detail
    assert "rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active" in detail


def test_a_wide_terminal_has_bytes_class_and_reason() -> None:
    lines = shown(page(connection()), width=200)
    assert lines[1].split()[-3:] == ["bytes", "class", "reason"]
    assert " ethernet " in lines[3]
    assert lines[3].endswith("14M 4d50:10   rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active")


def test_a_key_shows_why_in_eighty_columns() -> None:
    """Defect: 80 columns had bytes, class and reason of the chosen row alone."""
    upload = {"rule": "up", "rate": 1_000_000, "ceil": 2_000_000, "classid": "4d50:11", "reason": "upload: rule up …"}
    answer = page(connection(0, capped("10.77.1.2:40000", upload=upload), subflow("10.77.2.2:40001")))
    assert shown(answer)[-1].startswith("q quit  s sort  w why  ")
    view = press(View(), "w", Page(answer, 0), 10)
    assert view is not None
    lines = shown(answer, why=view.why)
    assert [lines[1], *lines[3:6]] == [
        " client, subflow       path        bytes class     reason",
        " 10.77.1.2:40000       ethernet      14M 4d50:10   rule spare-ethernet caps pat…",
        "   upload                                4d50:11   upload: rule up …",
        " 10.77.2.2:40001       wifi          14M -         no rule matches",
    ]
    assert lines[-1].startswith("q quit  s sort  w rates  ")
    assert press(view, "w", Page(answer, 0), 10) == View()


def test_why_has_room_for_the_reason_before_that_for_addresses() -> None:
    long = "[2001:db8:1111:2222:3333:4444:5555:6666]:40000"
    answer = page(connection(0, capped(long)))
    line = shown(answer, width=120, why=True)[3]
    assert line.endswith(" rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active")
    assert ":40000 " in line
    assert long in shown(answer, width=160, why=True)[3]


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
        ({"state": "closing"}, "closing"),
    ],
)
def test_the_state_of_a_cap_is_told(changes: dict[str, Any], state: str) -> None:
    line = shown(page(connection(0, capped("10.0.0.1:1", **changes))))[3]
    assert line.split()[-1] == state


def test_a_cap_on_the_upload_has_a_line_of_its_own() -> None:
    upload = {"rule": "up", "rate": 1_000_000, "ceil": 2_000_000, "classid": "4d50:11", "reason": "upload: rule up …"}
    lines = shown(page(connection(0, capped("10.0.0.1:1", upload=upload))))
    assert lines[4].split() == ["upload", "2M", "held"]
    lines = shown(page(connection(0, capped("10.0.0.1:1", upload=upload | {"landing": True}))))
    assert lines[4].split() == ["upload", "2M", "coming"], "its class still falls"
    assert lines[3].split()[-1] == "held", "the download's is its own"


def test_what_nobody_knows_is_a_dash() -> None:
    unknown = dict.fromkeys(("bytes_sent", "bytes_received", "rtt", "retransmits", "segments_out", "share", "path"))
    unknown |= dict.fromkeys(("rate_sent", "rate_received", "interface"))
    line = shown(page(connection(0, subflow("10.0.0.1:1", **unknown))))[3]
    assert line.split() == ["10.0.0.1:1", "-", "1m", "-", "-", "-", "-", "-", "-", "-"]


def test_rates_that_the_daemon_does_not_know_are_differences() -> None:
    def at(seconds: float, sent: int) -> dict[str, Any]:
        flow = subflow("10.0.0.1:1", bytes_sent=sent, rate_sent=None, rate_received=None)
        return page(connection(0, flow), at=NOW + seconds)

    key = ("4f037d87", "10.0.0.1:1")
    assert rates_between(None, at(0, 0))[key] == (None, None)
    assert rates_between(at(0, 1_000_000), at(2, 2_000_000))[key] == (4_000_000.0, 0.0)
    assert rates_between(at(0, 1_000_000), at(0, 2_000_000))[key] == (None, None), "no time has passed"
    assert rates_between(at(0, 1_000_000), at(1, 5))[key][0] == 0.0, "another socket of that name"


def test_scrolling_goes_through_all_connections_and_no_further() -> None:
    answer, view, rows = many(90), View(), 17
    seen: list[str] = []
    for _ in range(300):
        found = Page(answer(request(view, rows)), request(view, rows)["offset"])
        lines = body(found.from_first(view), {}, NOW, 80)[:rows]
        row = lines[view.cursor][1]
        if row is not None and (not seen or seen[-1] != row.subflow["remote"]):
            seen.append(row.subflow["remote"])
        view = press(view, DOWN, found, rows) or view
    assert len(seen) == 180
    assert view.first < 90
    for key, first in ((HOME, 0), (END, 89), (UP, 88), (PAGE_DOWN, 89)):
        found = Page(answer(request(view, rows)), request(view, rows)["offset"])
        view = press(replace(view, cursor=0), key, found, rows) or view
        assert view.first == first


@pytest.mark.parametrize(
    ("there", "asked_for", "first"), [(300, [233], 250), (240, [233], 239), (2, [233, 0], 1), (0, [233], 0)]
)
def test_what_is_shown_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int, asked_for: list[int], first: int
) -> None:
    """Where the answer has none of them, it is asked again at once."""
    with answering(tmp_path / "s", many(there)) as asked:
        terminal = _Screen(tmp_path / "s", View(first=250, cursor=1))
        monkeypatch.setattr(terminal, "_console", SimpleNamespace(height=23))
        monkeypatch.setattr(terminal, "_draw", lambda: None)
        asyncio.run(terminal._ask())
    assert [each["offset"] for _, each in asked] == asked_for
    assert terminal._view == View(first=first, cursor=1 if first == 250 else 0)
    assert terminal._page is not None
    assert bool(terminal._page.from_first(terminal._view)) == (there > 0)


def test_a_screen_asks_for_little_however_many_there_are() -> None:
    for rows in (1, 20, 1000):
        assert request(View(first=5000), rows)["limit"] <= 200


def test_keys_choose() -> None:
    found = Page(page(connection()), 0)

    def after(typed: str, view: View | None = None) -> View | None:
        view = view or View(first=3)
        for key in keys(typed):
            pressed = press(view, key, found, 10)
            if pressed is None:
                return None
            view = pressed
        return view

    assert after("q") is None
    assert after("s") == View(sort="bytes")
    assert after("ssss") == View(sort="rate")
    assert after(" ") == View(first=3, paused=True)
    assert after("w") == View(first=3, why=True), "what is seen stays where it is"
    assert after("c10.77.1.2\r") == View(client="10.77.1.2")
    assert after("pwifx\x7fi\r") == View(path="wifi")
    assert after("rspare q\r") == View(rule="spare q"), "no letter is a command while a name is written"
    assert after("p\x7f\x7f\x7f\x7f\r", View(path="wifi")) == View()
    assert after("rabc\x1b", View(rule="x")) == View(rule="x")
    assert after("x", View(client="a", path="b", rule="c", sort="age")) == View(sort="age")
    assert request(View(client="10.77.1.2", sort="age"), 20) == {
        "query": "connections",
        "sort": "age",
        "limit": 60,
        "offset": 0,
        "client": "10.77.1.2",
    }


def test_escape_sequences_are_keys_or_nothing() -> None:
    typed = "\x1b[A\x1bOB\x1b[5~\x1b[1;5C\x1b[200~s\x1b[F\x1b"
    assert list(keys(typed)) == ["up", "down", "page up", "s", "end", "escape"]


@given(st.text(alphabet=st.characters(codec="utf-8")), st.booleans(), st.integers(1, 250), st.integers(1, 80))
def test_whatever_is_typed_the_screen_fits(typed: str, why: bool, width: int, height: int) -> None:
    view, found = View(why=why), Page(many(40)({"offset": 0, "limit": 30}), 0)
    for key in keys(typed):
        view = press(view, key, found, max(1, height - 6)) or view
    lines = screen(view, found, rates_between(None, found.answer), None, width, height)
    assert len(lines) <= height
    assert all(len(line.text) <= width for line in lines)


@given(st.floats(0, 1e13))
def test_figures_fit_their_columns(value: float) -> None:
    assert len(compact.amount(value)) <= 5 or value >= 1e13
    assert len(compact.duration(value)) <= 4
    assert len(compact.milliseconds(value)) <= 5
    assert len(compact.percent(min(value, 1))) <= 4


def test_long_ipv6_addresses_keep_their_port() -> None:
    long = "[2001:db8:1111:2222:3333:4444:5555:6666]:40000"
    line = shown(page(connection(0, subflow(long))))[3]
    assert ":40000 " in line
    assert "…" in line
    assert long in shown(page(connection(0, subflow(long))), width=140)[3]


def test_a_fault_has_the_first_line() -> None:
    assert screen(View(), None, {}, "no daemon answers", 80, 24)[0].text == "no daemon answers"
    assert "too small" in " ".join(line.text for line in screen(View(), None, {}, None, 30, 24))


def test_once_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["top", "--once", "--socket", str(tmp_path / "s"), "--rule", "spare-ethernet", "--limit", "7"]
    with answering(tmp_path / "s", lambda request: page(connection(), total=12)) as asked:
        assert main(arguments) == 0
    assert [each for _, each in asked] == [
        {"query": "connections", "sort": "rate", "limit": 7, "rule": "spare-ethernet"}
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "    rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active"
    assert lines[-1] == "12 connections, 1 shown"
    assert table(page(connection()), {}, 200)[2].endswith("2 subflows active")


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
)
def test_a_name_that_the_policy_has_not_is_told_where_nothing_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], note: str
) -> None:
    """Defect: a mistyped rule looked like one that caps nobody."""
    policy = {"rules": ["night", "spare"], "paths_in_words": [{"path": "ethernet", "conditions": []}]}
    answers = {
        "connections": page(total=0),
        "events": {"schema": 1, "pid": 1, "last": 0, "first": 0, "events": []},
        "summary": {"schema": 1, "policy": policy},
    }
    with answering(tmp_path / "s", lambda request: answers[request["query"]]):
        assert main([*arguments, "--socket", str(tmp_path / "s")]) == 0
    assert capsys.readouterr().err == note


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"schema": 1, "error": '"client": "x" is not an address'}, '"client": "x" is not an address'),
        ({"version": "0", "connections": []}, "the daemon is older than this command"),
    ],
)
def test_a_refused_question_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: dict[str, Any], message: str
) -> None:
    with answering(tmp_path / "s", lambda request: answer):
        assert main(["top", "--once", "--socket", str(tmp_path / "s")]) == 1
    assert capsys.readouterr().err.startswith(f"mptcp-throttler: {message}")
    assert main(["top", "--once", "--socket", str(tmp_path / "s")]) == 1
    assert "is it running?" in capsys.readouterr().err


def test_without_a_terminal_top_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--socket", str(tmp_path / "s")]) == 1
    assert capsys.readouterr().err == "mptcp-throttler: top needs a terminal; --once prints one table\n"
