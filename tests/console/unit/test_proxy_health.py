# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the proxy's state on the health page: the figures of Squid and the kernel, or why they are missing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from sample_answers import ANSWERS
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from mptcp_console.metrics import ProxyHealth, Sources, proxy
from mptcp_console.metrics.squid import SquidPages, parse_counters, parse_info

INFO = parse_info((ANSWERS / "squid-info.txt").read_text())
COUNTERS = parse_counters((ANSWERS / "squid-counters.txt").read_text())


def proxy_answer(sources: Sources, times: int = 1) -> dict[str, Any]:
    now = 100.0
    with TestClient(Starlette(routes=[Route("/api/proxy", ProxyHealth(sources, lambda: now).answer)])) as client:
        for _ in range(times):
            found: dict[str, Any] = client.get("/api/proxy").json()
    return found


def test_answer_sums_squids_processes_and_adds_the_kernels_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = list[str]()

    def pages(address: str, timeout: float) -> SquidPages:
        addresses.append(address)
        return SquidPages({1: COUNTERS, 2: COUNTERS}, INFO)

    monkeypatch.setattr(proxy, "read_pages", pages)
    found = proxy_answer(Sources(Path("s"), "http://127.0.0.1:1", ANSWERS / "netstat.txt"), times=3)
    assert addresses == ["http://127.0.0.1:1"], "Squid was queried more than once within some seconds"
    squid = found["squid"]
    assert (squid["problem"], squid["version"], squid["started"]) == (None, "5.7", 1_795_372_304.0)
    assert (squid["requests"], squid["errors"], squid["tunnels"]) == (10, 2, 2)
    assert (squid["clients"], squid["descriptors"], squid["descriptors_limit"]) == (3, 7, 20_000)
    assert found["mptcp"].keys() == {"asked", "fallbacks", "joins"}


def test_answer_has_the_reason_why_squids_figures_are_missing(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # the socket does not listen
        found = proxy_answer(Sources(Path("s"), f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path / "none"))
    assert found["squid"]["problem"] == "Connection refused"
    assert found["mptcp"] is None
