# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the proxy's state on the page: Squid's figures, or that it does not answer."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from scrapes import ANSWERS
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from mptcp_console.metrics import ProxyHealth, Sources, proxy
from mptcp_console.metrics.squid import SquidPages, parse_counters, parse_info

INFO = parse_info((ANSWERS / "squid-info.txt").read_text())
COUNTED = parse_counters((ANSWERS / "squid-counters.txt").read_text())


def asked(sources: Sources, times: int = 1) -> dict[str, Any]:
    now = 100.0
    with TestClient(Starlette(routes=[Route("/api/proxy", ProxyHealth(sources, lambda: now).answer)])) as client:
        for _ in range(times):
            found: dict[str, Any] = client.get("/api/proxy").json()
    return found


def test_squids_figures_of_all_processes_and_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()

    def pages(address: str, timeout: float) -> SquidPages:
        read.append(address)
        return SquidPages({1: COUNTED, 2: COUNTED}, INFO)

    monkeypatch.setattr(proxy, "read_pages", pages)
    found = asked(Sources(Path("s"), "http://127.0.0.1:1", ANSWERS / "netstat.txt"), times=3)
    assert read == ["http://127.0.0.1:1"], "who asks again within seconds gets what was answered"
    squid = found["squid"]
    assert (squid["problem"], squid["version"], squid["started"]) == (None, "5.7", 1_795_372_304.0)
    assert (squid["requests"], squid["errors"], squid["tunnels"]) == (10, 2, 2)
    assert (squid["clients"], squid["descriptors"], squid["descriptors_limit"]) == (3, 7, 20_000)
    assert found["mptcp"].keys() == {"asked", "fallbacks", "joins"}


def test_a_squid_that_does_not_answer_is_said_to(tmp_path: Path) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))  # the socket does not listen
        found = asked(Sources(Path("s"), f"http://127.0.0.1:{port.getsockname()[1]}", tmp_path / "none"))
    assert found["squid"]["problem"] == "Connection refused"
    assert found["mptcp"] is None
