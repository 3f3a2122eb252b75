# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for failures while a testbed or host is restored: the first error is raised, with the failure as a note."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from mptcp_lab.remote import ssh
from mptcp_lab.remote.connection import HostRole
from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError

MESSAGE = "it cannot be undone"


def failing(*_: object, **__: object) -> NoReturn:
    raise TestbedError(MESSAGE)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TestbedError("the proxy has ended"), None], ids=repr)
@pytest.mark.parametrize(
    "scope", [ssh.SshHost(HostRole("proxy", "proxy.test")), Testbed(TWO_PATHS)], ids=["ssh", "testbed"]
)
def test_first_error_is_raised_if_undoing_fails_too(
    monkeypatch: pytest.MonkeyPatch, scope: AbstractContextManager[Any], error: BaseException | None
) -> None:
    """Defect: an interrupt became another error, after which the next experiment ran, so that Ctrl-C did not work."""
    monkeypatch.setattr(ssh, "Connection", lambda *_: SimpleNamespace(directory=Path(), close=failing))
    monkeypatch.setattr(Testbed, "_build", lambda built: built.scope.callback(failing))

    def use() -> None:
        with scope:
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
