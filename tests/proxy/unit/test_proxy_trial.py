# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the background trial that finds out whether Squid can read its configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptcp_lab.testbed.services import wait_until
from mptcp_proxy.child_processes import reap
from mptcp_proxy.process import children
from mptcp_proxy.trial import Trial


def await_outcome(trial: Trial) -> str:
    found: list[str] = []

    def is_known() -> bool:
        if (text := trial.outcome()) is not None:
            found.append(text)
        return bool(found)

    wait_until(is_known, "the outcome is known")
    return found[0]


@pytest.fixture(autouse=True)
def no_child_remains() -> Iterator[None]:
    before = children(os.getpid())
    yield
    assert children(os.getpid()) == before


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("2026/11/24 10:00:00| Processing: via off", ""),
        (
            "2026/11/24 10:00:00| FATAL: Bungled squid.conf line 3: acl m\xfcller",
            "Squid would end at Bungled squid.conf line 3: acl m\xfcller",
        ),
    ],
)
def test_outcome_is_the_fatal_error_of_squid(printed: str, expected: str) -> None:
    trial = Trial(["sh", "-c", 'printf "%s\\n" "$0" >&2', printed])
    trial.begin()
    assert await_outcome(trial) == expected
    assert not trial.is_running


def test_outcome_is_known_if_another_caller_reaps_the_process() -> None:
    trial = Trial(["sh", "-c", "echo FATAL: Bungled >&2; exit 1"])
    before = set(children(os.getpid()))
    trial.begin()

    def is_reaped() -> bool:
        reap(squid=0)
        return before.issuperset(children(os.getpid()))

    wait_until(is_reaped, "another caller has reaped the process")
    assert await_outcome(trial) == "Squid would end at Bungled"


def test_trial_that_takes_too_long_is_ended() -> None:
    trial = Trial(["sleep", "3600"], seconds=0.05)
    trial.begin()
    assert await_outcome(trial).startswith(
        "Squid does not read its configuration within 0.05 s; if that contains host names, Squid waits"
    )
    assert not trial.is_running


def test_trial_runs_in_the_background_and_can_be_aborted() -> None:
    trial = Trial(["sleep", "3600"])
    trial.begin()
    assert trial.outcome() is None
    assert trial.is_running
    trial.end()
    assert not trial.is_running


def test_trial_that_cannot_start_has_an_error_as_outcome(tmp_path: Path) -> None:
    trial = Trial([str(tmp_path / "squid")])
    trial.begin()
    assert trial.is_running
    assert await_outcome(trial).startswith("cannot test whether Squid reads its configuration: ")
    assert not trial.is_running
