# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check of the console's settings by root: it names files that the unit cannot read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import encrypted, self_signed

from mptcp_common import unit_user
from mptcp_common.exit_status import CONFIGURATION, DONE, FAILED
from mptcp_console.cli import main

GROUP = "nogroup"
"""A group that every host has, in place of the throttler's."""
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield a directory that others may enter. pytest's directory is not used, because another pytest that starts may
    remove the permission of others."""
    with tempfile.TemporaryDirectory(prefix="mptcp-console-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def settings(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write settings with a token, a certificate and a key that the unit can read."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can find out what others can read")
    monkeypatch.setattr(unit_user.unreadable_by_unit, "__defaults__", (GROUP,))
    # Ignore the unit that this host may have.
    monkeypatch.setattr(unit_user, "groups_of_unit", lambda unit: [])
    token = directory / "token"
    token.write_text(TOKEN)
    for path in (token, *self_signed(directory)):
        shutil.chown(path, group=GROUP)
        path.chmod(0o640)
    file = directory / "console.yaml"
    file.write_text("token_file: token\ncertificate: certificate.pem\nkey: key.pem\n")
    file.chmod(0o644)
    return file


def test_check_passes_if_the_unit_can_read_all_files(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(settings)]) == DONE
    assert "no errors" in capsys.readouterr().out


def test_check_accepts_a_relative_path(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the check searched the file in /, and reported it as unreadable."""
    monkeypatch.chdir(settings.parent)
    assert main(["check", "--config", settings.name]) == DONE
    settings.chmod(0o600)
    assert main(["check", "--config", settings.name]) == FAILED


@pytest.mark.parametrize("name", ["token", "certificate.pem", "key.pem", "console.yaml"])
def test_check_names_a_file_that_only_root_can_read(
    settings: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Defect: the check by root passed, but the unit failed."""
    file = settings.parent / name
    file.chmod(0o600)
    assert main(["check", "--config", str(settings)]) == FAILED
    message = f"the unit (group {GROUP}) cannot read it; run chgrp {GROUP} and chmod 0640 on it"
    assert capsys.readouterr().err == f"{file}: {message}\n"


def test_check_names_all_files_below_a_closed_directory(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings.parent.chmod(0o700)
    assert main(["check", "--config", str(settings)]) == FAILED
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_check_skips_the_files_without_root_or_without_the_group(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings.parent / "key.pem").chmod(0o600)
    assert list(unit_user.unreadable_by_unit([settings], "mptcp-console.service", "no-such-group-here")) == []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["check", "--config", str(settings)]) == DONE


def test_encrypted_key_is_refused_without_a_password_prompt(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: check found no errors, but the service asked for the password at a terminal that it does not have."""
    key = settings.parent / "key.pem"
    key.write_bytes(encrypted(key))
    for name, expected in (("check", FAILED), ("run", CONFIGURATION)):
        assert main([name, "--config", str(settings)]) == expected
        errors = capsys.readouterr().err
        assert f"{key} cannot be used: the key is encrypted" in errors
        assert len(errors.splitlines()) == 1
