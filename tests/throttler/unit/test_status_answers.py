# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the queries ``summary`` and ``connections``, with the whole daemon and a fake kernel."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fake_kernel import FakeKernel, four_tuple
from test_daemon import BOTH_DIRECTIONS, CAPPED, PATHS, UNCAPPED, Scene, running, scenario, until

from mptcp_common import status_client
from mptcp_common.kernel_error import KernelError
from mptcp_throttler.mptcp.model import Connection
from mptcp_throttler.runtime.answers.summary import MAX_ACCOUNTS, MAX_CLASSES
from mptcp_throttler.shaping.model import ClassCounters

WIFI, LTE = "10.1.0.1", "10.2.0.1"


async def sweep_and_count(scene: Scene) -> None:
    """Sweep the sockets, and count their bytes immediately."""
    scene.engine.traffic._next_sweep = 0.0
    await scene.engine.sampler.sweep()


def resync(scene: Scene, later: float) -> None:
    """Resync the tracker with the fake kernel's sockets, *later* seconds from now."""
    engine = scene.engine
    engine.handle_events(
        engine.tracker.resync(list(scene.kernel.sockets.by_four_tuple.values()), time.monotonic() + later)
    )


def path_of(answer: dict[str, Any], name: str) -> dict[str, Any]:
    (path,) = [each for each in answer["paths"] if each["path"] == name]
    return dict(path)


