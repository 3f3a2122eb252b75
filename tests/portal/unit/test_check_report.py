# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the text of the check page: sentences with the data of the kernel and the throttler."""

from __future__ import annotations

import json
from typing import Any

import pytest
from portal_throttler import LTE, MONTH, WIFI

from mptcp_portal.check_report import KernelView, Report, ThrottlerOutcome, Transport, report

PLAIN = KernelView(False, 1, 5)
"""A connection that has fallen back to plain TCP. The throttler still lists it."""
MULTIPATH = KernelView(True, 2, 0x4F037D87)
FIVE_SECONDS_OLD = {"time": 1000.0, "since": 995.0}


def answered_report(kernel: KernelView | None, **answer: Any) -> Report:
    defaults = {"multipath": True, "time": 1000.0, "since": 900.0, "time_zone": "UTC", "subflows": [], "budgets": []}
    return report(kernel, defaults | answer, ThrottlerOutcome.ANSWERED)


def test_report_describes_two_paths_a_cap_and_a_volume() -> None:
    found = answered_report(MULTIPATH, subflows=[WIFI, LTE], budgets=[MONTH])
    assert found.transport is Transport.MULTIPATH
    assert found.headline == "Multipath TCP with 2 subflows: Wi-Fi and LTE"
    assert found.lines == ("LTE is limited to 5 Mbit/s by rule evening.", "month: 1.2 of 5 GB left.")


def test_headline_of_a_new_connection_says_so_far() -> None:
    found = answered_report(KernelView(True, 1, 1), subflows=[WIFI], **FIVE_SECONDS_OLD)
    assert found.headline == "Multipath TCP with 1 subflow so far: Wi-Fi"
    assert "join a moment after" in found.lines[0]
    assert answered_report(MULTIPATH, subflows=[WIFI, LTE], **FIVE_SECONDS_OLD).headline.startswith(
        "Multipath TCP with 2 subflows so far:"
    )


def test_old_connection_is_not_expected_to_get_more_subflows() -> None:
    """Defect: the headline ended with "so far" for as long as the page was open."""
    assert answered_report(KernelView(True, 1, 1), subflows=[WIFI]).headline == "Multipath TCP with 1 subflow: Wi-Fi"
    old = {"subflows": [WIFI, LTE], "time": 1000.0, "since": 990.0}
    assert answered_report(MULTIPATH, **old).headline == "Multipath TCP with 2 subflows: Wi-Fi and LTE"
    # An older throttler does not report the age, so that a single path may be the first of several.
    for subflows, expected in (([WIFI, LTE], "2 subflows: Wi-Fi and LTE"), ([WIFI], "1 subflow so far: Wi-Fi")):
        found = report(MULTIPATH, {"multipath": True, "subflows": subflows, "budgets": []}, ThrottlerOutcome.ANSWERED)
        assert found.headline == f"Multipath TCP with {expected}"


def test_report_shows_that_no_path_is_limited() -> None:
    assert answered_report(MULTIPATH, subflows=[WIFI, LTE | {"capped": False}]).lines == ("No path is limited now.",)


def test_capped_path_without_a_rate_is_held_back() -> None:
    assert answered_report(MULTIPATH, subflows=[WIFI, LTE | {"rate": None}]).lines == (
        "LTE is held back by rule evening.",
    )


def test_report_shows_a_cap_on_uploads() -> None:
    found = answered_report(MULTIPATH, subflows=[WIFI | {"upload_rate": 2_000_000}, LTE])
    assert found.lines == (
        "Your uploads over Wi-Fi are limited to 2 Mbit/s.",
        "LTE is limited to 5 Mbit/s by rule evening.",
    )


def test_report_marks_a_shared_volume() -> None:
    assert (
        answered_report(PLAIN, budgets=[MONTH | {"shared": True}]).lines[1]
        == "month: 1.2 of 5 GB left, shared with others."
    )


def test_budgets_with_the_same_name_show_their_paths() -> None:
    budgets = [MONTH | {"client": address, "left": 10**9} for address in ("10.77.2.2", "10.77.1.2", "10.77.7.7")]
    assert answered_report(MULTIPATH, subflows=[WIFI, LTE], budgets=budgets).lines[1:] == (
        "month, Wi-Fi: 1 of 5 GB left.",
        "month, LTE: 1 of 5 GB left.",
        "month, 10.77.7.7: 1 of 5 GB left.",
    )


