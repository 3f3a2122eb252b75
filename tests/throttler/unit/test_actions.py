# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ActionRunner, which performs the actions of the stages, and for its log when the kernel refuses them."""

from __future__ import annotations

import logging
import time

import pytest
from sampling import four_tuple

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.runtime.actions import MAX_LINES, ActionRunner
from mptcp_throttler.stages.steering import SetBackup, SteeringStage


class RefusingPathManager:
    """A path manager that refuses each change, as the kernel does for connections of another path manager."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.commands = self

    def set_backup(self, token: int, four_tuple: FourTuple, backup: bool) -> None:
        self.requests.append(token)
        raise KernelError(f"make a subflow of connection {token:08x} backup: Invalid argument")


@pytest.fixture
def path_manager() -> RefusingPathManager:
    return RefusingPathManager()


@pytest.fixture
def runner(path_manager: RefusingPathManager) -> ActionRunner:
    stage = SteeringStage()
    return ActionRunner(path_manager, {}, None, stage, None)  # type: ignore[arg-type]


def test_failed_steering_of_many_connections_is_logged_a_few_times_a_minute(
    runner: ActionRunner,
    path_manager: RefusingPathManager,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defect: after a reload to a policy with steering, each older connection caused a log line and an event."""
    now = 6_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    actions = [SetBackup(token, four_tuple(1, token), True, "s") for token in range(1, 101)]
    with caplog.at_level(logging.WARNING):
        runner.perform(actions)
        assert path_manager.requests == list(range(1, 101))
        assert len(caplog.records) == MAX_LINES
        now += 60
        runner.perform(actions[:1])
        assert len(caplog.records) == MAX_LINES + 1
