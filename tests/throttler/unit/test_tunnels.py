# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for tunnels as connections: reading the tunnel daemon's paths, and sending it the classes for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from fake_kernel import PROXY, FakeKernel, four_tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from test_daemon import BOTH_DIRECTIONS, CAPPED, PATHS, Scene, running, until

from mptcp_common.problems import DocumentError
from mptcp_throttler.config.settings import load_settings
from mptcp_throttler.mptcp import tunnels as tunnels_module
from mptcp_throttler.mptcp.model import EventKind, FourTuple, KernelSubflow
from mptcp_throttler.mptcp.tracker import Tracker
from mptcp_throttler.mptcp.tunnels import PATH_TIMEOUT, TunnelTable
from mptcp_throttler.policy.model import Throttle
from mptcp_throttler.runtime import tunnels as tunnels_component
from mptcp_throttler.shaping.model import FIRST_MINOR, class_spec
from mptcp_throttler.stages import budget

PORT = 51820
TUNNELS = f"tunnel_ports: [{PORT}]\n"


def udp(remote: str) -> FourTuple:
    return FourTuple(PROXY, PORT, ip_address(remote).packed, PORT)


# Random answers of the tunnel daemon. The tracker must have the paths of the last answer.

paths = st.lists(
    st.fixed_dictionaries(
        {
            "path": st.just("p"),
            "number": st.integers(0, 2),
            "id": st.integers(1, 2),
            "local": st.just("10.77.0.1"),
            "local_port": st.sampled_from((PORT, PORT, PORT, 4000)),
            "remote": st.sampled_from(("10.1.0.1", "10.2.0.1", "fd77::1")),
            "remote_port": st.integers(1, 2),
            "interface": st.sampled_from(("w0", None)),
            "class": st.just(0),
            "silent_s": st.sampled_from((None, 0.0, 1.0, 11.0)),
            "bytes_sent": st.integers(0, 2),
            "bytes_received": st.integers(0, 2),
        }
    ),
    max_size=3,
    unique_by=lambda each: each["number"],
)


