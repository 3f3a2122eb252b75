# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the doctor handles unusual output of the host's programs."""

from __future__ import annotations

import subprocess

import pytest

from mptcp_proxy.doctor import reading


def test_output_with_undecodable_bytes_is_read() -> None:
    """Defect: because of an interface name with the byte 0xff, the doctor ended without any finding."""
    assert reading.output("printf", r"w\377an") == "w\ufffdan"


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("ip", 30)])
def test_program_without_answer_counts_as_empty_output(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Defect: the doctor ended if a program took too long."""

    def answer(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", answer)
    assert reading.output("ip", "mptcp", "limits", "show") == ""