def test_path_without_a_name_is_shown_by_its_address() -> None:
    assert answered_report(MULTIPATH, subflows=[WIFI, LTE | {"path": None}]).headline.endswith("Wi-Fi and 10.77.1.2")


@pytest.mark.parametrize(
    ("left", "volume", "expected"),
    [
        (0, 5 * 10**9, "all of 5 GB used up"),
        (-3, 5 * 10**9, "all of 5 GB used up"),
        (1, 5 * 10**9, "0 of 5 GB left"),  # rounded down, so that the page never shows more than is left
        (4_999_999_999, 5 * 10**9, "4.99 of 5 GB left"),
        (1_500_000, 200 * 10**6, "1.5 of 200 MB left"),
        (400, 900, "400 of 900 B left"),
    ],
)
def test_volume_is_shown_rounded_down(left: int, volume: int, expected: str) -> None:
    used = volume - left
    (line,) = answered_report(
        PLAIN, budgets=[{"name": "b", "used": used, "volume": volume, "left": left, "until": None}]
    ).lines[1:]
    assert line == f"b: {expected}."


@pytest.mark.parametrize(
    ("used", "step", "next_step", "expected"),
    [
        (4_500, None, 5_000, "0.5 of 5 GB left."),
        (5_500, 5_000, 6_000, "all of 5 GB used up; 0.5 GB left until the next step, at 6 GB."),
        (
            7_000,
            6_000,
            8_000,
            "all of 5 GB used up, and all up to the step at 6 GB; 1 GB left until the next step, at 8 GB.",
        ),
        (9_000, 8_000, None, "all of 5 GB used up, and all up to the step at 8 GB."),
        (9_000, 5_000, None, "all of 5 GB used up."),
    ],
)
def test_budget_with_several_steps_shows_the_reached_one(
    used: int, step: int | None, next_step: int | None, expected: str
) -> None:
    """Defect: with 5.5 GB used and steps at 5 and 6 GB, the page showed that 0.5 of 6 GB were left."""
    mega = 1_000_000
    volumes = {
        "used": used * mega,
        "volume": 5_000 * mega,
        "left": max(0, 5_000 - used) * mega,
        "step": step and step * mega,
        "next_step": next_step and next_step * mega,
    }
    assert answered_report(PLAIN, budgets=[MONTH | volumes]).lines[1] == f"month: {expected}"


def test_end_of_a_volume_is_in_the_policys_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the page showed the time of the host's zone without its name: wrong if the policy has another zone."""
    import time

    month = MONTH | {"until": 1_796_083_200.0}
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        (line,) = answered_report(PLAIN, budgets=[month]).lines[1:]
        assert line == "month: 1.2 of 5 GB left until 1 December, 00:00 (UTC)."
        (line,) = answered_report(PLAIN, budgets=[month], time_zone="Europe/Athens").lines[1:]
        assert line == "month: 1.2 of 5 GB left until 1 December, 02:00 (Europe/Athens)."
        # An older throttler does not send the zone, and this host does not know these zones.
        for zone in (None, "Nowhere/Else", "../etc/passwd"):
            (line,) = answered_report(PLAIN, budgets=[month], time_zone=zone).lines[1:]
            assert line == "month: 1.2 of 5 GB left until 1 December, 05:30 (UTC+0530)."
        used_up = month | {"left": 0, "shared": True, "step": 5 * 10**9, "next_step": None}
        (line,) = answered_report(PLAIN, budgets=[used_up]).lines[1:]
        assert line == "month: all of 5 GB used up, shared with others; it starts over on 1 December, 00:00 (UTC)."
    finally:
        monkeypatch.undo()
        time.tzset()


def test_kernel_decides_that_a_connection_is_plain_tcp() -> None:
    """The throttler may not know yet that the connection has fallen back."""
    found = answered_report(PLAIN, subflows=[WIFI, LTE])
    assert found.transport is Transport.TCP
    assert found.headline == "Plain TCP over one path"
    assert "does not support Multipath TCP" in found.lines[0]
    assert found.subflows == ()


