# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``console``: reading streams, metrics and terminals, and the reference for the lag."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants_of_console import LAG, in_phases, judged
from rich.console import Console

from mptcp_bench.experiments import console_load
from mptcp_bench.experiments.console_load import Examination, Found, plan
from mptcp_bench.experiments.console_load_clients import Reading, is_whole, moments
from mptcp_bench.experiments.console_load_judging import AFTER, BEFORE, WITH, Plan, Pushed, Reloads
from mptcp_bench.experiments.console_load_top import heads
from mptcp_bench.experiments.options import OptionError

MESSAGE = b'2a\r\nid: 7\nevent: moment\ndata: {"now":{"capped":%d}}\n\n\r\n'
"""A message of the stream, with the chunk's length before it and its end behind it."""


def test_plans() -> None:
    assert plan({}, quick=False) == Plan(10_000, 6, 10, 10, 5, 10)
    assert plan({"n": "100", "pages": "0"}, quick=True) == Plan(100, 1, 3, 2, 0, 3)
    assert plan({}, quick=False).scrapes == 12
    with pytest.raises(OptionError, match="--set browsers=0: allowed are whole numbers from 1 on"):
        plan({"browsers": "0"}, quick=False)


@given(st.lists(st.integers(0, 10**5)), st.lists(st.integers(1, 60)))
def test_messages_of_a_stream_are_found_however_it_is_cut(numbers: list[int], cuts: list[int]) -> None:
    text = b"retry: 1000\n\n" + b"".join(MESSAGE % number + b"f\r\n: still here\n\n\r\n" for number in numbers)
    found, rest = [], b""
    for cut in [*cuts, len(text)]:
        rest, some = moments(rest + text[:cut])
        text = text[cut:]
        found += some
    assert found == [b'{"now":{"capped":%d}}' % number for number in numbers]


def test_what_came_between_two_readings_is_counted_a_second() -> None:
    before, after = Reading(10.0, (100, 0), (1, 0)), Reading(12.0, (300, 0), (3, 0))
    assert before.until(after) == Pushed((100.0, 0.0), (1.0, 0.0))


METRICS = "# HELP x\nmptcp_throttler_up 1.0\nmptcp_throttler_connections 10000.0\n"


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (METRICS, True),
        (METRICS.replace("up 1.0", "up 0.0"), False),
        (METRICS.replace("10000.0", "9999.0"), False),
        ("\nmptcp_throttler_up 1.0\n", False),
        ("", False),
    ],
)
def test_a_scrape_counts_if_the_throttler_is_in_it_with_every_connection(text: str, whole: bool) -> None:
    assert is_whole(text, 10_000) is whole


def test_a_terminals_tables_are_told_apart_by_their_time() -> None:
    frame = b"\x1b[H\x1b[1m%s  %s connections  by rate  bit/s\x1b[0m\r\n10.77.3.2  4f037d87\r\n"
    text = b"\x1b[?1049h\x1b[Hasking" + frame % (b"21:00:01", b"10,000") * 2 + frame % (b"21:00:02", b"10,000")
    assert heads(text, 10_000) == ["21:00:01", "21:00:02"]
    assert heads(text, 9_999) == []
    assert heads(b"no daemon answers at /run/x; is it running?", 10_000) == []


def test_the_lag_is_compared_with_the_longest_without_a_console() -> None:
    def bound(name: str, **change: tuple[float, ...]) -> float | None:
        found = in_phases(name, **change)() if change else judged()()
        return next(aim.most for aim in found if aim.what == f"{WITH}: loop lag, longest")

    assert bound(BEFORE) == pytest.approx(1.25 * LAG + 0.005)
    assert bound(AFTER, lags=(0.01, 0.04)) == pytest.approx(0.055)
    assert bound(BEFORE, lags=()) == 0.05


def test_each_reload_is_followed_by_a_look_at_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([(0.01, 4), (0.02, 4), (math.inf, None), (0.03, 7)])
    monkeypatch.setattr(console_load, "lag", lambda _: next(told))
    found, done = Found(), list[int]()
    examination = object.__new__(Examination)
    examination._plan = plan({"reloads": "3"}, quick=False)
    examination._found, examination._console, examination._throttler = found, Console(quiet=True), None  # type: ignore[assignment]
    examination._reloads(WITH, lambda: done.append(1))
    assert len(done) == 3
    assert found.reloads == {WITH: Reloads((0.02, math.inf, 0.03), 3)}


def test_without_chromium_nothing_is_claimed_of_it() -> None:
    assert not any("Chromium" in aim.what for aim in judged(pages=None)())
