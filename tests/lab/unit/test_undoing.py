# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for failures while undoing a change: the first error is still raised, with the failure as a note."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from mptcp_lab.remote import ssh
from mptcp_lab.remote.connection import HostRole
from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError
from mptcp_lab.testbed.node import LiveNode

UNDO = ["undo"]
MESSAGE = "it cannot be undone"


def failing(*_: object, **__: object) -> NoReturn:
    raise TestbedError(MESSAGE)


def changed_node(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[Any]:
    monkeypatch.setattr(LiveNode, "run", lambda node, argv: failing() if argv == UNDO else None)
    node: LiveNode = object.__new__(LiveNode)
    return node.changed(["do"], UNDO)


def changed_host(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[Any]:
    def request(do: str, *_: object, **__: object) -> dict[str, Any]:
        return {"change": 1, "code": 0, "out": "", "err": ""} if do == "run" else failing()

    host = ssh.SshHost(HostRole("proxy", "proxy.test"))
    monkeypatch.setattr(host, "connection", SimpleNamespace(request=request, lost=False), raising=False)
    return host.changed(["do"], UNDO)


def ssh_host(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[Any]:
    monkeypatch.setattr(ssh, "Connection", lambda *_: SimpleNamespace(directory=Path(), close=failing))
    return ssh.SshHost(HostRole("proxy", "proxy.test"))


def a_testbed(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[Any]:
    monkeypatch.setattr(Testbed, "_build", lambda built: built.scope.callback(failing))
    return Testbed(TWO_PATHS)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TestbedError("the proxy has ended"), None], ids=repr)
@pytest.mark.parametrize("scope", [changed_node, changed_host, ssh_host, a_testbed])
def test_first_error_is_raised_if_undoing_fails_too(
    monkeypatch: pytest.MonkeyPatch, scope: Callable[[pytest.MonkeyPatch], Any], error: BaseException | None
) -> None:
    """Defect: an interrupt became another error, after which the next experiment ran, so that Ctrl-C did not work."""

    def use() -> None:
        with scope(monkeypatch):
            if error is not None:
                error.__notes__ = []
                raise error

    with pytest.raises(type(error or TestbedError())) as raised:
        use()
    if error is None:
        assert str(raised.value) == MESSAGE
    else:
        assert raised.value is error
        assert error.__notes__ == [f"undoing failed as well: {MESSAGE}"]
