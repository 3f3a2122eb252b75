# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``mptcp-bench cleanup``: the order of its steps and messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_bench import cli
from mptcp_lab.testbed import congestion
from mptcp_lab.testbed.ownership import Cleaned


@pytest.mark.parametrize("text", [None, "client: here\n"])
def test_with_an_inventory_that_cannot_be_read_nothing_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    """Defect: this host was cleaned first, without a message about what was removed."""
    removed: list[str] = []

    def remove_stale() -> Cleaned:
        removed.append("testbed")
        return Cleaned(("testbed a1b2c3: removed",), ())

    monkeypatch.setattr(cli, "remove_stale", remove_stale)
    monkeypatch.setattr(congestion, "put_back", lambda: Cleaned((), ()))
    inventory = tmp_path / "hosts.yaml"
    if text is not None:
        inventory.write_text(text)
    assert cli.main(["cleanup", "--inventory", str(inventory)]) == 1
    said = capsys.readouterr()
    assert removed == []
    assert said.out == ""
    assert said.err.startswith(f"mptcp-bench: {inventory}")
    assert cli.main(["cleanup"]) == 0
    assert capsys.readouterr().out == "testbed a1b2c3: removed\n"
