# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for how the console treats a throttler that answers, is down, hangs, or sends invalid answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from fake_throttler import World, until
from watched_site import SOCKET, START, Site, queries, run

from mptcp_console.live import moment
from mptcp_console.watch import (
    EVENTS_SECONDS,
    MANY_EVENTS,
    MAX_WATCHERS,
    UNWATCHED_SECONDS,
    WATCHED_SECONDS,
    TooMany,
    Watch,
)


@pytest.fixture
def site() -> Site:
    return Site()


def test_watch_asks_for_events_only_if_there_are_new_ones(site: Site) -> None:
    async def looks() -> None:
        await site.look()
        await site.look()
        site.world.tell("applied", "a cap")
        await site.look()
        await site.look()

    run(looks())
    assert queries(site) == ["summary", "summary", "summary", "events", "summary"]
    assert site.texts() == ["a cap"]
    assert site.watch.throttler.state == "up"


def test_continuous_events_are_requested_less_often_without_loss(site: Site) -> None:
    async def looks() -> None:
        for number in range(20):
            for _ in range(MANY_EVENTS + 1):
                site.world.tell("applied", str(number))
            await site.look(WATCHED_SECONDS)
        await site.look(10)

    run(looks())
    assert site.count_of_texts() == {str(number): MANY_EVENTS + 1 for number in range(20)}
    assert queries(site).count("events") == 11


def test_few_events_are_fetched_with_their_summary(site: Site) -> None:
    """Defect: while events came all the time, each was shown 1.5 s late or later."""

    async def looks() -> None:
        for number in range(20):
            site.world.tell("applied", str(number))
            await site.look(WATCHED_SECONDS)
            assert site.texts()[-1] == str(number)

    run(looks())


def test_watch_reports_changes_to_the_cache_of_answers(site: Site) -> None:
    changes: list[int] = []
    site.watch = Watch(site.ask, SOCKET, changed=lambda: changes.append(len(queries(site))), clock=lambda: site.now)

    async def looks() -> None:
        await site.look()
        await site.look()
        site.world.tell("applied", "a cap")
        await site.look()
        await site.look()
        site.world.pid += 1
        await site.look()

    run(looks())
    # The second and the fourth summary brought nothing new, and one question was for the event.
    assert changes == [1, 3, 6]


def test_watch_asks_each_second_with_viewers_and_each_five_without(site: Site) -> None:
    site.takes = 0.25

    async def rounds() -> None:
        asking = asyncio.create_task(site.watch.run())
        await until(lambda: len(site.rests) >= 3)
        with site.watch.watching(), site.watch.watching(), site.watch.watching():
            unwatched, site.rests = site.rests, []
            await until(lambda: len(site.rests) >= 3)
        assert all(rest + site.takes == pytest.approx(UNWATCHED_SECONDS) for rest in unwatched)
        assert site.rests[-1] + site.takes == pytest.approx(WATCHED_SECONDS)
        assert WATCHED_SECONDS <= 1
        asking.cancel()

    run(rounds())
    assert len(queries(site)) == pytest.approx(6, abs=2)


def test_new_viewer_ends_the_pause(site: Site) -> None:
    async def begin() -> int:
        watch = Watch(site.ask, SOCKET)
        asking = asyncio.create_task(watch.run())
        await until(lambda: watch.tick == 1)
        with watch.watching():
            await until(lambda: watch.tick == 2)
        asking.cancel()
        return watch.tick

    assert run(begin()) == 2


def test_number_of_viewers_is_bounded(site: Site) -> None:
    async def crowd() -> None:
        held = [site.watch.watching() for _ in range(MAX_WATCHERS)]
        for each in held:
            each.__enter__()
        with pytest.raises(TooMany), site.watch.watching():
            pass
        held[0].__exit__(None, None, None)
        with site.watch.watching():
            pass

    run(crowd())


WRONG = {
    "crashed": (
        ConnectionRefusedError(111, "Connection refused"),
        "nobody listens at /run/mptcp-throttler/status.sock",
    ),
    "down": (FileNotFoundError(2, "No such file"), "/run/mptcp-throttler/status.sock does not exist"),
    "silent": (TimeoutError(), "does not answer within 3 s"),
    "refused": (PermissionError(13, "Permission denied"), "members of its group"),
    "odd": (ConnectionResetError("the answer ended too early"), "the answer ended too early"),
}


@pytest.mark.parametrize("name", WRONG)
def test_failure_of_the_throttler_is_named_until_it_recovers(site: Site, name: str) -> None:
    error, words = WRONG[name]

    async def fall_and_rise() -> None:
        await site.look()
        site.fails = error
        await site.look()
        await site.look()
        assert (site.watch.throttler.state, site.watch.throttler.since) == (name, START + 2)
        assert words in site.watch.throttler.text
        assert words in site.alive[-1]
        # The last known summary is kept, and marked as old.
        assert site.watch.summary is not None
        assert not site.watch.is_current
        sent = moment(site.watch, 0)
        assert (sent["now"], sent["last"]) == (None, site.watch.overview)
        site.fails = None
        await site.look()

    run(fall_and_rise())
    assert site.watch.throttler.state == "up"
    assert len(site.texts()) == 2
    assert words in site.texts()[0]
    assert site.texts()[1] == "the throttler answers"


