# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for building a testbed: the message about a failed step."""

from __future__ import annotations

from subprocess import CompletedProcess
from typing import Any

import pytest

from mptcp_lab.testbed import TestbedError, build, ownership
from mptcp_lab.testbed.plan import Step


@pytest.mark.parametrize("said", ["", "what it was just saying"])
def test_a_shell_that_was_killed_is_named_as_what_failed(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(argv: list[str], **options: Any) -> CompletedProcess[str]:
        return CompletedProcess(argv, -9, said, "")

    monkeypatch.setattr(build, "run", killed)
    with pytest.raises(TestbedError, match="build it: its shell: exit code -9"):
        build._take([Step("core", ("true",))], "mpx-none", "build it")


def test_a_namespace_that_stays_is_collected_by_who_has_a_result_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(namespace: str) -> None:
        raise TestbedError(f"delete namespace {namespace}: processes (7,) cannot be ended")

    monkeypatch.setattr(build, "delete_namespace", refuse)
    with ownership.collected_leftovers() as left:
        build._delete("mpx-none")
    assert left == ["delete namespace mpx-none: processes (7,) cannot be ended"]
    with pytest.raises(TestbedError, match="delete namespace mpx-none"):
        build._delete("mpx-none")
