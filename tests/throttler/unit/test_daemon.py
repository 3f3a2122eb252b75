# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the whole daemon with a fake kernel: start, reloads, status and stop."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_kernel import FakeKernel, four_tuple
from pydantic import TypeAdapter

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.config.settings import load_settings
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime import daemon as daemon_module
from mptcp_throttler.runtime import engine as engine_module
from mptcp_throttler.runtime.daemon import Daemon
from mptcp_throttler.runtime.decisions import MAX_AT_ONCE
from mptcp_throttler.runtime.engine import Engine
from mptcp_throttler.shaping import cap as cap_module
from mptcp_throttler.shaping.model import FIRST_MINOR, NO_LIMIT
from mptcp_throttler.views.answers import ANSWERS, ErrorAnswer

PATHS = """\
version: 1
paths:
  a: {clients: [10.1.0.0/16]}
  b: {clients: [10.2.0.0/16]}
"""
UNCAPPED = PATHS + "rules: []\n"
CAPPED = PATHS + "rules: [{name: cap-a, paths: [a], throttle: {rate: 5 Mbit/s}}]\n"
BOTH_DIRECTIONS = CAPPED.replace("paths: [a],", "paths: [a], direction: both,")


@dataclass
class Scene:
    """A running daemon."""

    kernel: FakeKernel
    daemon: Daemon
    policy: list[str]

    @property
    def engine(self) -> Engine:
        return self.daemon._engine

    async def reload(self, policy: str) -> None:
        self.policy[0] = policy
        await self.daemon._reload()

    def status(self) -> dict[str, Any]:
        return self.request(query="status")

    def request(self, **arguments: object) -> dict[str, Any]:
        """Return the daemon's answer to a query. Check that the answer conforms to its JSON Schema."""
        text = b"".join(self.daemon._answer(json.dumps(arguments).encode()))
        document: dict[str, Any] = json.loads(text)
        answer = ErrorAnswer if "error" in document else ANSWERS[str(arguments["query"])]
        _adapter(answer).validate_json(text)
        return document


@cache
def _adapter(answer: Any) -> TypeAdapter[Any]:
    """Return the validator of an answer. Its creation takes much longer than its use."""
    return TypeAdapter(answer)


@asynccontextmanager
async def running(
    tmp_path: Path, policy: str, kernel: FakeKernel | None = None, settings_text: str = ""
) -> AsyncIterator[Scene]:
    """Run a daemon until the end of the block."""
    text = f"interfaces: [w0]\npolicy: p.yaml\nstate_directory: {tmp_path}\nstatus_socket: {tmp_path}/s\n"
    text += f"ledger: {tmp_path}/ledger.sqlite\n{settings_text}"
    settings = load_settings(text, str(tmp_path / "throttler.yaml"))
    policy_text = [policy]
    kernel = kernel or FakeKernel()
    daemon = Daemon(settings, load_policy(policy, "p"), lambda: load_policy(policy_text[0], "p"), kernel.access)
    serving = asyncio.create_task(daemon.serve())
    try:
        await until(lambda: serving.done() or (tmp_path / "s").exists())
        if serving.done():
            serving.result()
        yield Scene(kernel, daemon, policy_text)
    finally:
        daemon.stop.set()
        await serving


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.005)


def scenario(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    """Run an async test."""

    def run_test(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))  # type: ignore[arg-type]

    return run_test


@scenario
async def test_start_times_are_the_same_in_each_answer(tmp_path: Path) -> None:
    """Defect: each answer read both clocks again, so the start time varied, as if the daemon had been restarted."""
    delays = iter((0.0, 0.0005) * 20)
    async with running(tmp_path, CAPPED) as scene:
        with pytest.MonkeyPatch.context() as patched:
            jittering_time = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() - next(delays))
            for module in (daemon_module, engine_module):
                patched.setattr(module, "time", jittering_time)
            status = [scene.request(query="summary") for _ in range(4)]
        assert len({(each["started"], each["policy"]["since"]) for each in status}) == 1


