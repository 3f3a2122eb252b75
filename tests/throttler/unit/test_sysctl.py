# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the message about a host on which no connection can use Multipath TCP."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_throttler.kernel import sysctl


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", None),
        (
            "0",
            "Multipath TCP is switched off (net.mptcp.enabled = 0): a new listener accepts plain TCP, to which "
            "only plain_tcp: cap applies; older listeners and their connections continue",
        ),
        (
            None,
            "this kernel has no Multipath TCP (Linux 5.6 or newer, option MPTCP): only plain_tcp: cap applies",
        ),
    ],
)
def test_message_about_missing_or_disabled_mptcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(sysctl, "_ROOT", tmp_path)
    if value is not None:
        file = tmp_path / "net/mptcp/enabled"
        file.parent.mkdir(parents=True)
        file.write_text(f"{value}\n")
    assert sysctl.mptcp_missing() == expected
