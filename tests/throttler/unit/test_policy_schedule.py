# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for windows in local time: across midnight, across weeks, and at both daylight-saving changes."""

from __future__ import annotations

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_values import a_policy, a_rule

from mptcp_throttler.policy.model import Policy
from mptcp_throttler.policy.schedule import Window, is_open

ATHENS = ZoneInfo("Europe/Athens")
EVERY_DAY = frozenset(range(7))
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def window(hours: str, *days: str) -> Window:
    start, end = hours.split("-")
    numbers = frozenset(DAYS.index(day) for day in days) or EVERY_DAY
    return Window(numbers, time.fromisoformat(start), time.fromisoformat(end))


def policy(*windows: Window, zone: ZoneInfo = ATHENS) -> Policy:
    return a_policy((), (a_rule("r", None, None, windows=windows or None),), zone)


def timestamp(text: str) -> float:
    """Return seconds since the epoch. An example of *text* is ``2026-03-29T03:00:00+03:00``."""
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("hours", "days", "when", "expected"),
    [
        ("08:00-18:00", (), "2026-07-01T07:59:59", False),
        ("08:00-18:00", (), "2026-07-01T08:00:00", True),
        ("08:00-18:00", (), "2026-07-01T17:59:59", True),
        ("08:00-18:00", (), "2026-07-01T18:00:00", False),
        ("22:00-02:00", ("fri",), "2026-07-03T22:00:00", True),  # a Friday
        ("22:00-02:00", ("fri",), "2026-07-04T01:59:59", True),
        ("22:00-02:00", ("fri",), "2026-07-04T02:00:00", False),
        ("22:00-02:00", ("fri",), "2026-07-03T01:00:00", False),
        ("22:00-02:00", ("sun",), "2026-07-06T01:00:00", True),  # This is Sunday's window, which ends on Monday.
        ("18:00-00:00", ("fri",), "2026-07-03T23:59:59", True),
        ("18:00-00:00", ("fri",), "2026-07-04T00:00:00", False),
        ("00:00-00:00", ("sat",), "2026-07-04T00:00:00", True),
        ("00:00-00:00", ("sat",), "2026-07-05T00:00:00", False),
    ],
)
def test_window_is_open_at_the_given_time(hours: str, days: tuple[str, ...], when: str, expected: bool) -> None:
    assert is_open([window(hours, *days)], datetime.fromisoformat(when)) is expected


def changes(tested_policy: Policy, start: str, count: int) -> list[str]:
    """Return the next *count* changes after *start*: local time with offset, and "opens" or "closes"."""
    now = timestamp(start)
    found = []
    for _ in range(count):
        following = tested_policy.next_change(now)
        assert following is not None
        assert following > now
        local = datetime.fromtimestamp(following, tested_policy.time_zone)
        found.append(f"{local.isoformat()} {'opens' if tested_policy.open_rules(following)[0] else 'closes'}")
        now = following
    return found


def test_office_hours_skip_the_weekend() -> None:
    office_hours = policy(window("08:00-18:00", "mon", "tue", "wed", "thu", "fri"))
    assert changes(office_hours, "2026-07-03T12:00:00+03:00", 3) == [
        "2026-07-03T18:00:00+03:00 closes",
        "2026-07-06T08:00:00+03:00 opens",
        "2026-07-06T18:00:00+03:00 closes",
    ]


def test_weekly_window_is_found_a_week_ahead() -> None:
    weekly = policy(window("08:00-09:00", "wed"))
    assert changes(weekly, "2026-07-01T09:00:00+03:00", 2) == [
        "2026-07-08T08:00:00+03:00 opens",
        "2026-07-08T09:00:00+03:00 closes",
    ]


def test_adjacent_windows_cause_no_change_between_them() -> None:
    adjacent = policy(window("08:00-12:00"), window("12:00-18:00"))
    assert changes(adjacent, "2026-07-01T09:00:00+03:00", 1) == ["2026-07-01T18:00:00+03:00 closes"]


def test_next_change_is_none_if_a_policy_never_changes() -> None:
    now = timestamp("2026-07-01T09:00:00+03:00")
    assert policy().next_change(now) is None
    assert policy(window("00:00-00:00")).next_change(now) is None
    assert policy(window("00:00-12:00"), window("12:00-00:00")).next_change(now) is None


# Athens, Sunday 29 March 2026: at 03:00+02:00 clocks go to 04:00+03:00.


def test_spring_window_around_the_skipped_hour() -> None:
    assert changes(policy(window("01:00-05:00")), "2026-03-29T00:00:00+02:00", 2) == [
        "2026-03-29T01:00:00+02:00 opens",
        "2026-03-29T05:00:00+03:00 closes",
    ]


