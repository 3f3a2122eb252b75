# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``mptcp-tunnel check``: its messages about keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_tunnel.cli import main


def test_two_tunnels_with_the_same_key_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: with one key for both tunnels, messages went to the wrong tunnel, and its paths never became alive."""
    for name in ("a", "b"):
        key = tmp_path / name
        key.write_bytes(name.encode() * 16)
        key.chmod(0o600)
    settings = tmp_path / "tunnel.yaml"
    tunnels = (
        f"{name}: {{port: {port}, key: {tmp_path}/{key}}}" for name, port, key in (("one", 1, "a"), ("two", 2, "b"))
    )
    text = f"uplinks: [eth0]\ntunnels: {{{', '.join(tunnels)}}}\n"
    settings.write_text(text)
    assert main(["check", "--config", str(settings)]) == 0
    settings.write_text(text.replace("/b}", "/a}"))
    assert main(["check", "--config", str(settings)]) == 1
    assert "tunnel one has the same key" in capsys.readouterr().err
