"""What the console makes of a throttler that answers, is down, hangs, or says something else."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_throttler import World, until

from mptcp_console.happenings import Wanted
from mptcp_console.live import HEARTBEAT, MOST_EVENTS, Live
from mptcp_console.watch import MANY_EVENTS, MOST_WATCHERS, UNWATCHED_SECONDS, WATCHED_SECONDS, TooMany, Watch

SOCKET = Path("/run/mptcp-throttler/status.sock")
START = 1_795_000_000.0


class Site:
    """A watch over a world, on a clock of its own."""

    def __init__(self) -> None:
        self.now = START
        self.world = World(clock=lambda: self.now)
        self.fails: OSError | None = None
        self.says: dict[str, Any] | None = None
        self.began: float | None = None
        """When the throttler did; None: as the world has it."""
        self.alive: list[str] = []
        self.rests: list[float] = []
        self.takes = 0.0
        """Seconds that each answer takes."""
        self.watch = Watch(
            self.ask, SOCKET, self.alive.append, sleep=self.sleep, clock=lambda: self.now, monotonic=lambda: self.now
        )

    async def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        self.now += self.takes
        if self.fails is not None:
            raise self.fails
        if self.says is not None:
            return self.says
        answer = self.world.answer(dict(request))
        return answer if self.began is None else answer | {"started": self.began}

    async def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        await asyncio.sleep(0)

    async def look(self, seconds: float = 1.0) -> None:
        self.now += seconds
        await self.watch.look()

    def texts(self) -> list[str]:
        return [json.loads(each.text)["text"] for each in self.watch.happenings.newest(Wanted(), 10_000)[0]]

    def count_of_texts(self) -> Counter[str]:
        return Counter(self.texts())


@pytest.fixture
def site() -> Site:
    return Site()


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def queries(site: Site) -> list[str]:
    return [each["query"] for each in site.world.asked]


def test_one_summary_each_time_and_events_only_when_there_are_some(site: Site) -> None:
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


def test_where_events_never_end_they_are_asked_for_less_often_and_none_is_lost(site: Site) -> None:
    async def looks() -> None:
        for number in range(20):
            for _ in range(MANY_EVENTS + 1):
                site.world.tell("applied", str(number))
            await site.look(WATCHED_SECONDS)
        await site.look(10)

    run(looks())
    assert site.count_of_texts() == {str(number): MANY_EVENTS + 1 for number in range(20)}
    assert queries(site).count("events") == 11


def test_few_events_come_with_the_answer_to_which_they_belong(site: Site) -> None:
    """Defect: while something happened all the time, an event was told of 1.5 s later, and more."""

    async def looks() -> None:
        for number in range(20):
            site.world.tell("applied", str(number))
            await site.look(WATCHED_SECONDS)
            assert site.texts()[-1] == str(number)

    run(looks())


def test_who_keeps_answers_is_told_that_something_happened(site: Site) -> None:
    told: list[int] = []
    site.watch = Watch(site.ask, SOCKET, changed=lambda: told.append(len(queries(site))), clock=lambda: site.now)

    async def looks() -> None:
        await site.look()
        await site.look()
        site.world.tell("applied", "a cap")
        await site.look()
        await site.look()
        site.world.pid += 1
        await site.look()

    run(looks())
    # The second and the fourth summary brought nothing, and one question was for the event.
    assert told == [1, 3, 6]


def test_once_a_second_while_watched_however_many_and_every_five_else(site: Site) -> None:
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


def test_whoever_begins_to_watch_waits_for_no_pause(site: Site) -> None:
    async def begin() -> int:
        watch = Watch(site.ask, SOCKET)
        asking = asyncio.create_task(watch.run())
        await until(lambda: watch.tick == 1)
        with watch.watching():
            await until(lambda: watch.tick == 2)
        asking.cancel()
        return watch.tick

    assert run(begin()) == 2


def test_watchers_are_counted_and_bounded(site: Site) -> None:
    async def crowd() -> None:
        held = [site.watch.watching() for _ in range(MOST_WATCHERS)]
        for each in held:
            each.__enter__()
        with pytest.raises(TooMany), site.watch.watching():
            pass
        held[0].__exit__(None, None, None)
        with site.watch.watching():
            pass

    run(crowd())


WRONG = {
    "down": (ConnectionRefusedError(111, "Connection refused"), "nobody listens at /run/mptcp-throttler/status.sock"),
    "down, not made": (FileNotFoundError(2, "No such file"), "nobody listens at"),
    "silent": (TimeoutError(), "does not answer within 3 s"),
    "refused": (PermissionError(13, "Permission denied"), "members of its group only"),
    "odd": (ConnectionResetError("the answer ended too early"), "the answer ended too early"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_throttler_that_does_not_answer_is_named_and_comes_back(site: Site, name: str) -> None:
    error, words = WRONG[name]

    async def fall_and_rise() -> None:
        await site.look()
        site.fails = error
        await site.look()
        await site.look()
        assert (site.watch.throttler.state, site.watch.throttler.since) == (name.partition(",")[0], START + 2)
        assert words in site.watch.throttler.text
        assert words in site.alive[-1]
        assert site.watch.summary is None
        site.fails = None
        await site.look()

    run(fall_and_rise())
    assert site.watch.throttler.state == "up"
    assert len(site.texts()) == 2
    assert words in site.texts()[0]
    assert site.texts()[1] == "the throttler answers"


ODD: dict[str, Any] = {
    "an old one": ({"version": "0.0.9", "connections": []}, "version 0.0.9"),
    "an error": ({"schema": 1, "error": "too busy"}, "refuses to answer: too busy"),
    "keys missing": ({"schema": 1, "time": START, "pid": 1}, "KeyError"),
    "other types": ({"schema": 1, "time": START, "pid": 1, "paths": 5, "rules": []}, "TypeError"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_answer_that_is_none_is_said_and_breaks_nothing(site: Site, name: str) -> None:
    says, words = ODD[name]

    async def look() -> None:
        await site.look()
        site.says = says
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
def test_events_that_are_none_are_left_out(site: Site, events: object) -> None:
    """Defect: the console asked no more, and its page stood still."""

    async def ask(request: Mapping[str, object]) -> dict[str, Any]:
        answer = await site.ask(request)
        return {"events": events} if request["query"] == "events" else answer

    site.watch = Watch(ask, SOCKET, clock=lambda: site.now)
    site.world.tell("applied", "a cap")
    run(site.look())
    assert site.texts() == []
    assert site.watch.throttler.state == "up"


def test_a_number_of_the_last_event_that_is_none_is_said(site: Site) -> None:
    """Defect: the console asked no more."""

    async def looks() -> None:
        await site.look()
        site.says = {**site.world.answer({"query": "summary"}), "last_event": "x"}
        await site.look()

    run(looks())
    assert site.watch.throttler.state == "odd"


def test_after_a_restart_events_are_taken_from_the_beginning(site: Site) -> None:
    async def restart() -> None:
        for number in range(3):
            site.world.tell("applied", f"before {number}")
        await site.look()
        site.world = World(pid=site.world.pid + 1, clock=lambda: site.now)
        site.world.tell("applied", "after")
        await site.look()

    run(restart())
    assert site.texts() == [
        "before 0", "before 1", "before 2", f"the throttler was started anew (process {site.world.pid})", "after",
    ]  # fmt: skip


def test_a_throttler_started_anew_that_is_not_understood_is_told_of_once(site: Site) -> None:
    """Defect: each look said again that it was started anew, once a second, until nothing else was kept."""

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
        f"the throttler was started anew (process {site.world.pid})",
        "the throttler answers",
    ]


def test_it_is_said_from_when_on_all_events_are_there(site: Site) -> None:
    """Defect: a console that had just been started, and one that had missed some, said that all were there."""

    async def looks() -> None:
        kept = site.watch.happenings
        assert kept.since is None
        site.began = START - 500
        await site.look()
        assert (kept.since, kept.counted_since) == (START - 500, START - 500)
        site.world.tell("applied", "one")
        await site.look()
        assert kept.since == START - 500
        # Two come and one has gone when they are asked for.
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


def test_a_console_that_is_started_knows_as_far_back_as_it_asks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcp_console.watch.FIRST_EVENTS", 3)

    async def looks() -> None:
        for number in range(5):
            site.world.tell("applied", str(number))
            site.now += 1
        await site.look()

    run(looks())
    assert site.texts() == ["2", "3", "4"]
    assert site.watch.happenings.since == START + 2


def parsed(message: str) -> dict[str, Any]:
    lines = dict(line.split(": ", 1) for line in message.strip().split("\n"))
    assert lines["event"] == "moment"
    document: dict[str, Any] = json.loads(lines["data"])
    return document


def test_each_look_is_sent_once_with_the_events_since(site: Site) -> None:
    async def watch() -> list[dict[str, Any]]:
        await site.look()
        stream = Live(site.watch, login=False).stream()
        assert await anext(stream) == "retry: 1000\n\n"
        sent = [parsed(await anext(stream))]
        site.world.tell("applied", "a cap")
        site.world.carry(0, 1_000_000)
        coming = asyncio.create_task(anext(stream))
        await site.look()
        sent.append(parsed(await coming))
        coming = asyncio.create_task(anext(stream))
        await site.look()
        sent.append(parsed(await coming))
        return sent

    sent = run(watch())
    assert [[each["text"] for each in moment["events"]] for moment in sent] == [[], ["a cap"], []]
    assert {"path": "wifi", "direction": "down", "rate": 8_000_000} in sent[1]["now"]["paths"]
    assert [moment["tick"] for moment in sent] == [1, 2, 3]


def test_a_slow_browser_misses_moments_and_holds_nobody_up(site: Site) -> None:
    async def watch() -> dict[str, Any]:
        stream = Live(site.watch, login=False).stream()
        await anext(stream)
        for number in range(MOST_EVENTS + 20):
            site.world.tell("applied", str(number))
            await site.look(2)
        return parsed(await anext(stream))

    moment = run(watch())
    assert moment["tick"] == MOST_EVENTS + 20
    assert [each["text"] for each in moment["events"]] == [str(number) for number in range(20, MOST_EVENTS + 20)]
    assert moment["more_events"]


def test_a_slow_browser_is_told_of_events_that_came_while_it_took_a_moment(site: Site) -> None:
    """Defect: it was sent what came after it had taken one moment, not what came after that moment was made."""

    async def watch() -> list[dict[str, Any]]:
        stream = Live(site.watch, login=False).stream()
        await anext(stream)
        coming = asyncio.create_task(anext(stream))
        await site.look()
        sent = [parsed(await coming)]
        for number in range(3):
            site.world.tell("applied", str(number))
            await site.look()
        sent.append(parsed(await anext(stream)))
        return sent

    sent = run(watch())
    assert [[each["text"] for each in moment["events"]] for moment in sent] == [[], ["0", "1", "2"]]


def test_a_moment_that_was_made_for_another_browser_leaves_what_came_since_for_the_next(site: Site) -> None:
    async def watch() -> list[dict[str, Any]]:
        live = Live(site.watch, login=False)
        fast, slow = live.stream(), live.stream()
        for stream in (fast, slow):
            await anext(stream)
        coming = asyncio.create_task(anext(fast))
        await site.look()
        await coming
        # Told in the middle of the next look, whose moment there is not yet.
        site.watch.happenings.add({"time": site.now, "kind": "applied", "text": "a cap"})
        sent = [parsed(await anext(slow))]
        coming = asyncio.create_task(anext(slow))
        await site.look()
        return [*sent, parsed(await coming)]

    sent = run(watch())
    assert [each["text"] for moment in sent for each in moment["events"]] == ["a cap"]


def test_a_moment_stays_small_with_ten_thousand_connections_and_many_rules(site: Site) -> None:
    async def watch() -> str:
        site.world.count = 10_000
        summary = site.world.answer({"query": "summary"})
        summary["rules"] = [summary["rules"][0] | {"rule": f"rule-{number}"} for number in range(255)]
        summary["policy"]["rules"] = [each["rule"] for each in summary["rules"]]
        site.says = summary
        await site.look()
        stream = Live(site.watch, login=False).stream()
        await anext(stream)
        return await anext(stream)

    assert len(run(watch())) < 32_000


def test_a_stream_ends_with_the_console_and_shows_life_while_nothing_comes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
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
