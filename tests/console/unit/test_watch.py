# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for how the console treats a throttler that answers, is down, hangs, or sends invalid answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from fake_throttler import World, run_until
from watched_site import SOCKET, START, Site, queries, run

from mptcp_console.live import snapshot
from mptcp_console.watch import (
    EVENTS_SECONDS,
    MANY_EVENTS,
    MAX_WATCHERS,
    UNWATCHED_SECONDS,
    WATCHED_SECONDS,
    TooManyWatchers,
    Watch,
)


@pytest.fixture
def site() -> Site:
    return Site()


def test_watch_queries_events_only_if_there_are_new_events(site: Site) -> None:
    async def poll_repeatedly() -> None:
        await site.poll()
        await site.poll()
        site.world.add_event("applied", "a cap")
        await site.poll()
        await site.poll()

    run(poll_repeatedly())
    assert queries(site) == ["summary", "summary", "summary", "events", "summary"]
    assert site.texts() == ["a cap"]
    assert site.watch.throttler.state == "up"


def test_continuous_events_are_requested_less_often_without_loss(site: Site) -> None:
    async def poll_repeatedly() -> None:
        for number in range(20):
            for _ in range(MANY_EVENTS + 1):
                site.world.add_event("applied", str(number))
            await site.poll(WATCHED_SECONDS)
        await site.poll(10)

    run(poll_repeatedly())
    assert site.count_of_texts() == {str(number): MANY_EVENTS + 1 for number in range(20)}
    assert queries(site).count("events") == 11


def test_few_events_are_fetched_with_their_summary(site: Site) -> None:
    """Defect: while there were new events all the time, each was shown 1.5 s late or later."""

    async def poll_repeatedly() -> None:
        for number in range(20):
            site.world.add_event("applied", str(number))
            await site.poll(WATCHED_SECONDS)
            assert site.texts()[-1] == str(number)

    run(poll_repeatedly())


def test_watch_reports_changes_to_the_cache_of_answers(site: Site) -> None:
    changes: list[int] = []
    site.watch = Watch(site.query, SOCKET, on_change=lambda: changes.append(len(queries(site))), clock=lambda: site.now)

    async def poll_repeatedly() -> None:
        await site.poll()
        await site.poll()
        site.world.add_event("applied", "a cap")
        await site.poll()
        await site.poll()
        site.world.pid += 1
        await site.poll()

    run(poll_repeatedly())
    # The second and the fourth summary had no changes, and one query was for the event.
    assert changes == [1, 3, 6]


def test_throttler_is_queried_each_second_only_with_viewers(site: Site) -> None:
    site.answer_seconds = 0.25

    async def run_watch() -> None:
        running = asyncio.create_task(site.watch.run())
        await run_until(lambda: len(site.pauses) >= 3)
        with site.watch.watching(), site.watch.watching(), site.watch.watching():
            unwatched, site.pauses = site.pauses, []
            await run_until(lambda: len(site.pauses) >= 3)
        assert all(rest + site.answer_seconds == pytest.approx(UNWATCHED_SECONDS) for rest in unwatched)
        assert site.pauses[-1] + site.answer_seconds == pytest.approx(WATCHED_SECONDS)
        assert WATCHED_SECONDS <= 1
        running.cancel()

    run(run_watch())
    assert len(queries(site)) == pytest.approx(6, abs=2)


def test_new_viewer_ends_the_pause(site: Site) -> None:
    async def begin() -> int:
        watch = Watch(site.query, SOCKET)
        running = asyncio.create_task(watch.run())
        await run_until(lambda: watch.tick == 1)
        with watch.watching():
            await run_until(lambda: watch.tick == 2)
        running.cancel()
        return watch.tick

    assert run(begin()) == 2


def test_number_of_viewers_is_bounded(site: Site) -> None:
    async def enter_many() -> None:
        contexts = [site.watch.watching() for _ in range(MAX_WATCHERS)]
        for each in contexts:
            each.__enter__()
        with pytest.raises(TooManyWatchers), site.watch.watching():
            pass
        contexts[0].__exit__(None, None, None)
        with site.watch.watching():
            pass

    run(enter_many())


