"""Events: kept for an hour, in bounded memory, and found by what they are about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mptcp_console.happenings import LONGEST_TEXT, SPAN, Happenings, Wanted

NOW = 1_795_000_000.0


def event(time: float = NOW, **fields: Any) -> dict[str, Any]:
    return {"seq": 1, "time": time, "kind": "applied", "text": "a cap", **fields}


def texts(kept: Happenings, wanted: Wanted | None = None, limit: int = 100) -> list[str]:
    return [json.loads(each.text)["text"] for each in kept.newest(wanted or Wanted(), limit)[0]]


def test_the_newest_stay_and_it_is_said_from_when_on_all_are_there() -> None:
    kept = Happenings(most=3)
    for number in range(3):
        kept.add(event(NOW + number, text=str(number)))
    assert kept.since is None
    kept.add(event(NOW + 3, text="3"))
    assert texts(kept) == ["1", "2", "3"]
    assert kept.since == NOW + 1


def test_bytes_are_bounded_whatever_the_texts() -> None:
    kept = Happenings(most_bytes=10_000)
    for _ in range(1000):
        kept.add(event(text="ä" * 5000, rule="r" * 5000))
    assert kept.bytes <= 10_000
    assert 0 < len(kept) < 30
    assert kept.bytes == sum(len(each.text) for each in kept.newest(Wanted(), 1000)[0])
    assert len(texts(kept)[0]) == LONGEST_TEXT


def test_after_an_hour_they_are_forgotten() -> None:
    kept = Happenings()
    kept.add(event(NOW, text="old"))
    kept.add(event(NOW + 10, text="new"))
    kept.forget(NOW + SPAN + 5)
    assert texts(kept) == ["new"]
    assert kept.bytes == len(kept.newest(Wanted(), 1)[0][0].text)


WANTED = {
    "kind": Wanted(kind="applied"),
    "token": Wanted(token="00000001"),
    "client": Wanted(client="10.0.0.1"),
    "rule": Wanted(rule="a"),
    "first": Wanted(first=NOW + 1),
    "last": Wanted(last=NOW - 1),
}


@pytest.mark.parametrize("name", WANTED)
def test_they_are_found_by_what_they_are_about(name: str) -> None:
    kept = Happenings()
    right = {"time": NOW + 1 if name == "first" else NOW - 1, "token": "00000001", "client": "10.0.0.1", "rule": "a"}
    wrong = {"time": NOW - 1 if name == "first" else NOW + 1, "token": "00000002", "client": "10.0.0.2", "rule": "b"}
    kept.add(event(kind="applied", text="right", **right))  # type: ignore[arg-type]
    kept.add(event(kind="lifted", text="wrong", **wrong))  # type: ignore[arg-type]
    assert texts(kept, WANTED[name]) == ["right"]


def test_the_newest_come_and_that_there_are_more() -> None:
    kept = Happenings()
    for number in range(5):
        kept.add(event(text=str(number)))
    found, more = kept.newest(Wanted(), 2)
    assert [each.serial for each in found] == [4, 5]
    assert more
    assert not kept.newest(Wanted(), 5)[1]
    assert [each.serial for each in kept.newest(Wanted(after=3), 5)[0]] == [4, 5]


@pytest.mark.parametrize("odd", [{}, {"time": "now", "text": ""}, {"time": 1.0}, {"time": 1.0, "text": None}])
def test_what_is_no_event_is_left_out(odd: dict[str, Any]) -> None:
    kept = Happenings()
    kept.add(odd)
    assert len(kept) == 0
