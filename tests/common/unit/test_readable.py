# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for finding files that a daemon's user cannot read."""

from __future__ import annotations

import grp
import os
import subprocess
from pathlib import Path

import pytest

from mptcp_common import unit_properties
from mptcp_common.readable import groups_of_unit, unreadable


def test_hung_file_system_raises_an_os_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def time_out(command: list[str], **named: object) -> None:
        raise subprocess.TimeoutExpired(command, 10)

    monkeypatch.setattr(subprocess, "run", time_out)
    # Every command reports an OSError in one line.
    with pytest.raises(OSError, match="its file system does not answer within 10 s"):
        list(unreadable([tmp_path], os.getuid(), os.getgid(), []))


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A fake systemctl, whose answer each test writes."""
    program = tmp_path / "systemctl"
    monkeypatch.setattr(unit_properties, "SYSTEMCTL", str(program))
    return program


def write_systemctl(systemctl: Path, groups: str, code: int = 0) -> None:
    arguments = "show --property=SupplementaryGroups mptcp-portal.service"
    systemctl.write_text(f'#!/bin/sh\n[ "$*" = "{arguments}" ] && echo "SupplementaryGroups={groups}"; exit {code}\n')
    systemctl.chmod(0o755)


def test_groups_of_a_unit_come_from_systemd(systemctl: Path) -> None:
    write_systemctl(systemctl, "nogroup 4711 no-such-group-here")
    assert groups_of_unit("mptcp-portal.service") == [grp.getgrnam("nogroup").gr_gid, 4711]


def test_missing_systemd_or_unit_gives_no_groups(systemctl: Path) -> None:
    assert groups_of_unit("mptcp-portal.service") == []
    write_systemctl(systemctl, "", 1)
    assert groups_of_unit("mptcp-portal.service") == []