FAILURES = {
    "crashed": (
        ConnectionRefusedError(111, "Connection refused"),
        "no program listens at /run/mptcp-throttler/status.sock",
    ),
    "down": (FileNotFoundError(2, "No such file"), "/run/mptcp-throttler/status.sock does not exist"),
    "silent": (TimeoutError(), "does not answer within 3 s"),
    "refused": (PermissionError(13, "Permission denied"), "members of its group"),
    "odd": (ConnectionResetError("the answer ended too early"), "the answer ended too early"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failure_of_the_throttler_is_named_until_it_recovers(site: Site, name: str) -> None:
    error, words = FAILURES[name]

    async def fail_and_recover() -> None:
        await site.poll()
        site.error = error
        await site.poll()
        await site.poll()
        assert (site.watch.throttler.state, site.watch.throttler.since) == (name, START + 2)
        assert words in site.watch.throttler.text
        assert words in site.status_lines[-1]
        # The last known summary is kept, and marked as old.
        assert site.watch.summary is not None
        assert not site.watch.is_current
        sent = snapshot(site.watch, 0)
        assert (sent["now"], sent["last"]) == (None, site.watch.overview)
        site.error = None
        await site.poll()

    run(fail_and_recover())
    assert site.watch.throttler.state == "up"
    assert len(site.texts()) == 2
    assert words in site.texts()[0]
    assert site.texts()[1] == "the throttler answers"


MALFORMED: dict[str, Any] = {
    "an older version": ({"version": "0.0.9", "connections": []}, "version 0.0.9"),
    "an error": ({"schema": 2, "error": "too busy"}, "refuses to answer: too busy"),
    "keys missing": ({"schema": 2, "time": START, "pid": 1}, "KeyError"),
    "other types": ({"schema": 2, "time": START, "pid": 1, "paths": 5, "rules": []}, "TypeError"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_answer_is_reported(site: Site, name: str) -> None:
    answer, words = MALFORMED[name]

    async def poll_twice() -> None:
        await site.poll()
        site.answer = answer
        await site.poll()

    run(poll_twice())
    assert site.watch.throttler.state == "odd"
    assert words in site.watch.throttler.text


@pytest.mark.parametrize(
    "events",
    [
        None, "x", {"a": 1}, ["x", 3, None, {}], [{"seq": "1", "time": START}], [{"seq": 5, "time": "noon"}],
        [{"seq": None, "time": START, "text": "x"}], [{"seq": 5, "time": START}],
    ],
)  # fmt: skip
def test_malformed_events_are_not_kept(site: Site, events: object) -> None:
    """Defect: the console stopped sending queries, and its page no longer changed."""

    async def query(request: Mapping[str, object]) -> dict[str, Any]:
        answer = await site.query(request)
        return {"events": events} if request["query"] == "events" else answer

    site.watch = Watch(query, SOCKET, clock=lambda: site.now)
    site.world.add_event("applied", "a cap")
    run(site.poll())
    assert site.texts() == []
    assert site.watch.throttler.state == "up"


@pytest.mark.parametrize("last", ["x", float("inf"), [5]])
def test_malformed_number_of_the_last_event_is_reported(site: Site, last: object) -> None:
    """Defect: the console stopped sending queries."""

    async def poll_repeatedly() -> None:
        await site.poll()
        site.answer = {**site.world.answer({"query": "summary"}), "last_event": last}
        await site.poll()

    run(poll_repeatedly())
    assert site.watch.throttler.state == "odd"


def test_events_are_fetched_from_the_first_after_a_restart(site: Site) -> None:
    async def restart() -> None:
        for number in range(3):
            site.world.add_event("applied", f"before {number}")
        await site.poll()
        site.world = World(pid=site.world.pid + 1, clock=lambda: site.now)
        site.world.add_event("applied", "after")
        await site.poll()

    run(restart())
    assert site.texts() == [
        "before 0", "before 1", "before 2", f"the throttler was restarted (process {site.world.pid})", "after",
    ]  # fmt: skip


def test_restart_with_a_malformed_summary_is_reported_once(site: Site) -> None:
    """Defect: each query reported the restart again, once a second, until no other events were kept."""

    async def restart() -> None:
        await site.poll()
        site.world = World(pid=site.world.pid + 1, clock=lambda: site.now)
        site.answer = {key: value for key, value in site.world.answer({"query": "summary"}).items() if key != "guard"}
        for _ in range(3):
            await site.poll()
        assert site.watch.throttler.state == "odd"
        site.answer = None
        await site.poll()

    run(restart())
    assert site.texts() == [
        "the throttler's answer cannot be read: KeyError 'guard'",
        f"the throttler was restarted (process {site.world.pid})",
        "the throttler answers",
    ]


def test_clock_set_back_does_not_delay_events() -> None:
    """Defect: the console queried no events until the clock had reached its old value."""
    site, passed = Site(), [0.0]
    site.watch = Watch(site.query, SOCKET, clock=lambda: site.now, monotonic=lambda: passed[0])

    async def poll_repeatedly() -> None:
        await site.poll()
        for _ in range(MANY_EVENTS + 1):
            site.world.add_event("applied", "before")
        await site.poll()
        site.now -= 3600
        site.world.add_event("applied", "after")
        passed[0] += EVENTS_SECONDS
        await site.poll()

    run(poll_repeatedly())
    assert site.count_of_texts() == {"before": MANY_EVENTS + 1, "after": 1}


def test_watch_reports_when_its_complete_events_begin(site: Site) -> None:
    """Defect: a console that had just started or had missed events reported that it had all events."""

    async def poll_repeatedly() -> None:
        assert site.watch.event_log.since is None
        site.started = START - 500
        await site.poll()
        event_log = site.watch.event_log
        assert (event_log.since, event_log.counted_since) == (START - 500, START - 500)
        site.world.add_event("applied", "first")
        await site.poll()
        assert event_log.since == START - 500
        # Two events come, but one is already dropped when the console queries them.
        site.world.add_event("applied", "second")
        site.now += 5
        site.world.add_event("applied", "third")
        site.world.dropped_events = 2
        await site.poll()
        assert site.texts() == ["first", "third"]
        assert event_log.since == event_log.counted_since == START + 7
        site.world = World(pid=site.world.pid + 1, clock=lambda: site.now)
        site.started = site.now + 3
        await site.poll(5)
        assert event_log.since == event_log.counted_since == site.started

    run(poll_repeatedly())


def test_events_are_complete_since_the_first_fetched_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcp_console.watch.FIRST_EVENTS", 3)

    async def poll_repeatedly() -> None:
        for number in range(5):
            site.world.add_event("applied", str(number))
            site.now += 1
        await site.poll()

    run(poll_repeatedly())
    assert site.texts() == ["2", "3", "4"]
    assert site.watch.event_log.since == START + 2
