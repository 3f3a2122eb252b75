# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for reading the properties of a systemd unit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mptcp_common import unit_properties
from mptcp_common.unit_properties import properties_of_unit


def test_requested_properties_are_returned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "systemctl"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$*" = "show --property=BindPaths,ProtectHome,StateDirectory x.service" ] || exit 1\n'
        "printf '%s\\n' 'BindPaths=/a:/b:rbind' ProtectHome=yes 'BindPaths=/c=d' StateDirectory= Other=1 odd\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(unit_properties, "SYSTEMCTL", str(program))
    assert properties_of_unit("x.service", ["BindPaths", "ProtectHome", "StateDirectory"]) == {
        "BindPaths": "/a:/b:rbind /c=d",
        "ProtectHome": "yes",
        "StateDirectory": "",
    }
    assert properties_of_unit("y.service", ["ProtectHome"]) == {}


def test_hung_systemd_gives_no_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(*command: object, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired("systemctl", timeout)

    monkeypatch.setattr(subprocess, "run", time_out)
    assert properties_of_unit("x.service", ["ProtectHome"]) == {}
