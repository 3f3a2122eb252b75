# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for budgets: the ledger counts each byte exactly once, and the daemon writes it in a separate thread."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import metering
import pytest
from examples import examples
from fake_kernel import FakeMeter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_values import replace
from sampling import observe_all
from short_budgets import POLICY, policy, timestamp

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.cli.budgets import ledger_accounts
from mptcp_throttler.mptcp.model import ClosedSocket, Connection, FourTuple, KernelSubflow, Subflow
from mptcp_throttler.policy.budget import Account, Usage
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.runtime.budgets import Budgets, ClosedSockets
from mptcp_throttler.stages.budget import CHECK_SECONDS, BudgetStage
from mptcp_throttler.stages.stage import Samples
from mptcp_throttler.storage import BOOT_ID, Ledger
from mptcp_throttler.telemetry.traffic import Traffic

FOUR_TUPLE = FourTuple(b"\x0a\x4d\x08\x02", 3128, bytes((10, 77, 1, 2)), 40000)
BOOT = BOOT_ID.read_text().strip()


def usage(added: dict[Account, int], counters: dict[int, tuple[int, int]] | None = None, *closed: int) -> Usage:
    return Usage(added, counters or {}, frozenset(closed))


def budgets_of(
    path: Path,
    stage: BudgetStage,
    decided: list[int],
    listed: Callable[[float], set[int] | None],
    clock: Callable[[], float] = time.time,
) -> Budgets:
    """Return the budgets of an engine that appends connections that need a new decision to *decided*."""
    engine: Any = SimpleNamespace(
        settings=SimpleNamespace(ledger=path),
        budget_stage=stage,
        decisions=SimpleNamespace(decide=decided.extend),
        sampler=SimpleNamespace(cookies=listed),
    )
    return Budgets(engine, clock)


class Host:
    """One client with one subflow at a time, its socket, and daemons that start and stop."""

    def __init__(self, path: Path, text: str = "period: day") -> None:
        self.path = path
        self.policy = policy(text)
        self.cookie, self.acked, self.received, self.token = 1, 0, 0, 1
        self.meter = FakeMeter()
        self.now = timestamp("2026-11-21 12:00")
        self.clock = 0.0
        self.decided: list[int] = []

    async def start(self) -> None:
        """Start a daemon, after the previous daemon has ended."""
        self.decided.clear()
        self.stage = BudgetStage()
        self.budgets = budgets_of(self.path, self.stage, self.decided, lambda _: {self.cookie}, lambda: self.now)
        self.closed = ClosedSockets(lambda: self.meter, self.budgets, Traffic(lambda: self.clock, lambda: 0.0))
        await self.budgets.prepare(self.policy)
        await self.closed.prepare(self.policy)
        self.stage.set_policy(self.policy)
        await self.budgets.commit(self.policy)
        self.decide()

    def kill(self) -> None:
        """Simulate a kill: queued work of the ledger thread finishes, nothing else is saved."""
        if self.budgets._ledger is not None:
            self.budgets._thread.submit(self.budgets._ledger.close).result()
        self.budgets._thread.shutdown(wait=False)

    def decide(self) -> None:
        subflow = Subflow(FOUR_TUPLE, True, 0, 0, False, None, self.now)
        connection = Connection(self.token, (subflow,), self.now)
        (self.verdict,) = self.stage.apply(connection, evaluate(self.policy, connection, self.now), self.now)

    def sample(self) -> None:
        self.clock += 1
        socket = KernelSubflow(
            self.token, FOUR_TUPLE, True, 0, 0, False, self.clock, self.acked, self.received, cookie=self.cookie
        )
        self.decided += observe_all(self.stage, Samples(self.clock, {FOUR_TUPLE: socket}, True)).changed

    async def count(self, seconds: float = 1.0) -> None:
        self.sample()
        self.clock += seconds
        await self.tick()

    async def tick(self) -> None:
        await self.closed.report()
        await self.budgets.tick(self.clock)

    async def stop(self) -> None:
        """Stop the daemon in an orderly way, so that it writes the last counts."""
        await self.closed.close()
        await self.budgets.close()

    def reconnect(self) -> None:
        """Close the socket and open another with the same addresses and ports."""
        closed = ClosedSocket(
            self.cookie, (FOUR_TUPLE.remote, FOUR_TUPLE.remote_port, FOUR_TUPLE.local_port), self.acked, self.received
        )
        self.meter.waiting.append(closed)
        self.stage.forget(self.token)
        self.cookie, self.token, self.acked, self.received = self.cookie + 1, self.token + 1, 0, 0
        self.decide()

    def used_bytes(self) -> int:
        ledger = Ledger(self.path)
        ((total,),) = ledger._database.execute("SELECT coalesce(sum(octets), 0) FROM used").fetchall()
        ledger.close()
        return int(total)


