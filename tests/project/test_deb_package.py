# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests of the package share, as far as it works without a package."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_without_git_the_checkout_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the tests of the package ended in an error where they were to be skipped."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "kernel")
    from deb_package import EARLIER, has_commit

    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_commit(EARLIER)