ODD: dict[str, Any] = {
    "an old one": ({"version": "0.0.9", "connections": []}, "version 0.0.9"),
    "an error": ({"schema": 2, "error": "too busy"}, "refuses to answer: too busy"),
    "keys missing": ({"schema": 2, "time": START, "pid": 1}, "KeyError"),
    "other types": ({"schema": 2, "time": START, "pid": 1, "paths": 5, "rules": []}, "TypeError"),
}


@pytest.mark.parametrize("name", ODD)
def test_malformed_answer_is_reported(site: Site, name: str) -> None:
    answer, words = ODD[name]

    async def look() -> None:
        await site.look()
        site.says = answer
        await site.look()

    run(look())
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
    """Defect: the console stopped asking, and its page no longer changed."""

    async def ask(request: Mapping[str, object]) -> dict[str, Any]:
        answer = await site.ask(request)
        return {"events": events} if request["query"] == "events" else answer

    site.watch = Watch(ask, SOCKET, clock=lambda: site.now)
    site.world.tell("applied", "a cap")
    run(site.look())
    assert site.texts() == []
    assert site.watch.throttler.state == "up"


@pytest.mark.parametrize("last", ["x", float("inf"), [5]])
def test_malformed_number_of_the_last_event_is_reported(site: Site, last: object) -> None:
    """Defect: the console stopped asking."""

    async def looks() -> None:
        await site.look()
        site.says = {**site.world.answer({"query": "summary"}), "last_event": last}
        await site.look()

    run(looks())
    assert site.watch.throttler.state == "odd"


def test_events_are_fetched_from_the_first_after_a_restart(site: Site) -> None:
    async def restart() -> None:
        for number in range(3):
            site.world.tell("applied", f"before {number}")
        await site.look()
        site.world = World(pid=site.world.pid + 1, clock=lambda: site.now)
        site.world.tell("applied", "after")
        await site.look()

    run(restart())
    assert site.texts() == [
        "before 0", "before 1", "before 2", f"the throttler was restarted (process {site.world.pid})", "after",
    ]  # fmt: skip


def test_restart_with_a_malformed_summary_is_reported_once(site: Site) -> None:
    """Defect: each look reported the restart again, once a second, until no other events were kept."""

    async def restart() -> None:
        await site.look()
        site.world = World(pid=site.world.pid + 1, clock=lambda: site.now)
        site.says = {key: value for key, value in site.world.answer({"query": "summary"}).items() if key != "guard"}
        for _ in range(3):
            await site.look()
        assert site.watch.throttler.state == "odd"
        site.says = None
        await site.look()

    run(restart())
    assert site.texts() == [
        "the throttler's answer cannot be read: KeyError 'guard'",
        f"the throttler was restarted (process {site.world.pid})",
        "the throttler answers",
    ]


def test_clock_set_back_does_not_delay_events() -> None:
    """Defect: the console asked for no events until the clock had reached its old value."""
    site, passed = Site(), [0.0]
    site.watch = Watch(site.ask, SOCKET, clock=lambda: site.now, monotonic=lambda: passed[0])

    async def looks() -> None:
        await site.look()
        for _ in range(MANY_EVENTS + 1):
            site.world.tell("applied", "before")
        await site.look()
        site.now -= 3600
        site.world.tell("applied", "after")
        passed[0] += EVENTS_SECONDS
        await site.look()

    run(looks())
    assert site.count_of_texts() == {"before": MANY_EVENTS + 1, "after": 1}


def test_watch_knows_since_when_its_events_are_complete(site: Site) -> None:
    """Defect: a console that had just started or had missed events said that it had all events."""

    async def looks() -> None:
        assert site.watch.happenings.since is None
        site.began = START - 500
        await site.look()
        kept = site.watch.happenings
        assert (kept.since, kept.counted_since) == (START - 500, START - 500)
        site.world.tell("applied", "one")
        await site.look()
        assert kept.since == START - 500
        # Two events come, but one is already dropped when the console asks for them.
        site.world.tell("applied", "two")
        site.now += 5
        site.world.tell("applied", "three")
        site.world.gone = 2
        await site.look()
        assert site.texts() == ["one", "three"]
        assert kept.since == kept.counted_since == START + 7
        site.world = World(pid=site.world.pid + 1, clock=lambda: site.now)
        site.began = site.now + 3
        await site.look(5)
        assert kept.since == kept.counted_since == site.began

    run(looks())


def test_events_are_complete_since_the_first_fetched_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcp_console.watch.FIRST_EVENTS", 3)

    async def looks() -> None:
        for number in range(5):
            site.world.tell("applied", str(number))
            site.now += 1
        await site.look()

    run(looks())
    assert site.texts() == ["2", "3", "4"]
    assert site.watch.happenings.since == START + 2