@pytest.mark.parametrize(
    ("kernel", "throttler", "headline", "expected"),
    [
        (MULTIPATH, ThrottlerOutcome.ABSENT, "Multipath TCP with 2 subflows", "throttler does not run"),
        (MULTIPATH, ThrottlerOutcome.SILENT, "Multipath TCP with 2 subflows", "throttler does not answer now"),
        (MULTIPATH, ThrottlerOutcome.BUSY, "Multipath TCP with 2 subflows", "Too many requests"),
        (KernelView(True, 0, 1), ThrottlerOutcome.ABSENT, "Multipath TCP with 1 subflow so far", "join a moment after"),
        (PLAIN, ThrottlerOutcome.ABSENT, "Plain TCP over one path", "does not support"),
        (None, ThrottlerOutcome.ABSENT, "You are connected", "is unknown"),
    ],
)
def test_report_without_a_throttler_has_the_kernels_data(
    kernel: KernelView | None, throttler: ThrottlerOutcome, headline: str, expected: str
) -> None:
    # The answer is ignored, because the outcome is that there is none.
    found = report(kernel, {"multipath": True, "subflows": [LTE], "budgets": [MONTH]}, throttler)
    assert found.headline == headline
    assert expected in " ".join(found.lines)
    assert (found.subflows, found.budgets) == ((), ())


def test_throttlers_data_is_ignored_for_plain_tcp_without_a_token() -> None:
    """The throttler may still list a closed connection with the same addresses and ports."""
    found = answered_report(KernelView(False), subflows=[LTE], budgets=[MONTH])
    assert found.headline == "Plain TCP over one path"
    assert (found.subflows, found.budgets) == ((), ())
    assert len(found.lines) == 1


def test_connection_unknown_to_the_throttler_is_multipath() -> None:
    found = answered_report(MULTIPATH, multipath=False, since=None)
    assert found.headline == "Multipath TCP with 2 subflows so far"
    assert "does not know this connection yet" in found.lines[0]


def test_throttler_decides_if_the_kernel_has_no_data() -> None:
    assert answered_report(None, subflows=[WIFI, LTE]).transport is Transport.MULTIPATH
    assert answered_report(None, multipath=False).transport is Transport.TCP


@pytest.mark.parametrize(("kernel", "headline"), [(MULTIPATH, "Multipath TCP with 2"), (PLAIN, "Plain TCP")])
def test_report_behind_another_proxy_names_it(kernel: KernelView, headline: str) -> None:
    answer = {"multipath": kernel.multipath, "subflows": [WIFI, LTE], "budgets": [MONTH]}
    direct, relayed = (report(kernel, answer, ThrottlerOutcome.ANSWERED, relayed=each) for each in (False, True))
    assert relayed.headline.startswith(headline)
    assert "Another proxy, for instance a relay" in relayed.lines[0]
    assert relayed.lines[1:] == direct.lines
    assert relayed.subflows == direct.subflows


def test_json_has_the_same_content() -> None:
    found = json.loads(json.dumps(answered_report(MULTIPATH, subflows=[WIFI, LTE], budgets=[MONTH]).as_json(7.0)))
    assert found["schema"] == 1
    assert found["time"] == 7.0
    assert found["transport"] == "multipath"
    assert [each["limit"] for each in found["subflows"]] == ["none", "5 Mbit/s"]
    assert [each["carried"] for each in found["subflows"]] == ["12.7 MB", "990 B"]
    assert found["budgets"] == [
        MONTH | {"title": "month", "low": 500_000_000, "getting_low": 1_250_000_000, "figure": "1.2 of 5 GB left"}
    ]


def test_share_of_a_path_is_its_part_of_all_bytes() -> None:
    found = answered_report(MULTIPATH, subflows=[WIFI | {"bytes": 900}, LTE | {"bytes": 100}])
    assert [found.share(each) for each in found.subflows] == [90, 10]
    found = answered_report(MULTIPATH, subflows=[WIFI | {"bytes": 0}, LTE | {"bytes": None}])
    assert [found.share(each) for each in found.subflows] == [0, 0]