def play_and_kill(path: Path, play: Callable[[Host], Coroutine[Any, Any, None]], text: str = "period: day") -> Host:
    """Start a daemon, run *play*, and kill the daemon. Return the host."""
    host = Host(path, text)

    async def play_on_host() -> None:
        await host.start()
        try:
            await play(host)
        finally:
            host.kill()

    asyncio.run(play_on_host())
    return host


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lib" / "ledger.sqlite"


def test_counted_bytes_are_in_the_ledger_within_a_second(path: Path) -> None:
    async def play(host: Host) -> None:
        host.acked, host.received = 2_000_000, 10
        await host.count()
        assert host.used_bytes() == 2_000_010
        assert host.decided == [1]
        await host.start()
        assert host.verdict.throttle is not None, "the next daemon does not know the usage"

    play_and_kill(path, play)


def test_event_loop_thread_never_uses_the_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the event loop's thread read the whole table once a second."""
    threads: dict[str, set[str]] = {}
    for name in ("__init__", "write", "read_usage", "counters", "prune", "changed_by_others", "close"):
        original = getattr(Ledger, name)

        def record_thread(*arguments: Any, _name: str = name, _call: Any = original, **keywords: Any) -> Any:
            threads.setdefault(_name, set()).add(threading.current_thread().name)
            return _call(*arguments, **keywords)

        monkeypatch.setattr(Ledger, name, record_thread)

    async def play(host: Host) -> None:
        host.acked = 1000
        await host.count()
        before = dict(reads)
        await host.count()
        await host.count()
        assert reads == before, "the ledger was read although no other process wrote"
        await host.stop()

    reads: dict[str, int] = {}
    used = Ledger.read_usage

    def count_read(self: Ledger, periods: Any) -> Any:
        reads["used"] = reads.get("used", 0) + 1
        return used(self, periods)

    monkeypatch.setattr(Ledger, "read_usage", count_read)
    play_and_kill(path, play)
    assert set.union(*threads.values()) == {"ledger_0"}


def test_only_current_periods_are_read_and_old_periods_are_deleted(path: Path) -> None:
    """Defect: old periods stayed in memory, and were removed only at a start."""
    old, past = Account("lte", "10.77.1.2", 5), Account("lte", "10.77.1.2", int(timestamp("2026-11-20 00:00")))

    async def play(host: Host) -> None:
        ledger = Ledger(path)
        ledger.write(BOOT, usage({old: 3_000_000, past: 3_000_000}))
        await host.start()
        assert host.verdict.throttle is None
        await host.count()
        periods = [("lte", old.start), ("lte", past.start)]
        assert ledger.read_usage(periods) == {old: 3_000_000, past: 3_000_000}
        host.now += 86_400
        await host.count(86_400 - 1)
        assert ledger.read_usage(periods) == {past: 3_000_000}
        ledger.write(BOOT, usage({old: 1}))
        host.now += 3600
        await host.count(3600 - 1)
        assert old in ledger.read_usage(periods)
        host.now += 86_400 - 3600
        await host.count(86_400 - 3600 - 1)
        assert old not in ledger.read_usage(periods)
        ledger.close()

    play_and_kill(path, play)


def test_usage_read_for_a_new_budget_is_kept_at_the_end_of_a_period(path: Path) -> None:
    """Defect: if the old policy's period ended after the ledger was read, the new budget's accounts were deleted."""

    async def play(host: Host) -> None:
        host.now = timestamp("2026-11-22 00:00") + 0.3
        ledger = Ledger(path)
        ledger.write(BOOT, usage({Account("lte", "10.77.1.2", int(timestamp("2026-11-22 00:00"))): 3_000_000}))
        ledger.close()
        other_policy = load_policy((POLICY % "period: day").replace("name: lte", "name: other"), "p")
        host.stage.set_policy(other_policy)
        host.stage.advance(timestamp("2026-11-21 12:00"), 0.0)
        await host.budgets.prepare(host.policy)
        host.stage.set_policy(host.policy)
        await host.budgets.commit(host.policy)
        host.decide()
        assert host.verdict.throttle is not None

    play_and_kill(path, play)


