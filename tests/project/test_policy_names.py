# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for debian/policy-names, which prints names of the current policy for the TAB key."""

from __future__ import annotations

import json
import runpy
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mptcp_throttler import config

Names = Callable[[str], list[str]]
POLICY = """\
version: 1
paths: {wifi: {clients: [10.0.0.0/8]}, lte: {clients: [192.168.0.0/16]}}
budgets: {month: {period: month}}
rules:
  - {name: spare, paths: [lte], throttle: {rate: 1 Mbit/s}}
  - {name: metered, paths: [lte], budget: {period: day}}
  - {name: fed, paths: [lte], budget: month}
"""
SUMMARY = {
    "policy": {"rules": ["from-daemon"], "paths_in_words": [{"path": "ethernet", "conditions": []}]},
    "budget_totals": [{"name": "weekly"}],
}


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Names:
    monkeypatch.setattr(config, "DEFAULT_SETTINGS", tmp_path / "throttler.yaml")
    (tmp_path / "throttler.yaml").write_text(f"policy: policy.yaml\nstatus_socket: {tmp_path}/status.sock\n")
    (tmp_path / "policy.yaml").write_text(POLICY)
    found: Names = runpy.run_path(str(Path(__file__).parents[2] / "debian/policy-names"))["names"]
    return found


def test_names_come_from_the_files_without_a_daemon(names: Names) -> None:
    found = {kind: names(kind) for kind in ("rules", "paths", "budgets")}
    assert found == {"rules": ["spare", "metered", "fed"], "paths": ["wifi", "lte"], "budgets": ["month", "metered"]}


def test_names_come_from_the_daemon_if_it_runs(names: Names, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        daemon.bind(str(tmp_path / "status.sock"))
        daemon.listen()

        def answer() -> None:
            for _ in range(3):
                connection, _ = daemon.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(json.dumps(SUMMARY).encode() + b"\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert [names(kind) for kind in ("rules", "paths", "budgets")] == [["from-daemon"], ["ethernet"], ["weekly"]]
        thread.join()


@pytest.mark.parametrize("text", ["", "rules: [", "rules: 5\npaths: x\n"])
def test_unreadable_files_give_no_names(names: Names, tmp_path: Path, text: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    assert names("rules") == []
    (tmp_path / "throttler.yaml").unlink()
    assert names("paths") == []