def test_spring_window_that_starts_in_the_skipped_hour_opens_after_it() -> None:
    assert changes(policy(window("03:30-05:00")), "2026-03-29T00:00:00+02:00", 2) == [
        "2026-03-29T04:00:00+03:00 opens",
        "2026-03-29T05:00:00+03:00 closes",
    ]


def test_spring_window_that_ends_in_the_skipped_hour_closes_after_it() -> None:
    assert changes(policy(window("02:00-03:30")), "2026-03-29T00:00:00+02:00", 2) == [
        "2026-03-29T02:00:00+02:00 opens",
        "2026-03-29T04:00:00+03:00 closes",
    ]


def test_spring_window_within_the_skipped_hour_does_not_open() -> None:
    assert changes(policy(window("03:15-03:45")), "2026-03-29T00:00:00+02:00", 2) == [
        "2026-03-30T03:15:00+03:00 opens",
        "2026-03-30T03:45:00+03:00 closes",
    ]


def test_spring_weekly_window_within_the_skipped_hour_waits_two_weeks() -> None:
    weekly = policy(window("03:15-03:45", "sun"))
    assert changes(weekly, "2026-03-22T03:45:00+02:00", 1) == ["2026-04-05T03:15:00+03:00 opens"]


# Athens, Sunday 25 October 2026: at 04:00+03:00 clocks go back to 03:00+02:00.


def test_autumn_window_around_the_repeated_hour() -> None:
    assert changes(policy(window("02:00-05:00")), "2026-10-25T00:00:00+03:00", 2) == [
        "2026-10-25T02:00:00+03:00 opens",
        "2026-10-25T05:00:00+02:00 closes",
    ]


def test_autumn_window_within_the_repeated_hour_opens_twice() -> None:
    assert changes(policy(window("03:15-03:45")), "2026-10-25T00:00:00+03:00", 5) == [
        "2026-10-25T03:15:00+03:00 opens",
        "2026-10-25T03:45:00+03:00 closes",
        "2026-10-25T03:15:00+02:00 opens",
        "2026-10-25T03:45:00+02:00 closes",
        "2026-10-26T03:15:00+02:00 opens",
    ]


def test_autumn_window_that_ends_in_the_repeated_hour_opens_again() -> None:
    assert changes(policy(window("02:00-03:30")), "2026-10-25T00:00:00+03:00", 4) == [
        "2026-10-25T02:00:00+03:00 opens",
        "2026-10-25T03:30:00+03:00 closes",
        "2026-10-25T03:00:00+02:00 opens",
        "2026-10-25T03:30:00+02:00 closes",
    ]


ZONES = ["UTC", "Europe/Athens", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca"]
MINUTES = st.integers(0, 24 * 4 - 1).map(lambda quarter: time(quarter // 4, quarter % 4 * 15))
WINDOWS = st.builds(Window, st.frozensets(st.integers(0, 6), min_size=1), MINUTES, MINUTES)
# Times near the clock changes of these zones, or any other time.
INSTANTS = st.one_of(
    st.sampled_from(
        [
            timestamp("2026-03-28T12:00:00+00:00"),
            timestamp("2026-10-24T12:00:00+00:00"),
            timestamp("2026-04-04T00:00:00+00:00"),
        ]
    ),
    st.integers(1_700_000_000, 1_900_000_000).map(float),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(WINDOWS, min_size=1, max_size=2), st.sampled_from(ZONES), INSTANTS)
def test_next_change_equals_that_of_a_search_by_quarter_hours(windows: list[Window], zone: str, start: float) -> None:
    """All offsets and window ends are multiples of 15 minutes, so a check every 15 minutes finds each change."""
    tested_policy = policy(*windows, zone=ZoneInfo(zone))
    before = tested_policy.open_rules(start)
    quarter = start // 900 * 900
    instants = (quarter + 900 * step for step in range(1, 4 * 24 * 14))
    expected = next((instant for instant in instants if tested_policy.open_rules(instant) != before), None)
    assert tested_policy.next_change(start) == expected


def test_open_rules_has_an_entry_for_every_rule() -> None:
    tested_policy = a_policy(
        (),
        (
            a_rule("always", None, None),
            a_rule("day", None, None, windows=(window("08:00-18:00"),)),
            a_rule("night", None, None, windows=(window("18:00-08:00"),)),
        ),
        ATHENS,
    )
    noon = datetime(2026, 7, 1, 9, tzinfo=UTC).timestamp()
    assert tested_policy.open_rules(noon) == (True, True, False)
    assert tested_policy.next_change(noon) == timestamp("2026-07-01T18:00:00+03:00")
