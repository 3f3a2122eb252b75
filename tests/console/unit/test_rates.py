# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for computing the graph's rates and caps from summaries of the throttler."""

from __future__ import annotations

from typing import Any

import pytest
from fake_throttler import World

from mptcp_console.history import Tracks
from mptcp_console.overviews import overview, policy_page
from mptcp_console.rates import MAX_PAUSE, PathKey, RateMeter, columns, present_paths, record

START = 1_795_000_000


class Clock:
    def __init__(self) -> None:
        self.now = float(START)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def world(clock: Clock) -> World:
    return World(clock=clock)


def summary(world: World) -> dict[str, Any]:
    return world.answer({"query": "summary"})


def columns_after(world: World, clock: Clock, *seconds: float) -> dict[str, Any]:
    """Return the columns after summaries *seconds* apart, with 5 Mbit/s over ethernet and 30 Mbit/s over wifi."""
    tracks, meter = Tracks(), RateMeter()
    record(tracks, meter, summary(world))
    for pause in seconds:
        clock.now += pause
        world.carry(int(625_000 * pause), int(3_750_000 * pause))
        record(tracks, meter, summary(world))
    return columns(tracks, START - 100, int(clock.now) + 10, 1)


def rates(found: dict[str, Any], path: str, direction: str = "down") -> list[int | None]:
    (row,) = (each["rate"] for each in found["paths"] if (each["path"], each["direction"]) == (path, direction))
    return list(row)


def test_dry_run_has_rates_and_no_caps(world: World, clock: Clock) -> None:
    world.dry_run = True
    found = columns_after(world, clock, 1, 1)
    assert rates(found, "wifi") == [None, 30_000_000, 30_000_000]
    assert found["rules"] == []
    shown = overview(summary(world), {})
    assert (shown["dry_run"], shown["capped"], shown["landing"], shown["rules"]) == (True, 0, 0, [])
    assert policy_page(summary(world))["policy"]["dry_run"] is True
    world.dry_run = False
    shown = overview(summary(world), {})
    assert (shown["dry_run"], shown["capped"], len(shown["rules"])) == (False, 3, 1)


def test_rates_are_differences_of_byte_counts(world: World, clock: Clock) -> None:
    found = columns_after(world, clock, 1, 1, 1)
    assert (found["first"], found["length"], found["step"]) == (START, 4, 1)
    assert rates(found, "ethernet") == [None, 5_000_000, 5_000_000, 5_000_000]
    assert rates(found, "wifi") == [None, 30_000_000, 30_000_000, 30_000_000]
    assert rates(found, "wifi", "up") == [None, 3_000_000, 3_000_000, 3_000_000]


def test_rate_holds_for_all_seconds_between_rare_summaries(world: World, clock: Clock) -> None:
    assert rates(columns_after(world, clock, 5), "wifi") == [None] + [30_000_000] * 5


def test_long_pause_between_summaries_has_no_rate(world: World, clock: Clock) -> None:
    found = columns_after(world, clock, 1, MAX_PAUSE + 1, 1)
    assert [value for value in rates(found, "wifi") if value is not None] == [30_000_000] * 2


def test_removed_path_disappears_after_its_last_traffic(world: World, clock: Clock) -> None:
    """Defect: the path stayed on the page with 0 bit/s for as long as the throttler ran."""
    tracks, meter, ethernet_in_use = Tracks(), RateMeter(), True

    def paths_after_a_second(bytes_over_ethernet: int, *names: str) -> set[str | None]:
        """Return the paths in the overview a second later, with the policy's paths *names*."""
        clock.now += 1
        world.carry(bytes_over_ethernet, 0)
        found = summary(world)
        found["policy"]["paths_in_words"] = [{"path": each, "conditions": []} for each in names]
        for each in found["paths"]:
            each["subflows"] = each["path"] != "ethernet" or ethernet_in_use
        record(tracks, meter, found)
        return {each["path"] for each in overview(found, meter.paths)["paths"]}

    paths_after_a_second(0, "ethernet", "wifi")
    assert paths_after_a_second(0, "ethernet", "wifi") == {"ethernet", "wifi"}
    assert paths_after_a_second(0, "wifi") == {"ethernet", "wifi"}, (
        "ethernet disappeared, although its subflows still exist"
    )
    ethernet_in_use = False
    assert paths_after_a_second(1000, "wifi") == {"ethernet", "wifi"}, (
        "ethernet disappeared before the last bytes of its subflows were shown"
    )
    assert paths_after_a_second(0, "wifi") == {"wifi"}
    assert paths_after_a_second(0, "wifi", "ethernet") == {"ethernet", "wifi"}
    assert rates(columns(tracks, START + 2, int(clock.now), 1), "ethernet") == [0, 0, 8000, None, 0]


@pytest.mark.parametrize(
    ("names", "shown"), [([], True), (["wifi"], False), (None, True)], ids=["no-paths", "wifi", "older-throttler"]
)
def test_rate_without_a_path_is_shown_if_in_use_or_if_there_are_no_paths(names: list[str] | None, shown: bool) -> None:
    policy = {} if names is None else {"paths_in_words": [{"path": each} for each in names]}
    totals = {"path": None, "subflows": 0}
    rates = {PathKey(None, "down"): 0.0}
    assert bool(present_paths({"policy": policy, "paths": [totals]}, rates)) == shown
    assert present_paths({"policy": policy, "paths": [totals | {"subflows": 1}]}, rates) == rates