def test_reset_by_another_process_is_noticed(path: Path) -> None:
    async def play(host: Host) -> None:
        host.acked = 2_000_000
        await host.count()
        second_ledger = Ledger(path, create=False)
        ((account, row),) = ledger_accounts(second_ledger, host.policy, host.now).items()
        assert (row["used"], row["step"], row["next_step"]) == (2_000_000, 1_000_000, 3_000_000)
        assert second_ledger.reset([account]) == 1
        assert second_ledger.reset([account]) == 0
        host.decided.clear()
        host.acked += 100
        await host.count()
        assert host.decided == [1]
        host.decide()
        assert host.verdict.throttle is None
        assert [each["used"] for each in ledger_accounts(second_ledger, host.policy, host.now).values()] == [100]
        second_ledger.close()

    play_and_kill(path, play)


def test_failed_write_is_repeated_without_loss_or_double_count(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(host: Host) -> None:
        write, failures = Ledger.write, [True, True, False]

        def fail_to_write(ledger: Ledger, boot: str, usage: Usage) -> None:
            if failures.pop(0):
                raise KernelError("disk full")
            write(ledger, boot, usage)

        monkeypatch.setattr(Ledger, "write", fail_to_write)
        for error in ("disk full", "disk full", None):
            host.acked += 1000
            await host.count()
            assert host.budgets.write_error == error

    with caplog.at_level(logging.INFO):
        assert play_and_kill(path, play).used_bytes() == 3000
    assert [record.message for record in caplog.records] == [
        "disk full; budget usage will be written later",
        f"ledger {path}: writing budget usage works again",
    ]


def test_policy_with_a_budget_is_refused_while_writing_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the new policy would read a ledger without the counts that could not be written."""

    async def play(host: Host) -> None:
        def fail_to_write(ledger: Ledger, boot: str, usage: Usage) -> None:
            raise KernelError("disk full")

        monkeypatch.setattr(Ledger, "write", fail_to_write)
        host.acked = 1000
        await host.count()
        with pytest.raises(KernelError, match="disk full"):
            await host.budgets.prepare(host.policy)
        await host.budgets.prepare(replace(host.policy, rules=[], budgets={}))
        monkeypatch.undo()
        await host.budgets.prepare(host.policy)
        assert host.used_bytes() == 1000

    play_and_kill(path, play)


def test_write_interrupted_by_the_stop_counts_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(host: Host) -> None:
        write, started, may_continue = Ledger.write, threading.Event(), threading.Event()

        def write_slowly(ledger: Ledger, boot: str, usage: Usage) -> None:
            started.set()
            may_continue.wait(10)
            write(ledger, boot, usage)

        monkeypatch.setattr(Ledger, "write", write_slowly)
        host.acked = 1000
        counting = asyncio.create_task(host.count())
        await asyncio.get_running_loop().run_in_executor(None, started.wait)
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        may_continue.set()
        host.acked += 1
        host.sample()
        await host.stop()

    assert play_and_kill(path, play).used_bytes() == 1001


def test_many_counters_are_written_less_often_but_closed_sockets_immediately(path: Path) -> None:
    async def play(host: Host) -> None:
        await host.count()
        host.acked = 1000
        host.sample()
        host.stage.sockets.counters |= dict.fromkeys(range(10**6, 10**6 + 20_000), (0, 0))
        host.stage.sockets.dirty |= set(range(10**6, 10**6 + 20_000))
        for _ in range(3):
            host.clock += 1
            await host.tick()
            assert host.used_bytes() == 0
        host.reconnect()
        host.clock += 0.1
        await host.tick()
        assert host.used_bytes() == 1000

    play_and_kill(path, play)


def test_policy_without_budgets_opens_no_ledger(path: Path) -> None:
    async def play() -> None:
        budgets = budgets_of(path, BudgetStage(), [], lambda _: None)
        await budgets.prepare(load_policy("version: 1\nrules: []\n", "p"))
        await budgets.close()

    asyncio.run(play())
    assert not path.parent.exists()


@given(steps=st.lists(st.sampled_from(["send", "count", "kill", "stop", "reconnect", "period"]), max_size=30))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_byte_counts_exactly_once_across_kills_and_stops(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    sent = 0

    async def play(host: Host) -> None:
        nonlocal sent
        for step in steps:
            if step == "send":
                host.acked, host.received, sent = host.acked + 1000, host.received + 10, sent + 1010
            elif step == "count":
                await host.count()
            elif step == "kill":
                host.kill()
                await host.start()
            elif step == "stop":
                host.sample()
                await host.stop()
                await host.start()
            elif step == "reconnect":
                host.reconnect()
                await host.count()
            else:
                host.now += 86_400
        await host.count()

    assert play_and_kill(tmp_path_factory.mktemp("lib") / "ledger.sqlite", play).used_bytes() == sent


def test_socket_that_was_unmetered_for_a_long_time_is_not_counted_again(path: Path) -> None:
    """Defect: ten minutes after the start, the ledger forgot the socket although it still existed."""

    async def play(host: Host) -> None:
        host.kill()
        host.policy = metering.policy(metering.HOURS)
        await host.start()
        host.acked = 4000
        await host.count()
        host.now = timestamp("2026-11-21 19:00")
        host.kill()
        await host.start()
        for _ in range(3):
            await host.count(CHECK_SECONDS + 1)
        host.now = timestamp("2026-11-22 09:00")
        host.kill()
        await host.start()
        host.acked += 100
        await host.count()

    assert play_and_kill(path, play).used_bytes() == 4100


def test_counters_of_another_boot_are_ignored(path: Path) -> None:
    ledger = Ledger(path)
    account = Account("lte", "", 0)
    ledger.write("one", usage({account: 5}, {7: (5, 0)}))
    assert ledger.counters("two") == {}
    ledger.write("two", usage({account: 5}, {7: (5, 0), 8: (1, 2)}))
    ledger.write("two", usage({}, {}, 7))
    assert ledger.counters("two") == {8: (1, 2)}
    assert ledger.counters("one") == {}
    assert ledger.read_usage([("lte", 0)]) == {account: 10}
    assert ledger.read_usage([("lte", 1), ("other", 0)]) == {}


def permission_bits(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_read_the_ledger(path: Path) -> None:
    """Defect: every user could read the ledger."""
    previous_umask = os.umask(0)
    try:
        ledger = Ledger(path)
        ledger.write("boot", usage({Account("lte", "", 0): 5}))
        files = sorted(path.parent.iterdir())
        assert [each.name for each in files] == ["ledger.sqlite", "ledger.sqlite-shm", "ledger.sqlite-wal"]
        assert {permission_bits(each) for each in files} == {0o600}
        assert permission_bits(path.parent) == 0o700
        for each in (*files, path.parent):
            each.chmod(0o755)
        second_ledger = Ledger(path)
        assert {permission_bits(each) for each in files} == {0o600}
        assert permission_bits(path.parent) == 0o755, "the mode of an existing directory was changed"
        second_ledger.close()
        ledger.close()
    finally:
        os.umask(previous_umask)


def test_file_that_is_not_a_database_is_reported(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("not a database, but long enough to be read" * 40)
    with pytest.raises(KernelError, match="file is not a database"):
        Ledger(path)
    with pytest.raises(KernelError, match="file is not a database"):
        asyncio.run(Host(path).start())
    with pytest.raises(KernelError, match="there is no ledger yet"):
        Ledger(path.with_name("none"), create=False)


SHARED = """\
version: 1
paths: {lte: {backup: true}, wifi: {backup: false}}
budgets: {month: {period: month, per: path, steps: [{after: 1 MB, throttle: none}]}}
rules:
  - {name: a, paths: [lte], budget: month}
  - {name: b, paths: [wifi], budget: month}
"""


def test_budget_of_several_rules_is_listed_once(path: Path) -> None:
    ledger = Ledger(path)
    (row,) = ledger_accounts(ledger, load_policy(SHARED, "p"), timestamp("2026-11-21 12:00")).values()
    ledger.close()
    assert [row[key] for key in ("budget", "rule", "rules", "client", "used")] == ["month", "a", ["a", "b"], "", 0]
