# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for failures while undoing: the first error is raised nevertheless, with the failure as a note."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from mptcp_lab.remote import ssh
from mptcp_lab.remote.connection import Login
from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError
from mptcp_lab.testbed.node import LiveNode

UNDO = ["undo"]
WORDS = "it cannot be undone"


def failing(*_: object, **__: object) -> NoReturn:
    raise TestbedError(WORDS)


def changed_node(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[Any]:
    monkeypatch.setattr(LiveNode, "run", lambda node, argv: failing() if argv == UNDO else None)
    node: LiveNode = object.__new__(LiveNode)
    return node.changed(["do"], UNDO)


def changed_host(monkeypatch: pytest.MonkeyPatch, *, lost: bool = False) -> AbstractContextManager[Any]:
    host = ssh.SshHost("proxy", Login("proxy.test"))
    answers: dict[str, Callable[[], dict[str, int]]] = {"change": lambda: {"change": 1}, "undo": failing}
    monkeypatch.setattr(host, "_connected", SimpleNamespace(ask=lambda do, *_, **__: answers[do](), lost=lost))
    return host.changed(["do"], UNDO)


def host(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[Any]:
    monkeypatch.setattr(ssh, "Connection", lambda *_: SimpleNamespace(close=failing))
    return ssh.SshHost("proxy", Login("proxy.test"))


def a_testbed(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[Any]:
    monkeypatch.setattr(Testbed, "_build", lambda built: built.scope.callback(failing))
    return Testbed(TWO_PATHS)


SCOPES = [changed_node, changed_host, host, a_testbed]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("first", [KeyboardInterrupt(), TestbedError("the proxy is gone")], ids=["interrupt", "error"])
def test_first_error_is_raised_when_undoing_fails_as_well(
    monkeypatch: pytest.MonkeyPatch, scope: Callable[[pytest.MonkeyPatch], Any], first: BaseException
) -> None:
    """Defect: an interrupt became another error, after which the next experiment ran, so that Ctrl-C did not work."""
    first.__notes__ = []
    with pytest.raises(type(first)) as raised, scope(monkeypatch):
        raise first
    assert raised.value is first
    assert first.__notes__ == [f"undoing failed as well: {WORDS}"]


@pytest.mark.parametrize("scope", SCOPES)
def test_failed_undoing_is_raised_when_nothing_else_was(
    monkeypatch: pytest.MonkeyPatch, scope: Callable[[pytest.MonkeyPatch], Any]
) -> None:
    with pytest.raises(TestbedError, match=f"^{WORDS}$"), scope(monkeypatch):
        pass