def rates_between(before: dict[str, Any], after: dict[str, Any]) -> dict[PathKey, float]:
    meter = RateMeter()
    meter.update(before)
    meter.update(after)
    return meter.paths


def test_restarted_throttler_gives_no_rate(world: World, clock: Clock) -> None:
    before = summary(world)
    world.carry(10_000, 10_000)
    world.pid += 1
    clock.now += 1
    assert rates_between(before, summary(world)) == {}


def test_decreased_count_gives_no_rate(world: World, clock: Clock) -> None:
    world.carry(1000, 1000)
    before = summary(world)
    world.sent["wifi"] = 10
    clock.now += 1
    assert PathKey("wifi", "down") not in rates_between(before, summary(world))


def test_rate_of_a_path_sums_its_interfaces(world: World, clock: Clock) -> None:
    def two_interfaces() -> dict[str, Any]:
        found = summary(world)
        return found | {"paths": [*found["paths"], *found["paths"]]}

    before = two_interfaces()
    world.carry(0, 1_000_000)
    clock.now += 1
    assert rates_between(before, two_interfaces())[PathKey("wifi", "down")] == 16_000_000


def test_rate_uses_the_times_at_which_the_throttler_counted(world: World, clock: Clock) -> None:
    """The throttler counts every 1.1 s, and gets a query once a second."""
    tracks, meter = Tracks(), RateMeter()
    counts = [summary(world) | {"counted": START}]
    for number in range(1, 40):
        world.carry(int(625_000 * 1.1), int(3_750_000 * 1.1))
        counts.append(summary(world) | {"counted": START + 1.1 * number})
    for second in range(40):
        last = max((each for each in counts if each["counted"] <= START + second), key=lambda each: each["counted"])
        record(tracks, meter, last | {"time": START + second})
    found = rates(columns(tracks, START, START + 100, 1), "wifi")
    assert found[2:] == [pytest.approx(30_000_000, rel=1e-6)] * 38


def test_rate_is_zero_without_subflows(world: World, clock: Clock) -> None:
    meter = RateMeter()
    meter.update(summary(world) | {"counted": START})
    clock.now += 1
    world.carry(0, 1_000_000)
    meter.update(summary(world) | {"counted": START + 1})
    assert meter.paths[PathKey("wifi", "down")] == 8_000_000
    clock.now += 1
    meter.update(summary(world) | {"counted": START + 1, "subflows": {"active": 0, "pending": 0}})
    assert meter.paths[PathKey("wifi", "down")] == 0


def test_rate_includes_subflows_that_closed_between_summaries(world: World, clock: Clock) -> None:
    """No subflow is active when the throttler gets the query, but it has counted the bytes of closed sockets."""
    meter, no_client = RateMeter(), {"subflows": {"active": 0, "pending": 0}}
    meter.update(summary(world) | no_client | {"counted": START})
    for second in range(1, 4):
        clock.now += 1
        world.carry(0, 1_000_000)
        meter.update(summary(world) | no_client | {"counted": START + second})
        assert meter.paths[PathKey("wifi", "down")] == 8_000_000
    clock.now += 1
    meter.update(summary(world) | no_client | {"counted": START + 4})
    assert meter.paths[PathKey("wifi", "down")] == 0


def test_history_has_a_cap_only_while_it_caps_subflows(world: World, clock: Clock) -> None:
    tracks, meter = Tracks(), RateMeter()
    for capped in (False, True, True, False):
        world.capped = capped
        record(tracks, meter, summary(world))
        world.carry(625_000, 0)
        clock.now += 1
    (rule,) = columns(tracks, START, START + 10, 1)["rules"]
    assert {key: rule[key] for key in ("rule", "path", "direction", "share")} == {
        "rule": "spare-ethernet", "path": "ethernet", "direction": "down", "share": "path",
    }  # fmt: skip
    assert rule["cap"] == [None, 5_000_000, 5_000_000, None]
    assert rule["capped"] == [None, 3, 3, None]
    assert rule["guaranteed"] == [None, 2_500_000, 2_500_000, None]


def test_history_keeps_lowest_total_and_shared_only_if_they_differ(world: World, clock: Clock) -> None:
    """First, a rule has two classes, for different steps of a budget; then it has one class."""
    tracks, meter = Tracks(), RateMeter()
    (rule,) = summary(world)["rules"]
    class_values = {
        "lowest_ceil": 1_000_000,
        "total_ceil": 6_000_000,
        "classes": 2,
        "shared_classes": 1,
        "share": "client",
    }
    record(tracks, meter, summary(world) | {"rules": [rule | class_values]})
    clock.now += 1
    record(tracks, meter, summary(world) | {"rules": [rule | {"share": "client"}]})
    (rule_columns,) = columns(tracks, START, START + 1, 1)["rules"]
    assert rule_columns["cap"] == [5_000_000, 5_000_000]
    assert (rule_columns["lowest"], rule_columns["total"], rule_columns["shared"]) == (
        [1_000_000, None],
        [6_000_000, None],
        [1, None],
    )


def test_summary_without_class_counts_is_understood(world: World) -> None:
    found = summary(world)
    for name in ("lowest_ceil", "total_ceil", "classes", "shared_classes"):
        del found["rules"][0][name]
    tracks = Tracks()
    record(tracks, RateMeter(), found)
    (rule_columns,) = columns(tracks, START, START, 1)["rules"]
    assert (rule_columns["cap"], "total" in rule_columns) == ([5_000_000], False)
