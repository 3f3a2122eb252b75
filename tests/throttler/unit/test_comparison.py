"""When everything of ours is compared with the kernel: by the clock, upon what others change, and how patiently."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fake_kernel import FakeKernel, four_tuple
from test_daemon import CAPPED, running, until

from mptcp_throttler.kernel.notices import UNKNOWN, Change
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.runtime import comparison
from mptcp_throttler.runtime.comparison import FREE_REPAIRS, TOGETHER_SECONDS, Comparison, Patience


class Source:
    """Hears what a test tells it."""

    def __init__(self) -> None:
        self._ends = os.pipe()
        os.set_blocking(self._ends[0], False)
        self.changes: list[Change] = []
        self.fails = False
        self.closed = False

    def tell(self, what: str, who: str = "process 7 (tc)") -> None:
        self.changes.append(Change(what, who))
        os.write(self._ends[1], b".")

    def fileno(self) -> int:
        return self._ends[0]

    def read(self) -> Iterator[Change]:
        with suppress(BlockingIOError):
            os.read(self._ends[0], 1)
        if self.fails:
            raise OSError(5, "Input/output error")
        told, self.changes = self.changes, []
        return iter(told)

    def close(self) -> None:
        self.closed = True


class Bench:
    """A comparison with one owner."""

    def __init__(self, interval: float = 300.0) -> None:
        self.source = Source()
        self.compared: list[float] = []
        self.broken = 0
        """How many repairs each comparison from now on makes."""
        self.fails = False
        self.sees: Callable[[], bool] = lambda: False
        self.sees_too: Callable[[], bool] = lambda: False
        self.repairs = self.resyncs = 0
        self.comparison = Comparison([self], {"ipset": self._sees, "a file": self._sees_too}, interval)
        self.comparison.open([lambda: self.source])

    def _sees(self) -> bool:
        return self.sees()

    def _sees_too(self) -> bool:
        return self.sees_too()

    async def verify(self) -> None:
        self.compared.append(time.monotonic())
        self.repairs += self.broken
        if self.fails:
            raise KernelError("cannot be put right")

    async def resync(self) -> None:
        self.resyncs += 1

    async def at_work(self, test: Awaitable[None]) -> None:
        task = asyncio.create_task(self.comparison.run(self.resync))
        try:
            await test
        finally:
            task.cancel()
            self.comparison.close()


def with_bench(test: Callable[[Bench], Awaitable[None]], interval: float = 300.0) -> None:
    async def scenario() -> None:
        bench = Bench(interval)
        await bench.at_work(test(bench))

    asyncio.run(scenario())


def test_what_others_change_is_compared_at_once_and_said_with_their_name(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        bench.broken = 1
        bench.source.tell("root qdisc of wan0")
        bench.source.tell("class 4d50:10 of wan0")
        await until(lambda: bench.compared)
        assert len(bench.compared) == 1
        counters = bench.comparison.counters
        await until(lambda: counters.repaired)
        assert (counters.noticed, counters.comparisons, counters.repaired) == (2, 1, 1)

    with_bench(test)
    expected = "it was changed by process 7 (tc): root qdisc of wan0, process 7 (tc): class 4d50:10 of wan0"
    assert expected in caplog.text


def test_who_changes_what_is_being_compared_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    """Upon one change another is put right, too, whose author the kernel tells meanwhile; both stand in the line."""

    class Late(Bench):
        async def verify(self) -> None:
            if not self.compared:
                self.source.tell("rule of table mptcp_throttler", "process 8 (nft)")
                self.broken = 1
            await super().verify()
            self.broken = 0

    async def scenario() -> None:
        bench = Late()

        async def test() -> None:
            bench.source.tell("interface mptcp-up", UNKNOWN)
            bench.sees = lambda: not bench.compared
            await until(lambda: len(bench.compared) == 2)

        await bench.at_work(test())

    asyncio.run(scenario())
    (line,) = (each.getMessage() for each in caplog.records if "it was changed" in each.getMessage())
    assert f"{UNKNOWN}: interface mptcp-up, process 8 (nft): rule of table mptcp_throttler" in line
    assert line.endswith(", somebody else: ipset; the kernel does not tell who")


def test_a_change_that_harms_nothing_is_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        bench.source.tell("interface wan0")
        await until(lambda: bench.compared)
        assert bench.comparison.counters.repaired == 0

    with_bench(test)
    assert "it was changed" not in caplog.text


def test_without_changes_the_clock_alone_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: Bench) -> None:
        await until(lambda: bench.resyncs >= 2)
        assert len(bench.compared) >= 2
        assert bench.comparison.counters.comparisons == 0

    with_bench(test, interval=0.02)


def test_what_the_kernel_does_not_tell_is_glanced_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(comparison, "GLANCE_SECONDS", 0.01)

    async def test(bench: Bench) -> None:
        bench.sees, bench.broken = (lambda: not bench.compared), 1
        await until(lambda: bench.comparison.counters.repaired)

    with_bench(test)
    assert "it was changed by somebody else: ipset; the kernel does not tell who" in caplog.text


def test_a_glance_that_fails_or_is_wrong_is_no_reason_to_compare_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "GLANCE_SECONDS", 0.001)
    monkeypatch.setattr(comparison, "TOGETHER_SECONDS", 0.001)

    def refused() -> bool:
        raise KernelError("no such table")

    async def test(bench: Bench) -> None:
        bench.sees = refused
        await until(lambda: len(bench.compared) > FREE_REPAIRS)
        assert bench.compared[FREE_REPAIRS] - bench.compared[FREE_REPAIRS - 1] >= 1

    with_bench(test)


def test_a_glance_that_is_wrong_holds_no_other_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "GLANCE_SECONDS", 0.001)
    monkeypatch.setattr(comparison, "TOGETHER_SECONDS", 0.001)

    async def test(bench: Bench) -> None:
        # So often that it is looked at in five minutes.
        bench.comparison._patience.looked(["ipset"] * 20, time.monotonic())
        bench.sees = bench.sees_too = lambda: not bench.compared
        await until(lambda: bench.compared)

    with_bench(test)


def test_a_file_that_cannot_be_looked_at_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "GLANCE_SECONDS", 0.01)

    def refused() -> bool:
        raise PermissionError(13, "Permission denied")

    async def test(bench: Bench) -> None:
        bench.sees_too = refused
        await until(lambda: bench.compared)

    with_bench(test)


def test_what_could_not_be_put_right_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "AGAIN_SECONDS", 0.01)

    async def test(bench: Bench) -> None:
        bench.fails = True
        bench.source.tell("root qdisc of wan0")
        await until(lambda: len(bench.compared) >= 3)

    with_bench(test)


def test_two_programs_do_not_fight_for_ever_and_others_do_not_wait_for_them() -> None:
    patience = Patience(30)
    pauses = []
    now = 1000.0
    for _ in range(FREE_REPAIRS + 8):
        pauses.append(patience.pause("root qdisc of wan0", now))
        now += pauses[-1]
        patience.looked(["root qdisc of wan0"], now)
    assert pauses[:FREE_REPAIRS] == [TOGETHER_SECONDS] * FREE_REPAIRS
    assert pauses[FREE_REPAIRS:] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert patience.pause("table mptcp_throttler", now) == TOGETHER_SECONDS
    assert patience.pause("root qdisc of wan0", now + 3600) == TOGETHER_SECONDS


def test_a_short_interval_is_the_longest_pause() -> None:
    patience = Patience(0.5)
    for _ in range(20):
        patience.looked(["ipset"], 1.0)
    assert patience.pause("ipset", 1.0) == 0.5


def test_a_source_that_fails_is_left_and_said(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        bench.source.fails = True
        bench.source.tell("")
        await until(lambda: bench.source.closed)

    with_bench(test)
    assert "Input/output error" in caplog.text


def test_a_source_that_cannot_be_opened_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def refused() -> Source:
        raise KernelError("listen to what others change: Operation not permitted")

    async def scenario() -> None:
        Comparison((), {}, 30).open([refused])

    asyncio.run(scenario())
    assert "Operation not permitted; they are found within 30 s" in caplog.text


def test_the_daemon_puts_right_what_it_sees_at_a_glance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(comparison, "GLANCE_SECONDS", 0.01)
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
        async with running(tmp_path, CAPPED, kernel) as scene:
            kernel.netfilter.entries.clear()
            await until(lambda: set(kernel.netfilter.entries) == {four_tuple("10.1.0.1")})
            await until(lambda: scene.status()["counters"]["changes"]["repaired"] == 1)
            kernel.pacing.problems = ["the BPF program was detached"]
            await until(lambda: scene.status()["counters"]["changes"]["repaired"] == 2)
            (tmp_path / "s").unlink()
            await until(lambda: scene.status()["counters"]["changes"]["repaired"] == 3)

    asyncio.run(scenario())
