# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the display and the summary of the doctor's findings."""

from __future__ import annotations

import json

import pytest

from mptcp_common.findings import Finding, as_text_json, exit_status, fail, lines, ok, summary, unseen, warn

FINDINGS = (ok("one", "fine"), warn("second", "odd", "it may hurt", "change it"), fail("3", "bad", "it hurts", "do it"))


def test_plain_lines_are_aligned() -> None:
    assert list(lines(FINDINGS)) == [
        "ok    one     fine",
        "warn  second  odd",
        "              why: it may hurt",
        "              do:  change it",
        "fail  3       bad",
        "              why: it hurts",
        "              do:  do it",
        "this host is not ready: 1 ok, 1 warn, 1 fail",
    ]


@pytest.mark.parametrize(
    ("findings", "code", "words"),
    [
        (FINDINGS, 1, "this host is not ready"),
        (FINDINGS[:2], 0, "this host is ready, with reservations"),
        (FINDINGS[:1], 0, "this host is ready: 1 ok, 0 warn, 0 fail"),
    ],
)
def test_exit_status_and_summary_follow_the_findings(findings: tuple[Finding, ...], code: int, words: str) -> None:
    assert exit_status(findings) == code
    assert summary(findings).startswith(words)


def test_findings_are_printed_as_json() -> None:
    assert json.loads(as_text_json(FINDINGS))[1] == {
        "check": "second",
        "status": "warn",
        "text": "odd",
        "why": "it may hurt",
        "remedy": "change it",
    }


def test_unseen_finding_is_neither_ok_nor_fail() -> None:
    seen_in_part = (FINDINGS[0], unseen("door", "who is behind it"))
    assert exit_status(seen_in_part) == 0
    assert list(lines(seen_in_part)) == [
        "ok      one   fine",
        "unseen  door  not seen without root: who is behind it",
        "this host is ready, as far as it is seen without root: 1 ok, 0 warn, 0 fail, 1 unseen",
    ]
    assert exit_status((*FINDINGS, *seen_in_part)) == 1
