# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for reading the properties of a systemd unit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mptcp_common import unit_properties
from mptcp_common.unit_properties import properties_of_unit


def test_values_are_those_that_were_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_a_systemd_that_does_not_answer_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*command: object, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired("systemctl", timeout)

    monkeypatch.setattr(subprocess, "run", hangs)
    assert properties_of_unit("x.service", ["ProtectHome"]) == {}