@scenario
async def test_stop_with_pending_transitions_does_not_apply_the_plan_repeatedly(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    async with running(tmp_path, CAPPED, kernel) as scene:
        planner = scene.engine.downloads.planner
        planner._mark_changed(list(planner.members))
        assert planner.changed_subflows
        scene.engine.socket_limiter.can_pace = False
        loop, scheduled = asyncio.get_running_loop(), list[object]()
        call_soon = loop.call_soon

        def record_callback(callback: Callable[..., object], *args: Any, **context: Any) -> asyncio.Handle:
            scheduled.append(callback)
            return call_soon(callback, *args, **context)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(loop, "call_soon", record_callback)
            scene.engine.apply_plan()
        scene.engine.socket_limiter.can_pace = True
        assert scene.engine.apply_plan not in scheduled


@scenario
async def test_connections_from_before_the_start_are_capped_and_shown(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    async with running(tmp_path, CAPPED, kernel) as scene:
        assert set(kernel.netfilter.entries) == {four_tuple("10.1.0.1")}
        (connection,) = scene.status()["connections"]
        assert connection["token"] == "00000007"
        first, second = connection["subflows"]
        assert (first["rate"], second["rate"]) == (5_000_000, None)
        assert "rule cap-a caps path a" in first["reason"]
        assert [limit.rate for limit in kernel.pacing.limits.values()] == [5_000_000]
    assert not kernel.netfilter.entries
    assert kernel.pacing.closed
    assert set(kernel.pacing.limits.values()) == {NO_LIMIT}


@scenario
async def test_caps_begin_immediately_if_sockets_cannot_be_paced(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.pacing = None  # type: ignore[assignment]
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    kernel.sockets.connect(8, "10.1.0.2", "10.2.0.2")
    async with running(tmp_path, UNCAPPED, kernel) as scene:
        kernel.sockets.fill(four_tuple("10.1.0.1"))
        await scene.reload(CAPPED)
        await until(lambda: set(kernel.netfilter.entries) == {four_tuple("10.1.0.1"), four_tuple("10.1.0.2")})
        assert (scene.status()["paced"], scene.engine.socket_limiter.watches_any()) == (False, False)
        assert await scene.daemon._drift.verify()
        await scene.reload(UNCAPPED)
        await until(lambda: not kernel.netfilter.entries)


@scenario
async def test_subflow_at_another_port_is_not_shown_as_capped(tmp_path: Path) -> None:
    """Defect: the status showed a rate for this subflow, which had no cap."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1", "10.1.0.2")
    original = four_tuple("10.1.0.2")
    other_port = original._replace(local_port=4000)
    kernel.sockets.by_four_tuple[other_port] = kernel.sockets.by_four_tuple.pop(original)._replace(
        four_tuple=other_port
    )
    async with running(tmp_path, CAPPED, kernel) as scene:
        assert set(kernel.netfilter.entries) == {four_tuple("10.1.0.1")}
        (connection,) = scene.status()["connections"]
        status = {each["local"]: (each["rate"], each["reason"]) for each in connection["subflows"]}
        assert status["10.77.0.1:4000"] == (None, "its local port 4000 is not among listen_ports")
        (explained,) = scene.request(query="explain", token="00000007")["connections"]
        (reason,) = (each["reason"] for each in explained["subflows"] if each["local"] == "10.77.0.1:4000")
        assert reason == "its local port 4000 is not among listen_ports"


@scenario
async def test_connections_of_a_client_are_limited_to_its_share(tmp_path: Path) -> None:
    """Defect: after one client had filled the table, later connections had no cap."""
    kernel = FakeKernel()
    for number in range(5):
        kernel.sockets.connect(1 + number, "10.1.0.1", port=40_000 + number)
    kernel.sockets.connect(9, "10.1.0.2")
    capped = CAPPED.replace("throttle:", "lift_last: false, when: {min_subflows: 1}, throttle:")
    async with running(tmp_path, capped, kernel, "max_connections: 6\n") as scene:
        status = [each["token"] for each in scene.status()["connections"]]
        assert sorted(status) == ["00000001", "00000002", "00000003", "00000009"]
        tracked = {
            each.four_tuple for connection in scene.engine.tracker.connections.values() for each in connection.subflows
        }
        assert set(kernel.sockets.by_four_tuple) == tracked, "not exactly the connections without a cap were closed"
        assert {each.remote for each in kernel.netfilter.entries} == {b"\x0a\x01\0\1", b"\x0a\x01\0\2"}


@scenario
async def test_dry_run_closes_no_connection(tmp_path: Path) -> None:
    kernel = FakeKernel()
    for number in range(5):
        kernel.sockets.connect(1 + number, "10.1.0.1", port=40_000 + number)
    async with running(tmp_path, CAPPED + "dry_run: true\n", kernel, "max_connections: 6\n") as scene:
        assert (len(scene.status()["connections"]), len(kernel.sockets.by_four_tuple)) == (3, 5)


@scenario
async def test_reload_that_caps_thousands_lets_the_event_loop_run(tmp_path: Path) -> None:
    await check_pauses_of_reload(1_000, tmp_path, max_decisions=MAX_AT_ONCE)


def test_reload_lets_the_event_loop_run_on_a_slow_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each decision takes longer than the time limit of a slice."""
    monkeypatch.setattr("mptcp_throttler.runtime.decisions.SLICE_SECONDS", -1.0)

    @scenario
    async def test(tmp_path: Path) -> None:
        await check_pauses_of_reload(200, tmp_path, max_decisions=1)

    test(tmp_path)


async def check_pauses_of_reload(count: int, tmp_path: Path, max_decisions: int) -> None:
    """Reload a policy that caps *count* connections. At most *max_decisions* may follow each other without a pause."""
    kernel = FakeKernel()
    for number in range(count):
        host = f"{number >> 8}.{number & 255}"
        kernel.sockets.connect(number + 1, f"10.1.{host}", f"10.2.{host}")
    async with running(tmp_path, UNCAPPED, kernel) as scene:
        decisions, since_last_pause, longest_run = scene.engine.decisions, 0, 0
        decide = decisions._decide

        def count_decision(token: int, now: float) -> None:
            nonlocal since_last_pause, longest_run
            since_last_pause += 1
            longest_run = max(longest_run, since_last_pause)
            decide(token, now)

        async def count_pauses() -> None:
            nonlocal since_last_pause
            while True:
                await asyncio.sleep(0)
                since_last_pause = 0

        decisions._decide = count_decision  # type: ignore[method-assign]
        pauses = asyncio.create_task(count_pauses())
        await scene.reload(CAPPED)
        await until(lambda: len(kernel.netfilter.entries) == count)
        pauses.cancel()
        assert 0 < longest_run <= max_decisions, "too many decisions in a row, without other tasks in between"


@scenario
async def test_event_loop_runs_between_a_new_policy_and_its_decisions(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    async with running(tmp_path, UNCAPPED, kernel) as scene:
        decisions, steps = scene.engine.decisions, list[str]()
        set_policy, decide = decisions.set_policy, decisions._decide

        def record_policy(policy: Policy) -> None:
            set_policy(policy)
            steps.append("policy")
            asyncio.get_running_loop().call_soon(steps.append, "other callback")

        def record_decision(token: int, now: float) -> None:
            steps.append("decided")
            decide(token, now)

        decisions.set_policy, decisions._decide = record_policy, record_decision  # type: ignore[method-assign]
        await scene.reload(CAPPED)
        assert steps[:3] == ["policy", "other callback", "decided"]


@pytest.mark.parametrize("name", ["daemon.rest_when_busy", "daemon.collect_garbage"])
def test_background_tasks_are_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    started = list[str]()

    async def record_start() -> None:
        started.append(name)
        await asyncio.sleep(math.inf)

    monkeypatch.setattr(f"mptcp_throttler.runtime.{name}", record_start)

    @scenario
    async def scene(tmp_path: Path) -> None:
        async with running(tmp_path, CAPPED):
            await until(lambda: started)

    scene(tmp_path)


@scenario
async def test_reload_that_the_kernel_refuses_changes_nothing(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")

    async def refuse() -> None:
        raise KernelError("create the IFB device: no")

    kernel.upload_traffic_control.prepare = refuse  # type: ignore[method-assign]
    async with running(tmp_path, UNCAPPED, kernel) as scene:
        await scene.reload(BOTH_DIRECTIONS)
        assert scene.status()["policy"]["rules"] == []
        assert not kernel.netfilter.entries
        await scene.reload(CAPPED)
        await until(lambda: kernel.netfilter.entries)


@scenario
async def test_refused_start_raises_the_error(tmp_path: Path) -> None:
    kernel = FakeKernel()

    async def refuse() -> None:
        raise KernelError("take the root: no")

    kernel.traffic_control.prepare = refuse  # type: ignore[method-assign]
    with pytest.raises(KernelError, match="take the root: no"):
        async with running(tmp_path, CAPPED, kernel):
            pass


@scenario
async def test_status_query_decides_nothing(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    async with running(tmp_path, CAPPED, kernel) as scene:
        before = dict(scene.engine.decisions.verdicts)
        scene.status()
        assert scene.engine.decisions.verdicts == before
        assert all(
            new is old for new, old in zip(scene.engine.decisions.verdicts.values(), before.values(), strict=True)
        )


@scenario
async def test_plain_tcp_is_classified_only_while_a_rule_caps_plain_tcp(tmp_path: Path) -> None:
    kernel, conditions = FakeKernel(), "paths: [a], always: true, plain_tcp: cap,"
    kernel.nftables.table = "table of a killed daemon"
    capped = CAPPED.replace("paths: [a],", conditions)
    async with running(tmp_path, CAPPED, kernel) as scene:
        assert not kernel.nftables.table
        await scene.reload(capped)
        assert f"4d50:{FIRST_MINOR:x}" in kernel.nftables.table
        original, kernel.nftables.table = kernel.nftables.table, "table changed by another program"
        await scene.daemon._plain_tcp.verify()
        assert kernel.nftables.table == original
        await scene.reload("dry_run: true\n" + capped)
        assert not kernel.nftables.table
        kernel.nftables.refuses = True
        await scene.reload(capped)
        assert not kernel.nftables.table
        kernel.nftables.refuses = False
        await scene.daemon._plain_tcp.verify()
        assert kernel.nftables.table, "the refused change was not retried"
    assert not kernel.nftables.table


@scenario
async def test_uploads_are_shaped_only_while_a_rule_caps_uploads(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    async with running(tmp_path, CAPPED, kernel) as scene:
        assert not scene.status()["uploads_shaped"]
        await scene.reload(BOTH_DIRECTIONS)
        await until(lambda: kernel.upload_netfilter.entries)
        assert scene.status()["uploads_shaped"]
        await scene.reload(CAPPED)
        assert not scene.status()["uploads_shaped"]
        assert not kernel.upload_netfilter.entries


@pytest.mark.parametrize("stops", [False, True], ids=["while it runs", "at the stop"])
def test_objects_that_the_kernel_refuses_to_remove_are_removed_later(tmp_path: Path, stops: bool) -> None:
    """Defect: the kernel objects for uploads and their entries remained, even after a stop."""
    kernel = FakeKernel()

    async def scenario() -> None:
        async with running(tmp_path, BOTH_DIRECTIONS, kernel) as scene:
            kernel.upload_netfilter.refuses_removal = True
            await scene.reload(CAPPED)
            assert not await scene.daemon._drift.verify()
            assert "remove sets" not in kernel.upload_netfilter.log
            kernel.upload_netfilter.refuses_removal = False
            if not stops:
                assert await scene.daemon._drift.verify()
                assert kernel.upload_netfilter.log[-1] == "remove sets"
                await scene.reload(BOTH_DIRECTIONS)
                assert kernel.upload_netfilter.log[-1] == "make sets"
        assert kernel.upload_netfilter.log[-1] == "remove sets"

    asyncio.run(scenario())


@pytest.mark.parametrize("stops", [False, True], ids=["while it runs", "at the stop"])
def test_objects_of_a_failed_preparation_are_removed_later(tmp_path: Path, stops: bool) -> None:
    """Defect: if the kernel also refused the removal, the objects were never removed, even after a stop."""
    kernel = FakeKernel()

    async def refuse() -> None:
        raise KernelError("create the IFB device: no")

    async def scenario() -> None:
        async with running(tmp_path, UNCAPPED, kernel) as scene:
            prepare, kernel.upload_traffic_control.prepare = kernel.upload_traffic_control.prepare, refuse  # type: ignore[method-assign]
            kernel.upload_netfilter.refuses_removal = True
            kernel.upload_netfilter.log.clear()
            await scene.reload(BOTH_DIRECTIONS)
            assert await scene.daemon._drift.verify()
            assert not kernel.upload_netfilter.log
            kernel.upload_netfilter.refuses_removal = False
            if not stops:
                assert await scene.daemon._drift.verify()
                assert kernel.upload_netfilter.log[-1] == "remove sets"
                kernel.upload_traffic_control.prepare = prepare  # type: ignore[method-assign]
                await scene.reload(BOTH_DIRECTIONS)
                assert kernel.upload_netfilter.log[-1] == "make sets"
        assert kernel.upload_netfilter.log[-1] == "remove sets"

    asyncio.run(scenario())


@scenario
async def test_comparison_during_a_preparation_removes_nothing(tmp_path: Path) -> None:
    """Defect: after a failed preparation, the comparison removed the next one's objects, and no upload was capped."""
    kernel, compared = FakeKernel(), list[asyncio.Task[bool]]()

    async def refuse() -> None:
        raise KernelError("create the IFB device: no")

    async def compare_concurrently() -> None:
        compared.append(asyncio.create_task(scene.daemon._drift.verify()))
        for _ in range(20):
            await asyncio.sleep(0)
        await prepare()

    async with running(tmp_path, UNCAPPED, kernel) as scene:
        prepare, kernel.upload_traffic_control.prepare = kernel.upload_traffic_control.prepare, refuse  # type: ignore[method-assign]
        kernel.upload_netfilter.refuses_removal = True
        await scene.reload(BOTH_DIRECTIONS)
        kernel.upload_netfilter.refuses_removal = False
        kernel.upload_traffic_control.prepare = compare_concurrently  # type: ignore[method-assign]
        await scene.reload(BOTH_DIRECTIONS)
        assert await compared[0]
        assert scene.engine.uploads.is_installed
        assert kernel.upload_netfilter.log[-1] == "make sets"


@scenario
async def test_status_socket_sends_its_answer_in_pieces(tmp_path: Path) -> None:
    kernel = FakeKernel()
    for number in range(500):
        kernel.sockets.connect(number + 1, f"10.1.{number >> 8}.{number & 255}", port=50_000)
    async with running(tmp_path, UNCAPPED, kernel):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        status = json.loads(await reader.read())
        writer.close()
        assert len(status["connections"]) == 500
        assert status["counters"]["loop"].keys() == {"longest", "recent", "late"}
        assert status["now"] <= time.time()


@scenario
async def test_stop_during_a_reload_restores_the_root_qdisc(tmp_path: Path) -> None:
    kernel = FakeKernel()
    is_reading = asyncio.Event()

    async def block_forever() -> tuple[list[str], dict[Any, Any]]:
        is_reading.set()
        await asyncio.Event().wait()
        return [], {}

    async with running(tmp_path, UNCAPPED, kernel) as scene:
        kernel.upload_traffic_control.read = block_forever  # type: ignore[method-assign]
        scene.policy[0] = BOTH_DIRECTIONS
        scene.daemon.reload()
        await is_reading.wait()
    assert kernel.upload_traffic_control.log[-1] == "restore root qdisc"


@scenario
async def test_status_is_answered_if_sockets_cannot_be_listed(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    async with running(tmp_path, CAPPED, kernel) as scene:

        def refuse() -> Any:
            raise KernelError("list TCP sockets: no")

        kernel.sockets.batches = refuse  # type: ignore[method-assign]
        scene.engine.sampler.latest_time = float("-inf")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        status = json.loads(await reader.read())
        writer.close()
        assert len(status["connections"]) == 1


def test_policy_comes_into_force_although_all_classes_are_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Defect: the daemon ended with a traceback, also at each later start with that many connections."""
    monkeypatch.setattr(cap_module, "LAST_MINOR", FIRST_MINOR)

    async def scenario() -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(1, "10.1.0.1", "10.2.0.1")
        rules = "{name: b, paths: [b], throttle: {rate: 5 Mbit/s, share: client}}"
        async with running(tmp_path, f"{PATHS}rules: [{rules}]\n", kernel) as scene:
            before = dict(kernel.netfilter.entries)
            assert len(before) == 1
            rules_text = CAPPED.replace("[{", f"[{rules}, {{")
            await scene.reload(rules_text.replace("paths: [a]", "when: {min_subflows: 3}, paths: [a]"))
            assert kernel.netfilter.entries == before
            assert scene.status()["policy"]["rules"] == ["b", "cap-a"]

    asyncio.run(scenario())
    assert [each for each in caplog.messages if "1 caps are in use" in each]
