"""The settings against the host: what another user than the one who checks can read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mptcp_throttler.config import host
from mptcp_throttler.config.host import unreadable


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can find out what others can read")
    for directory in (tmp_path, *tmp_path.parents):
        if directory.is_relative_to("/tmp") and directory != Path("/tmp"):
            directory.chmod(0o755)
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\n")
    path.chmod(0o644)
    return path


def test_what_the_daemon_can_read_is_no_problem(policy: Path) -> None:
    assert list(unreadable([policy], "nobody")) == []


def test_a_policy_that_root_alone_can_read_is_told(policy: Path) -> None:
    """Defect: check passed, as root, and the daemon failed."""
    policy.chmod(0o600)
    (problem,) = unreadable([policy], "nobody")
    words = "the throttler's user nobody cannot read it; chmod o+r it, or chgrp nobody and chmod g+r"
    assert str(problem) == f"{policy}: {words}"


def test_a_directory_that_may_not_be_entered_counts(policy: Path) -> None:
    policy.parent.chmod(0o700)
    assert len(list(unreadable([policy], "nobody"))) == 1


def test_nobody_is_asked_where_there_is_no_such_user_or_who_checks_is_not_root(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.chmod(0o600)
    assert list(unreadable([policy], "no-such-user-here")) == []
    monkeypatch.setattr(host.os, "geteuid", lambda: 1000)
    assert list(unreadable([policy], "nobody")) == []
