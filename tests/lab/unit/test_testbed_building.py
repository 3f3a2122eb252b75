"""Building a testbed: what is said of a step that failed."""

from __future__ import annotations

from subprocess import CompletedProcess
from typing import Any

import pytest

from mptcp_lab.testbed import TestbedError, build
from mptcp_lab.testbed.plan import Step


@pytest.mark.parametrize("said", ["", "what it was just saying"])
def test_a_shell_that_was_killed_is_named_as_what_failed(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(argv: list[str], **options: Any) -> CompletedProcess[str]:
        return CompletedProcess(argv, -9, said, "")

    monkeypatch.setattr(build, "run", killed)
    with pytest.raises(TestbedError, match="build it: its shell: exit code -9"):
        build._take([Step("core", ("true",))], "mpx-none", "build it")
