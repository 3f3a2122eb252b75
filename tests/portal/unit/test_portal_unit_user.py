# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check of the portal's settings by root: it names files that the unit cannot read."""

from __future__ import annotations

import grp
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import self_signed

from mptcp_common import unit_user
from mptcp_common.exit_status import DONE, FAILED
from mptcp_portal.cli import main

GROUP = "nogroup"
"""A group that every host has, in place of the throttler's."""
OTHER_GROUP = "adm"
UNIT = "mptcp-portal.service"
CREDENTIAL = Path(f"/run/credentials/{UNIT}/key")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write settings with a certificate and a key that the unit can read, in a directory that others may enter."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can check what others can read")
    monkeypatch.setattr(unit_user.unreadable_by_unit, "__defaults__", (GROUP,))
    # Ignore the unit that this host may have.
    monkeypatch.setattr(unit_user, "groups_of_unit", lambda unit: [])
    with tempfile.TemporaryDirectory(prefix="mptcp-portal-test-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        certificate, key = self_signed(directory)
        for path in (certificate, key):
            shutil.chown(path, group=GROUP)
            path.chmod(0o640)
        file = directory / "portal.yaml"
        file.write_text(
            "check: {squid_user: root}\n"
            f"captive_portal: {{listen: 127.0.0.1:1, certificate: {certificate}, key: {key}}}\n"
        )
        file.chmod(0o644)
        yield file


def test_check_passes_if_the_unit_can_read_all_files(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(settings)]) == DONE
    assert capsys.readouterr().out == f"{settings}: no errors\n"


def test_check_considers_groups_from_a_drop_in(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: only the unit's own group was considered, so that check refused a working configuration."""
    file = settings.parent / "key.pem"
    shutil.chown(file, group=OTHER_GROUP)
    assert main(["check", "--config", str(settings)]) == FAILED
    groups = {UNIT: [grp.getgrnam(each).gr_gid for each in (GROUP, OTHER_GROUP)]}
    monkeypatch.setattr(unit_user, "groups_of_unit", groups.__getitem__)
    assert main(["check", "--config", str(settings)]) == DONE


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem", "portal.yaml"])
def test_check_names_a_file_that_only_root_can_read(
    settings: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Defect: the check by root found no errors, but the unit failed."""
    file = settings.parent / name
    file.chmod(0o600)
    assert main(["check", "--config", str(settings)]) == FAILED
    message = f"the unit (group {GROUP}) cannot read it; run chgrp {GROUP} and chmod 0640 on it"
    assert capsys.readouterr().err == f"{file}: {message}\n"


def test_check_names_unreadable_settings_without_other_files(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.write_text("check: {squid_user: root}\n")
    settings.chmod(0o600)
    assert main(["check", "--config", str(settings)]) == FAILED
    assert capsys.readouterr().err.startswith(f"{settings}: the unit (")


def test_check_skips_the_credentials_of_systemd(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the unit's own user may read the credential, and this user's ID is not known in advance."""
    checked: list[Path] = []

    def unreadable(paths: list[Path], *_: object) -> list[Path]:
        checked.extend(paths)
        return []

    monkeypatch.setattr(unit_user, "unreadable", unreadable)
    assert list(unit_user.unreadable_by_unit([settings, CREDENTIAL], UNIT)) == []
    assert checked == [settings]
