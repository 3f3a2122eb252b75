# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the text of problems."""

from __future__ import annotations

import pytest

from mptcp_proxy.problem import Problem, errors


def test_problem_is_shown_in_one_line() -> None:
    assert str(Problem("wrong", "f", 3, "right")) == "f:3: wrong (allowed: right)"
    assert str(Problem("odd", "f", warning=True)) == "f: warning: odd"
    assert str(Problem("caf\xe9 \x1b[2J\n\x07", "f")) == "f: caf\xe9 \\x1b[2J\\n\\x07"
    assert str(Problem("wrong")) == "wrong"
    assert errors([Problem("odd", warning=True), Problem("wrong")]) == (Problem("wrong"),)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cache_peer p parent 1 0 login=joe:hunter2 x: odd", "cache_peer p parent 1 0 login=… x: odd"),
        ("cache_peer p sslpassword=hunter2", "cache_peer p sslpassword=…"),
        ("cachemgr_passwd hunter2 all: odd", "cachemgr_passwd … all: odd"),
        ("http_port 3128 name=joe", "http_port 3128 name=joe"),
    ],
)
def test_problem_is_shown_without_passwords(text: str, shown: str) -> None:
    assert str(Problem(text, "f", 3)) == f"f:3: {shown}"