@scenario
async def test_child_process_answers_each_query(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:
        summary = await status_client.ask_async(tmp_path / "s", {"query": "summary"})
        assert summary["schema"] == 2
        assert summary["pid"] == scene.daemon._pid
        error_answer = await status_client.ask_async(tmp_path / "s", {"query": "all"})
        assert error_answer == {"schema": 2, "error": error_answer["error"]}
        assert "the queries are status, head, summary" in error_answer["error"]


@scenario
async def test_every_answer_is_one_line(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:
        for request in (*({"query": name} for name in ("status", "head", "summary", "connections", "all")), {}):
            text = b"".join(scene.daemon._answer(json.dumps(request).encode()))
            assert text.endswith(b"}\n")
            assert text.count(b"\n") == 1


@scenario
async def test_request_with_a_lone_surrogate_gets_an_error(tmp_path: Path) -> None:
    async with running(tmp_path, CAPPED) as scene:
        assert "udc00" in scene.request(query="\udc00")["error"]


@scenario
async def test_summary_reads_no_connection(tmp_path: Path) -> None:
    kernel = FakeKernel()
    for number in range(20):
        kernel.sockets.connect(number + 1, f"10.1.0.{number // 2}", f"10.2.0.{number // 2}", port=40_000 + number)
    async with running(tmp_path, CAPPED, kernel) as scene:
        read_tokens = set[int]()

        def record_token(connection: Connection, name: str) -> Any:
            read_tokens.add(object.__getattribute__(connection, "token"))
            return object.__getattribute__(connection, name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "__getattribute__", record_token)
            answer = scene.request(query="summary")
            assert not read_tokens, "the summary read connections"
            assert len(scene.request(query="connections")["connections"]) == len(read_tokens) == 20
        assert (answer["connections"], answer["clients"]) == (20, 10)


def client_of(subflows: Sequence[dict[str, Any]]) -> str:
    """Return the address of the initial subflow, else of the first one; empty if there is none."""
    first = next((each for each in subflows if each["initial"]), subflows[0] if subflows else {"remote": ":0"})
    return str(first["remote"].rpartition(":")[0])


@scenario
async def test_summary_agrees_with_the_list_of_connections(tmp_path: Path) -> None:
    """The summary stays correct while connections begin, change and end, and while the policy is reloaded."""
    kernel, rng = FakeKernel(), random.Random(7)
    policies = [UNCAPPED, CAPPED, BOTH_DIRECTIONS, CAPPED.replace("paths: [a]", "paths: [a, b]")]
    async with running(tmp_path, CAPPED, kernel) as scene:
        for number in range(60):
            token, sockets = rng.randrange(12), kernel.sockets.by_four_tuple
            for each in [each for each, socket in sockets.items() if socket.token == token]:
                del sockets[each]
            clients = rng.sample([WIFI, LTE, "10.1.0.2", "10.2.0.2", "10.9.0.1"], rng.randrange(4))
            kernel.sockets.connect(token, *clients, port=40_000 + rng.randrange(3) + 10 * token)
            resync(scene, 3.0 * number)
            if number % 10 == 9:
                await scene.reload(policies[number // 10 % len(policies)])
            answer = scene.request(query="summary")
            status = scene.request(query="status")["connections"]
            assert answer["connections"] == len(status)
            subflows = [each for connection in status for each in connection["subflows"]]
            assert answer["subflows"]["active"] == len(subflows)
            subflow_lists = [connection["subflows"] for connection in status]
            assert answer["clients"] == len({client_of(each) for each in subflow_lists})
            paths = Counter(each["path"] for each in subflows)
            assert {each["path"]: each["subflows"] for each in answer["paths"] if each["subflows"]} == paths
            verdict_pairs = [[each, each["upload"] or each] for each in subflows]
            assert scene.engine.capped_count == sum(any(verdict["ceil"] for verdict in pair) for pair in verdict_pairs)
            capped = Counter((each["rule"], each["path"], "down") for each in subflows if each["rate"] is not None)
            capped += Counter(
                (each["upload"]["rule"], each["path"], "up")
                for each in subflows
                if each["upload"] is not None and each["upload"]["rate"] is not None
            )
            rules = {(each["rule"], each["path"], each["direction"]): each["capped"] for each in answer["rules"]}
            assert {key: count for key, count in rules.items() if count} == capped
            landing = sum(each["landing"] for each in subflows)
            assert answer["subflows"]["pending"] >= landing


@scenario
async def test_summary_has_totals(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.connect(8, WIFI, LTE, port=40_001)
    kernel.sockets.connect(9, "10.2.0.9")
    async with running(tmp_path, CAPPED, kernel) as scene:
        (minor,) = kernel.traffic_control.classes
        kernel.class_counters[minor] = ClassCounters(5_000, 40, 2)
        answer = scene.request(query="summary")
        assert answer["connections"] == 3
        assert answer["clients"] == 2
        assert answer["subflows"] == {"active": 5, "pending": 0}
        assert [(each["path"], each["subflows"]) for each in answer["paths"]] == [("a", 2), ("b", 3)]
        (rule,) = answer["rules"]
        assert rule == {
            "policy": "p",
            "rule": "cap-a",
            "path": "a",
            "direction": "down",
            "capped": 2,
            "landing": 0,
            "rate": 5_000_000,
            "lowest_ceil": 5_000_000,
            "ceil": 5_000_000,
            "total_ceil": 5_000_000,
            "classes": 1,
            "shared_classes": 0,
            "bytes": 0,
            "share": "path",
        }
        (row,) = answer["classes"]
        assert (row["rule"], row["bytes"], row["packets"], row["drops"]) == ("cap-a", 5_000, 40, 2)
        assert answer["policy"]["rules"] == ["cap-a"]
        assert answer["guard"] == {"relaxed": 0, "interventions": 0}
        assert answer["loop"] == answer["counters"]["loop"]


@scenario
async def test_byte_totals_only_grow(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.carry(four_tuple(WIFI), 1_000_000, 70)
    async with running(tmp_path, BOTH_DIRECTIONS, kernel) as scene:
        before = scene.request(query="summary")
        assert path_of(before, "a")["bytes_sent"] == 0, "bytes from before the start were counted"
        kernel.sockets.carry(four_tuple(WIFI), 3_000, 200)
        kernel.sockets.carry(four_tuple(LTE), 10, 1)
        await sweep_and_count(scene)
        kernel.sockets.carry(four_tuple(WIFI), 500, 20)
        await sweep_and_count(scene)
        kernel.sockets.by_four_tuple.clear()
        resync(scene, later=5.0)
        assert not scene.request(query="summary")["subflows"]["active"]
        kernel.sockets.connect(8, WIFI)  # The port is used again: another socket has the same four-tuple.
        kernel.sockets.by_four_tuple[four_tuple(WIFI)] = kernel.sockets.by_four_tuple[four_tuple(WIFI)]._replace(
            cookie=99
        )
        kernel.sockets.carry(four_tuple(WIFI), 40, 4)
        resync(scene, later=10.0)
        await sweep_and_count(scene)
        after = scene.request(query="summary")
        assert {key: path_of(after, "a")[key] for key in ("bytes_sent", "bytes_received", "subflows")} == {
            "bytes_sent": 3_540,
            "bytes_received": 224,
            "subflows": 1,
        }
        assert path_of(after, "b")["bytes_sent"] == 10
        # The newest connection has one subflow, and no rule caps it.
        assert {each["direction"]: each["bytes"] for each in after["rules"]} == {"down": 3_500, "up": 220}


@scenario
async def test_connections_shorter_than_a_sweep_interval_are_counted(tmp_path: Path) -> None:
    kernel = FakeKernel()
    async with running(tmp_path, CAPPED, kernel) as scene:
        for number in range(100):
            kernel.sockets.connect(number + 1, WIFI, LTE, port=40_000 + number)
            resync(scene, later=0.0)
            for client, octets in ((WIFI, 30_000), (LTE, 70_000)):
                endpoints = four_tuple(client, 40_000 + number)
                kernel.sockets.carry(endpoints, octets, 300)
                kernel.sockets.disconnect(kernel.meter, endpoints)
            resync(scene, later=5.0)
        # This connection lasts longer, and closes after its last sample.
        kernel.sockets.connect(1000, WIFI, LTE, port=50_000)
        kernel.sockets.carry(four_tuple(WIFI, 50_000), 1_000)
        resync(scene, later=0.0)
        await sweep_and_count(scene)
        kernel.sockets.carry(four_tuple(WIFI, 50_000), 500)
        kernel.sockets.disconnect(kernel.meter, four_tuple(WIFI, 50_000))
        resync(scene, later=5.0)
        await scene.daemon._closed_sockets.report()
        answer = scene.request(query="summary")
        assert (path_of(answer, "a")["bytes_sent"], path_of(answer, "a")["bytes_received"]) == (3_001_500, 30_000)
        assert (path_of(answer, "b")["bytes_sent"], path_of(answer, "b")["bytes_received"]) == (7_000_000, 30_000)
        assert [each["bytes"] for each in answer["rules"]] == [3_001_500]
        assert kernel.meter.open
    assert not kernel.meter.open


@scenario
async def test_rules_of_earlier_policies_keep_their_bytes(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:
        kernel.sockets.carry(four_tuple(WIFI), 3_000)
        await sweep_and_count(scene)
        since = scene.request(query="summary")["policy"]["since"]
        await scene.reload(UNCAPPED)
        answer = scene.request(query="summary")
        assert [(each["rule"], each["bytes"], each["capped"], each["rate"]) for each in answer["rules"]] == [
            ("cap-a", 3_000, 0, None)
        ]
        assert answer["policy"]["since"] > since


@scenario
async def test_connections_are_filtered_and_sorted(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.connect(8, "10.2.0.8", "10.1.0.8")
    kernel.sockets.connect(9, "10.2.0.9")
    async with running(tmp_path, CAPPED, kernel) as scene:
        kernel.sockets.carry(four_tuple("10.2.0.9"), 10)
        kernel.sockets.carry(four_tuple(LTE), 30)
        await sweep_and_count(scene)

        def tokens(**request: object) -> list[int]:
            answer = scene.request(query="connections", **request)
            return [int(each["token"], 16) for each in answer["connections"]]

        assert sorted(tokens()) == [7, 8, 9]
        assert tokens(client=LTE) == [7]
        assert tokens(client="10.3.0.1") == []
        assert tokens(token="8") == [8]
        assert sorted(tokens(path="a")) == [7, 8]
        assert sorted(tokens(rule="cap-a")) == [7, 8]
        assert tokens(rule="cap-b") == []
        assert tokens(sort="bytes") == [7, 9, 8]
        assert tokens(sort="client") == [7, 8, 9]
        assert tokens(sort="client", offset=1, limit=1) == [8]
        assert scene.request(query="connections", limit=1)["total"] == 3


@scenario
async def test_connection_has_the_values_of_its_sockets(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:
        (first_answer,) = scene.request(query="connections")["connections"]
        # A rate needs two samples. On a busy machine, the sampler may already have both.
        assert not any(each["rate_sent"] for each in first_answer["subflows"])
        assert [each["share"] for each in first_answer["subflows"]] == [None, None]
        await sweep_and_count(scene)
        await asyncio.sleep(0.05)
        kernel.sockets.carry(four_tuple(WIFI), 30_000, 100)
        kernel.sockets.carry(four_tuple(LTE), 10_000)
        await sweep_and_count(scene)
        (answer,) = scene.request(query="connections")["connections"]
        wifi, lte = answer["subflows"]
        (status,) = scene.status()["connections"]
        assert {key: wifi[key] for key in status["subflows"][0]} == status["subflows"][0], (
            "the values differ from those in status"
        )
        assert (answer["client"], answer["bytes_sent"], answer["bytes_received"]) == (WIFI, 40_000, 100)
        assert (wifi["rtt"], wifi["rtt_var"], wifi["retransmits"], wifi["segments_out"]) == (0.02, 0.004, 3, 1_200)
        assert (wifi["lost"], wifi["cwnd"]) == (1, 10)
        assert 0 < lte["rate_sent"] < wifi["rate_sent"] <= 8 * 30_000 / 0.05
        assert lte["rate_received"] == 0
        assert wifi["share"] == pytest.approx(0.75, abs=0.01)


@scenario
async def test_values_that_the_kernel_does_not_report_are_null(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:

        def refuse(four_tuples: object) -> NoReturn:
            raise KernelError("look up TCP sockets: refused")

        kernel.sockets.look_up = refuse  # type: ignore[method-assign]
        (answer,) = scene.request(query="connections")["connections"]
        assert [each["rtt"] for each in answer["subflows"]] == [None, None]
        assert [each["rate"] for each in answer["subflows"]] == [5_000_000, None]


@scenario
async def test_budgets_are_sorted_by_usage(tmp_path: Path) -> None:
    policy = PATHS + (
        "rules:\n"
        "  - {name: volume, paths: [a, b], budget: {per: client, period: month,"
        " steps: [{after: 1 MB, throttle: {rate: 1 Mbit/s}}, {after: 2 MB, throttle: {rate: 64 kbit/s}}]}}\n"
    )
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI)
    kernel.sockets.connect(8, LTE)
    async with running(tmp_path, policy, kernel) as scene:
        kernel.sockets.carry(four_tuple(WIFI), 250_000)
        kernel.sockets.carry(four_tuple(LTE), 1_500_000)
        await sweep_and_count(scene)
        answer = scene.request(query="summary")["budgets"]
        assert [(each["client"], each["used"], each["volume"], each["left"]) for each in answer] == [
            (LTE, 1_500_000, 1_000_000, 0),
            (WIFI, 250_000, 1_000_000, 750_000),
        ]
        assert {(each["name"], each["rule"]) for each in answer} == {("volume", "volume")}
        assert answer[0]["until"] > scene.request(query="summary")["time"]
        (total,) = scene.request(query="summary")["budget_totals"]
        assert total == {
            "name": "volume",
            "per": "client",
            "accounts": 2,
            "used_up": 1,
            "used": 1_750_000,
            "volume": 2_000_000,
            "first_volume": 1_000_000,
            "until": answer[0]["until"],
        }


@scenario
async def test_summary_contains_each_budget_despite_many_accounts(tmp_path: Path) -> None:
    step = "period: month, steps: [{after: 1 MB, throttle: {rate: 1 Mbit/s}}]"
    policy = PATHS + (
        "rules:\n"
        f"  - {{name: many-clients, paths: [a], budget: {{per: client, {step}}}}}\n"
        f"  - {{name: one-client, paths: [b], budget: {{per: client, {step}}}}}\n"
        f"  - {{name: shared, when: {{clients: [10.9.0.0/16]}}, budget: {{per: path, {step}}}}}\n"
    )
    kernel = FakeKernel()
    count = MAX_ACCOUNTS + 50
    clients = [f"10.1.{number >> 8}.{number & 255}" for number in range(count)]
    for number, client in enumerate(clients):
        kernel.sockets.connect(number + 1, client)
    kernel.sockets.connect(1000, LTE)
    async with running(tmp_path, policy, kernel) as scene:
        for number, client in enumerate(clients):
            kernel.sockets.carry(four_tuple(client), 900_000 + 1_000 * number)
        kernel.sockets.carry(four_tuple(LTE), 5_000)
        await sweep_and_count(scene)
        answer = scene.request(query="summary")
        totals = {each["name"]: each for each in answer["budget_totals"]}
        assert list(totals) == ["many-clients", "one-client", "shared"]
        many_clients, one_client, shared = totals.values()
        assert (many_clients["accounts"], many_clients["used_up"], many_clients["volume"]) == (
            count,
            50,
            1_000_000 * count,
        )
        assert many_clients["used"] == sum(900_000 + 1_000 * number for number in range(count))
        assert (one_client["per"], one_client["accounts"], one_client["used"]) == ("client", 1, 5_000)
        assert (shared["per"], shared["accounts"], shared["used"], shared["volume"]) == ("path", 1, 0, 1_000_000)
        accounts = answer["budgets"]
        assert len(accounts) == MAX_ACCOUNTS
        assert [each["name"] for each in accounts[-2:]] == ["one-client", "shared"]
        used = [each["used"] for each in accounts]
        assert used == sorted(used, reverse=True)
        assert (
            used[: MAX_ACCOUNTS - 2]
            == sorted((900_000 + 1_000 * each for each in range(count)), reverse=True)[: MAX_ACCOUNTS - 2]
        )


@scenario
async def test_size_of_a_summary_does_not_grow_with_connections(tmp_path: Path) -> None:
    policy = PATHS + (
        "rules:\n"
        "  - {name: cap, paths: [a], throttle: {rate: 1 Mbit/s, share: connection}}\n"
        "  - {name: volume, paths: [b], budget: {per: client, period: month,"
        " steps: [{after: 1 MB, throttle: {rate: 1 Mbit/s}}]}}\n"
    )
    kernel = FakeKernel()
    count = MAX_CLASSES + 44
    for number in range(count):
        kernel.sockets.connect(number + 1, f"10.1.{number >> 8}.{number & 255}", f"10.2.{number >> 8}.{number & 255}")
    async with running(tmp_path, policy, kernel) as scene:
        await until(lambda: len(kernel.traffic_control.classes) == count)
        answer = scene.request(query="summary")
        assert answer["connections"] == answer["clients"] == answer["rules"][0]["capped"] == count
        assert (len(answer["classes"]), answer["class_counts"]) == (MAX_CLASSES, {"down": count, "up": 0})
        assert len(answer["budgets"]) == MAX_ACCOUNTS
        assert (len(answer["paths"]), len(answer["rules"])) == (2, 1)
