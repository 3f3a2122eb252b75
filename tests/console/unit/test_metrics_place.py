# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the console has its metrics at /metrics, protected like its pages."""

from __future__ import annotations

from pathlib import Path

from starlette.testclient import TestClient

from mptcp_console.application import Console
from mptcp_console.query_queue import QueryQueue
from mptcp_console.service import metrics
from mptcp_console.settings import Settings
from mptcp_console.watch import Watch, make_query

TOKEN = "3f0c1d2e4b5a69788796a5b4c3d2e1f0"


def test_metrics_require_the_token_and_do_not_redirect(tmp_path: Path) -> None:
    # Neither throttler nor Squid runs at these addresses.
    settings = Settings(status_socket=tmp_path / "status.sock", token=TOKEN, squid="http://127.0.0.1:1")
    query = make_query(settings.status_socket, timeout=1.0)
    console = Console(Watch(query, settings.status_socket), QueryQueue(query), settings)
    client = TestClient(
        console.application(metrics(settings)), base_url="http://127.0.0.1:8610", follow_redirects=False
    )
    assert client.get("/metrics").status_code == 401
    shown = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert shown.status_code == 200
    assert "mptcp_throttler_up 0.0\n" in shown.text
    assert "squid_up 0.0\n" in shown.text
