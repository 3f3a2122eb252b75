# SPDX-License-Identifier: GPL-2.0-or-later
"""What the doctor reads of the host, where the host says it in other ways than usual."""

from __future__ import annotations

import subprocess

import pytest

from mptcp_proxy.doctor import reading


def test_what_a_program_prints_may_be_no_text_in_any_encoding() -> None:
    """Defect: an interface named by the byte 0xff ended the doctor, and nothing of what it had found was said."""
    assert reading.output("printf", r"w\377an") == "w\ufffdan"


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("ip", 30)])
def test_a_program_that_gives_no_answer_says_nothing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Defect: one that took too long ended the doctor."""

    def answer(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", answer)
    assert reading.output("ip", "mptcp", "limits", "show") == ""
