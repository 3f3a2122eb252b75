"""The console as a service: a service manager that cannot be told keeps nobody from serving."""

from __future__ import annotations

from pathlib import Path

import pytest
from console_site import console
from reserved_port import reserved_port


def test_a_service_manager_that_is_not_there_keeps_nobody_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: a NOTIFY_SOCKET from another service's environment ended it, "certificate None, key None" was said."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    with console(tmp_path, tmp_path / "s", reserved_port()) as running:
        assert "mptcp-console: tell the service manager READY=1: No such file" in running.log.read_text()
