# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the messages that the console sends to browsers each second."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from watched_site import Site, run

from mptcp_console.live import HEARTBEAT, MAX_EVENTS, Live


@pytest.fixture
def site() -> Site:
    return Site()


def parse(message: str) -> dict[str, Any]:
    lines = dict(line.split(": ", 1) for line in message.strip().split("\n"))
    assert lines["event"] == "snapshot"
    document: dict[str, Any] = json.loads(lines["data"])
    return document


def test_each_snapshot_is_sent_once_with_new_events(site: Site) -> None:
    async def watch() -> list[dict[str, Any]]:
        await site.poll()
        stream = Live(site.watch, login=False).stream()
        assert await anext(stream) == "retry: 1000\n\n"
        sent = [parse(await anext(stream))]
        site.world.add_event("applied", "a cap")
        site.world.carry(0, 1_000_000)
        next_message = asyncio.ensure_future(anext(stream))
        await site.poll()
        sent.append(parse(await next_message))
        next_message = asyncio.ensure_future(anext(stream))
        await site.poll()
        sent.append(parse(await next_message))
        return sent

    sent = run(watch())
    assert [[each["text"] for each in snapshot["events"]] for snapshot in sent] == [[], ["a cap"], []]
    assert {"path": "wifi", "direction": "down", "rate": 8_000_000} in sent[1]["now"]["paths"]
    assert [snapshot["tick"] for snapshot in sent] == [1, 2, 3]


def test_slow_browser_skips_snapshots(site: Site) -> None:
    async def watch() -> dict[str, Any]:
        stream = Live(site.watch, login=False).stream()
        await anext(stream)
        for number in range(MAX_EVENTS + 20):
            site.world.add_event("applied", str(number))
            await site.poll(2)
        return parse(await anext(stream))

    snapshot = run(watch())
    assert snapshot["tick"] == MAX_EVENTS + 20
    assert [each["text"] for each in snapshot["events"]] == [str(number) for number in range(20, MAX_EVENTS + 20)]
    assert snapshot["more_events"]


def test_slow_browser_gets_events_from_during_a_delivery(site: Site) -> None:
    """Defect: a slow browser missed events between the creation of a snapshot and its delivery."""

    async def watch() -> list[dict[str, Any]]:
        stream = Live(site.watch, login=False).stream()
        await anext(stream)
        next_message = asyncio.ensure_future(anext(stream))
        await site.poll()
        sent = [parse(await next_message)]
        for number in range(3):
            site.world.add_event("applied", str(number))
            await site.poll()
        sent.append(parse(await anext(stream)))
        return sent

    sent = run(watch())
    assert [[each["text"] for each in snapshot["events"]] for snapshot in sent] == [[], ["0", "1", "2"]]


def test_reused_snapshot_leaves_newer_events_for_the_next(site: Site) -> None:
    async def watch() -> list[dict[str, Any]]:
        live = Live(site.watch, login=False)
        fast, slow = live.stream(), live.stream()
        for stream in (fast, slow):
            await anext(stream)
        next_message = asyncio.ensure_future(anext(fast))
        await site.poll()
        await next_message
        # The event is added after the last query; the next snapshot does not exist yet.
        site.watch.event_log.add({"time": site.now, "kind": "applied", "text": "a cap"})
        sent = [parse(await anext(slow))]
        next_message = asyncio.ensure_future(anext(slow))
        await site.poll()
        return [*sent, parse(await next_message)]

    sent = run(watch())
    assert [each["text"] for snapshot in sent for each in snapshot["events"]] == ["a cap"]


def test_snapshot_stays_small_with_many_connections_and_rules(site: Site) -> None:
    async def watch() -> str:
        site.world.connection_count = 10_000
        summary = site.world.answer({"query": "summary"})
        summary["rules"] = [summary["rules"][0] | {"rule": f"rule-{number}"} for number in range(255)]
        summary["policy"]["rules"] = [each["rule"] for each in summary["rules"]]
        site.answer = summary
        await site.poll()
        stream = Live(site.watch, login=False).stream()
        await anext(stream)
        return await anext(stream)

    assert len(run(watch())) < 32_000


def test_idle_stream_sends_heartbeats_and_ends_with_the_console(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcp_console.live.HEARTBEAT", 0.0)
    assert HEARTBEAT > 0

    async def end() -> list[str]:
        stream = Live(site.watch, login=False).stream()
        sent = [await anext(stream), await anext(stream)]
        await site.watch.close()
        return [*sent, *[text async for text in stream]]

    sent = run(end())
    assert sent[1] == ": still here\n\n"
    assert len(sent) <= 3
