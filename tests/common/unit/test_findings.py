# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the display and the summary of the doctor's findings."""

from __future__ import annotations

import json

import pytest

from mptcp_common.findings import Finding, exit_status, fail, json_text, lines, ok, summary, unseen, warn

FINDINGS = (
    ok("one", "works"),
    warn("second", "doubtful", "it may fail", "change it"),
    fail("3", "broken", "it fails", "repair it"),
)


def test_plain_lines_are_aligned() -> None:
    assert list(lines(FINDINGS)) == [
        "ok    one     works",
        "warn  second  doubtful",
        "              why: it may fail",
        "              do:  change it",
        "fail  3       broken",
        "              why: it fails",
        "              do:  repair it",
        "this host is not ready: 1 ok, 1 warn, 1 fail",
    ]


@pytest.mark.parametrize(
    ("findings", "status", "start"),
    [
        (FINDINGS, 1, "this host is not ready"),
        (FINDINGS[:2], 0, "this host is ready, with reservations"),
        (FINDINGS[:1], 0, "this host is ready: 1 ok, 0 warn, 0 fail"),
    ],
)
def test_exit_status_and_summary_follow_the_findings(findings: tuple[Finding, ...], status: int, start: str) -> None:
    assert exit_status(findings) == status
    assert summary(findings).startswith(start)


def test_findings_are_printed_as_json() -> None:
    assert json.loads(json_text(FINDINGS))[1] == {
        "check": "second",
        "status": "warn",
        "text": "doubtful",
        "why": "it may fail",
        "remedy": "change it",
    }


def test_unseen_finding_is_neither_ok_nor_fail() -> None:
    findings = (FINDINGS[0], unseen("file", "whether it exists"))
    assert exit_status(findings) == 0
    assert list(lines(findings)) == [
        "ok      one   works",
        "unseen  file  unknown without root: whether it exists",
        "this host is ready, as far as it can be checked without root: 1 ok, 0 warn, 0 fail, 1 unseen",
    ]
    assert exit_status((*FINDINGS, *findings)) == 1
