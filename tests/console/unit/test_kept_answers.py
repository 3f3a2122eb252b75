# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the console's answers from memory: numbers and events of a time, and the number of viewers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_throttler import run_until
from starlette.testclient import TestClient
from test_application import Site

from mptcp_console.watch import MAX_WATCHERS


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with site.client() as client:
        yield client


def test_events_near_a_time_come_with_counts(site: Site) -> None:
    start = site.world.clock() - 100
    for number in range(40):
        site.world.add_event("applied" if number % 2 else "lifted", str(number), time=start + number)
    site.now = start + 100
    with site.client() as client:
        client.portal.call(run_until, lambda: site.watch.event_log.serial >= 40)  # type: ignore[union-attr]
        span = {"from": start + 5, "to": start + 35}
        answer = client.get("/api/events", params=span | {"near": start + 20, "limit": 3}).json()
        assert [each["text"] for each in answer["events"]] == ["19", "20", "21"]
        assert answer["more"]
        assert answer["time"] == site.now
        counted = answer["counted"]
        assert counted["from"] <= start + 5
        assert counted["to"] > start + 35
        assert 30 <= sum(counted["kinds"].values()) <= 40
        assert answer["since"] == counted["since"]
        assert "counted" not in client.get("/api/events", params={"from": start}).json()


def test_history_span_is_measured_by_the_consoles_clock(site: Site) -> None:
    """Defect: a browser whose clock was an hour fast got no history."""
    with site.client() as client:
        client.portal.call(run_until, lambda: site.watch.tracks.now is not None)  # type: ignore[union-attr]
        site.now = site.world.clock()
        found = client.get("/api/history", params={"span": 60}).json()
        assert site.now - 60 <= found["first"] + found["length"] <= site.now + 1
        assert found["time"] == site.now
        assert found["since"] == found["first"]


def test_viewers_answer_shows_why_a_stream_was_refused(site: Site, client: TestClient) -> None:
    """Defect: the 65th page showed again and again that the console does not answer."""
    assert client.get("/api/viewers").json() == {"watching": 0, "most": MAX_WATCHERS}
    site.watch.watchers = MAX_WATCHERS
    try:
        assert client.get("/api/live").status_code == 503
        assert client.get("/api/viewers").json() == {"watching": MAX_WATCHERS, "most": MAX_WATCHERS}
    finally:
        site.watch.watchers = 0
