# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for those helpers of the package tests that need no package."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_checkout_without_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: without git, the package tests ended with an error instead of being skipped."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "kernel")
    from deb_package import EARLIER_COMMIT, has_commit

    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_commit(EARLIER_COMMIT)