def with_unique_ids(name: str, paths: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *paths* with unique ids."""
    return [each | {"id": 100 * each["id"] + 10 * each["number"] + len(name)} for each in paths]


RELAY_TUNNEL = {"name": "at-relay", "role": "relay", "paths": [{"path": "dsl", "number": 0, "id": 0, "local": None}]}
answers = st.dictionaries(st.sampled_from(("home", "office")), paths).map(
    lambda paths_of_tunnels: {
        "tunnels": [
            RELAY_TUNNEL,
            *(
                {"name": name, "role": "proxy", "paths": with_unique_ids(name, each)}
                for name, each in paths_of_tunnels.items()
            ),
        ]
    }
)
invalid_answers = st.sampled_from(({}, {"tunnels": [{}]}, {"tunnels": [{"name": "home", "paths": [{"number": "x"}]}]}))
TCP_SUBFLOW = KernelSubflow(7, four_tuple("10.1.0.1"), True, 0, 0, False, 0.0)


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(st.one_of(answers, answers, invalid_answers, st.just("resync")), st.floats(0.1, 20)), max_size=12
    )
)
def test_tracker_has_the_paths_of_the_last_answer(steps: list[tuple[Any, float]]) -> None:
    table, tracker, now = TunnelTable([PORT]), Tracker([3128, PORT]), 100.0
    tracker.resync([TCP_SUBFLOW], now)
    expected_paths: dict[FourTuple, tuple[str, int]] = {}
    activity: dict[int, tuple[tuple[int, int], float]] = {}
    for step, seconds in steps:
        now += seconds
        events = tracker.expire(now)
        if step == "resync":
            events += tracker.resync([TCP_SUBFLOW, *(each.socket for each in table.paths.values())], now)
        else:
            try:
                kernel_events = table.update(step, now)
            except ValueError:
                kernel_events = []
            else:
                activity = dict(_activity_of(step, activity, now))
                expected_paths = dict(_expected_paths(step, activity, now))
            events += [each for event in kernel_events for each in tracker.apply_event(event)]
            if tracker.needs_resync:
                events += tracker.resync([TCP_SUBFLOW, *(each.socket for each in table.paths.values())], now)
        assert EventKind.DISAGREEMENT not in {each.kind for each in events}
        tunnels = [each for each in tracker.connections.values() if each.is_tunnel]
        tracked = {
            subflow.four_tuple: (table.paths[subflow.four_tuple].tunnel, subflow.remote_id)
            for each in tunnels
            for subflow in each.subflows
        }
        assert tracked == expected_paths
        assert len(tunnels) == len({name for name, _ in expected_paths.values()}), (
            "a tunnel is not exactly one connection"
        )


def _activity_of(
    answer: dict[str, Any], before: dict[int, tuple[tuple[int, int], float]], now: float
) -> Iterator[tuple[int, tuple[tuple[int, int], float]]]:
    """Yield for each path its byte counts, and the time when data last arrived on it."""
    for tunnel in answer["tunnels"][1:]:
        for path in tunnel["paths"]:
            if path["local_port"] == PORT:
                carried, last = before.get(path["id"], (None, 0.0))
                times = [last, 0.0 if path["silent_s"] is None else now - path["silent_s"]]
                current = path["bytes_sent"], path["bytes_received"]
                yield path["id"], (current, now if carried not in (None, current) else max(times))


def _expected_paths(
    answer: dict[str, Any], activity: dict[int, tuple[tuple[int, int], float]], now: float
) -> Iterator[tuple[FourTuple, tuple[str, int]]]:
    for tunnel in answer["tunnels"][1:]:
        for path in sorted(tunnel["paths"], key=lambda each: int(each["number"])):
            if path["local_port"] == PORT and now - activity[path["id"]][1] < PATH_TIMEOUT:
                yield udp(path["remote"])._replace(remote_port=path["remote_port"]), (tunnel["name"], path["number"])


# The whole daemon


def scenario(test: Callable[[Path, pytest.MonkeyPatch], Awaitable[None]]) -> Callable[[Path, pytest.MonkeyPatch], None]:
    @wraps(test)
    def run_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tunnels_component, "QUERY_SECONDS", 0.01)
        asyncio.run(test(tmp_path, monkeypatch))  # type: ignore[arg-type]

    return run_test


def kernel_with_tunnel() -> FakeKernel:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    kernel.tunnels.add_path("home", 0, "10.1.0.9")
    kernel.tunnels.add_path("home", 1, "10.2.0.9")
    return kernel


def tunnel_of(scene: Scene) -> dict[str, Any]:
    (tunnel,) = (each for each in scene.request(query="connections")["connections"] if "tunnel" in each)
    return dict(tunnel)


@scenario
async def test_tunnel_path_shares_the_class_of_its_cap_and_is_not_paced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_with_tunnel()
    kernel.netfilter.ports = {3128}
    capped = str(kernel.tunnels.tunnels["home"][0]["id"])
    async with running(tmp_path, BOTH_DIRECTIONS, kernel, TUNNELS) as scene:
        await until(lambda: kernel.tunnels.classes == {capped: [0x4D50 << 16 | FIRST_MINOR, 5_000_000]})
        assert {each: target.minor for each, target in kernel.netfilter.entries.items()} == {
            four_tuple("10.1.0.1"): FIRST_MINOR
        }, "the tunnel and the TCP subflow do not share one class"
        await until(lambda: list(kernel.upload_netfilter.entries) == [four_tuple("10.1.0.1")])
        assert set(kernel.pacing.limits) == {1}, "the TCP subflow is not the only one that is paced"
        await scene.reload(CAPPED.replace("5 Mbit/s", "2 Mbit/s"))
        await until(lambda: kernel.tunnels.classes[capped][1] == 2_000_000)
        guarded = set(scene.engine.guard.watched())
        assert (four_tuple("10.2.0.1") in guarded, udp("10.2.0.9") in guarded) == (True, False)
        await scene.reload(PATHS + "rules: [{name: halves, steer: {mode: load-balancing, weights: {a: 1, b: 1}}}]\n")
        await until(lambda: not kernel.tunnels.classes)
        reasons = {each["token"]: each["subflows"][0]["reason"] for each in scene.status()["connections"]}
        assert ["steered" in each for each in reasons.values()] == [True, False]
        await scene.reload(CAPPED)
        await until(lambda: kernel.tunnels.classes)
    assert kernel.tunnels.classes == {}


@scenario
async def test_queries_report_the_name_of_a_tunnel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_with_tunnel()
    kernel.tunnels.tunnels["home"][1] |= {"bytes_sent": 700, "bytes_received": 11}
    async with running(tmp_path, BOTH_DIRECTIONS, kernel, TUNNELS) as scene:
        await until(lambda: tunnel_of(scene)["bytes_sent"] == 700)
        tunnel = tunnel_of(scene)
        assert (tunnel["tunnel"], tunnel["client"], tunnel["bytes_received"]) == ("home", "10.1.0.9", 11)
        assert [(each["tunnel_path"], each["path"], each["ceil"]) for each in tunnel["subflows"]] == [
            ("0", "a", 5_000_000),
            ("1", "b", None),
        ]
        assert tunnel["subflows"][0]["upload"]["ceil"] is None
        (explained,) = scene.request(query="explain", token=tunnel["token"])["connections"]
        assert explained["tunnel"] == "home"
        reasons = {(each["direction"], each["path"]): each["reason"] for each in explained["subflows"]}
        assert reasons["up", "a"] == "upload: counted but not capped: it belongs to a tunnel"
        tried = {(each["direction"], each["path"]): each["tried"][0]["failed"] for each in explained["subflows"]}
        assert (tried["down", "a"], f"upload: {tried['up', 'a']}") == (None, reasons["up", "a"]), (
            "explain gives another reason"
        )
        assert {each["rtt"] for each in tunnel["subflows"]} == {None}
        assert [each["stages"] for each in explained["subflows"]] == [[]] * 4, "a stage changed the verdict"
        assert [each.get("tunnel") for each in scene.status()["connections"]] == [None, "home"]
        assert scene.request(query="summary")["tunnels"][1] == {
            "tunnel": "home",
            "path": "1",
            "bytes_sent": 700,
            "bytes_received": 11,
        }


@scenario
async def test_budget_counts_tunnels_and_connections_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, policy = (
        kernel_with_tunnel(),
        PATHS
        + "rules: [{name: v, budget: {period: day, per: path, steps: ["
        + ("{after: 1 MB, throttle: {rate: 1 Mbit/s}}]}}]\n"),
    )
    home = kernel.tunnels.tunnels["home"]
    home[0] |= {"id": 5, "bytes_sent": 50_000_000}  # The path carried these bytes before the daemon started.

    def used_bytes(scene: Scene) -> int:
        return sum(scene.engine.budget_stage.accounts.used.values())

    async with running(tmp_path, policy, kernel, TUNNELS) as scene:
        home[0]["bytes_sent"] += 1000
        kernel.sockets.carry(four_tuple("10.1.0.1"), 200)
        await until(lambda: used_bytes(scene) == 1200)
    home[0]["bytes_sent"] += 30
    async with running(tmp_path, policy, kernel, TUNNELS) as scene:
        home[1]["bytes_received"] += 4
        await until(lambda: used_bytes(scene) == 1234)
        home[1] |= {"id": 6, "remote": "10.2.0.10", "bytes_received": 0}
        # A new id: the path has new endpoints, and counts from 0.
        home[1] |= {"id": (1 << 61) + 7777, "bytes_sent": 766}
        await until(lambda: used_bytes(scene) == 2000)
        home[0]["bytes_sent"] += 998_000
        await until(lambda: len(kernel.tunnels.classes) == 2)
        assert four_tuple("10.1.0.1") in kernel.netfilter.entries


@scenario
async def test_bytes_of_a_path_that_ends_and_returns_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: all bytes that the path had ever carried were counted a second time."""
    monkeypatch.setattr(budget, "FORGET_SECONDS", 0.0)
    kernel = kernel_with_tunnel()
    policy = PATHS + "rules: [{name: v, budget: {period: day, steps: [{after: 1 GB, throttle: {rate: 1 Mbit/s}}]}}]\n"
    home = kernel.tunnels.tunnels["home"]

    def used_bytes(scene: Scene) -> int:
        return sum(scene.engine.budget_stage.accounts.used.values())

    async with running(tmp_path, policy, kernel, TUNNELS) as scene:
        home[0]["bytes_sent"] = 1000
        await until(lambda: used_bytes(scene) == 1000)
        removed_path = home.pop(0)
        await until(lambda: not scene.engine.budget_stage.sockets.counters)
        home.insert(0, removed_path | {"bytes_sent": 1050})
        await until(lambda: len(tunnel_of(scene)["subflows"]) == 2)
        await until(lambda: bool(scene.engine.budget_stage.sockets.counters))
        home[0]["bytes_sent"] += 7
        await until(lambda: used_bytes(scene) >= 1007)
        assert used_bytes(scene) == 1007


@scenario
async def test_paths_of_a_stopped_daemon_end_after_the_timeout_and_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_with_tunnel()
    kernel.tunnels.is_running = False
    async with running(tmp_path, CAPPED, kernel, TUNNELS) as scene:
        kernel.tunnels.is_running = True
        await until(lambda: kernel.tunnels.classes)
        kernel.tunnels.is_running, kernel.tunnels.classes = False, {}
        requests = kernel.tunnels.requests
        await asyncio.sleep(0.05)
        assert tunnel_of(scene)["subflows"], "the paths ended before the timeout"
        assert kernel.tunnels.requests == requests
        monkeypatch.setattr(tunnels_component, "PATH_TIMEOUT", 0.0)
        await until(lambda: len(scene.engine.tracker.connections) == 1)
        kernel.tunnels.is_running = True
        await until(lambda: kernel.tunnels.classes)
        monkeypatch.setattr(tunnels_component, "QUERY_SECONDS", 3600.0)
        await until(lambda: not scene.engine.tunnels._wake.is_set())
        for number, each in enumerate(kernel.tunnels.tunnels["home"]):
            each["id"] = (1 << 61) + 500 + number
        scene.engine.tunnels._wake.set()
        await until(lambda: kernel.tunnels.classes.keys() == {str((1 << 61) + 500)})


@scenario
async def test_tunnel_class_is_adopted_after_the_throttler_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_with_tunnel()
    kernel.sockets.by_four_tuple.clear()
    kernel.tunnels.tunnels["home"][0]["class"] = 0x4D50 << 16 | 0x4321
    kernel.traffic_control.classes[0x4321] = class_spec(0x4321, Throttle(rate=5_000_000))
    async with running(tmp_path, CAPPED, kernel, TUNNELS):
        await until(lambda: kernel.tunnels.classes)
        assert [class_id & 0xFFFF for class_id, _ in kernel.tunnels.classes.values()] == [0x4321]


def test_tunnel_port_must_differ_from_the_ports_of_the_proxy() -> None:
    text = "interfaces: [w0]\npolicy: p\ntunnel_ports: [51820, 3128]\n"
    with pytest.raises(DocumentError) as caught:
        load_settings(text, "throttler.yaml")
    assert str(caught.value).startswith("throttler.yaml:3: tunnel_ports[1]: 3128 is among listen_ports")


def test_tunnel_daemon_is_not_queried_without_tunnel_ports(tmp_path: Path) -> None:
    async def count_requests() -> int:
        kernel = kernel_with_tunnel()
        async with running(tmp_path, CAPPED, kernel):
            await asyncio.sleep(0)
        return kernel.tunnels.requests

    assert asyncio.run(count_requests()) == 0
    assert tunnels_module.PATH_TIMEOUT > tunnels_component.QUERY_SECONDS
