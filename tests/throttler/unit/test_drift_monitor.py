# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for comparisons of the throttler's state with the kernel's: periodic, after foreign changes, and paused."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fake_kernel import FakeKernel, four_tuple
from test_daemon import CAPPED, running, until

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.notices import UNKNOWN, KernelChange, NoticeSource
from mptcp_throttler.runtime import drift
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.drift import MAX_PROMPT_REPAIRS, DriftMonitor


class Source(NoticeSource):
    """A source of notices that the test controls."""

    def __init__(self) -> None:
        self._ends = os.pipe()
        os.set_blocking(self._ends[0], False)
        self.changes: list[KernelChange] = []
        self.fails = False
        self.closed = False

    def report(self, subject: str, author: str = "process 7 (tc)") -> None:
        self.changes.append(KernelChange(subject, author))
        os.write(self._ends[1], b".")

    def fileno(self) -> int:
        return self._ends[0]

    def read(self) -> Iterator[KernelChange]:
        with suppress(BlockingIOError):
            os.read(self._ends[0], 1)
        if self.fails:
            raise OSError(5, "Input/output error")
        changes, self.changes = self.changes, []
        return iter(changes)

    def close(self) -> None:
        self.closed = True


class MonitoredComponent(Component):
    """A component, and the monitor that compares only this one."""

    repairs = 0

    def __init__(self, interval: float = 300.0) -> None:
        self.source = Source()
        self.comparison_times: list[float] = []
        self.repairs_per_comparison = 0
        """Number of repairs that each of the next comparisons makes."""
        self.fails = False
        self.monitor = DriftMonitor([self], interval)
        self.monitor.open([lambda: self.source])

    async def verify(self) -> None:
        self.comparison_times.append(time.monotonic())
        self.repairs += self.repairs_per_comparison
        if self.fails:
            raise KernelError("cannot be repaired")

    async def run_during(self, test: Awaitable[None]) -> None:
        task = asyncio.create_task(self.monitor.run())
        try:
            await test
        finally:
            task.cancel()
            self.monitor.close()


def run_with_monitor(test: Callable[[MonitoredComponent], Awaitable[None]], interval: float = 300.0) -> None:
    async def scenario() -> None:
        component = MonitoredComponent(interval)
        await component.run_during(test(component))

    asyncio.run(scenario())


def test_foreign_change_causes_a_comparison_at_once_and_is_logged_with_its_author(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(component: MonitoredComponent) -> None:
        component.repairs_per_comparison = 1
        component.source.report("root qdisc of wan0")
        component.source.report("class 4d50:10 of wan0")
        await until(lambda: component.comparison_times)
        assert len(component.comparison_times) == 1
        counters = component.monitor.counters
        await until(lambda: counters.repaired)
        assert (counters.noticed, counters.comparisons, counters.repaired) == (2, 1, 1)

    run_with_monitor(test)
    expected = "changed by process 7 (tc): root qdisc of wan0, process 7 (tc): class 4d50:10 of wan0"
    assert expected in caplog.text


def test_author_of_a_change_during_a_comparison_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """While one change is repaired, the kernel reports a second one with its author. The message must name both."""

    class LateNotice(MonitoredComponent):
        async def verify(self) -> None:
            if not self.comparison_times:
                self.source.report("rule of table mptcp_throttler", "process 8 (nft)")
                self.repairs_per_comparison = 1
            await super().verify()
            self.repairs_per_comparison = 0

    async def scenario() -> None:
        component = LateNotice()

        async def test() -> None:
            component.source.report("interface mptcp-up", UNKNOWN)
            await until(lambda: len(component.comparison_times) == 2)

        await component.run_during(test())

    asyncio.run(scenario())
    (line,) = (each.getMessage() for each in caplog.records if "changed by" in each.getMessage())
    assert f"{UNKNOWN}: interface mptcp-up, process 8 (nft): rule of table mptcp_throttler" in line


def test_harmless_change_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(component: MonitoredComponent) -> None:
        component.source.report("interface wan0")
        await until(lambda: component.comparison_times)
        assert component.monitor.counters.repaired == 0

    run_with_monitor(test)
    assert "changed by" not in caplog.text


def test_comparisons_are_periodic_if_there_are_no_changes() -> None:
    async def test(component: MonitoredComponent) -> None:
        await until(lambda: len(component.comparison_times) >= 2)
        assert component.monitor.counters.comparisons == 0, "a periodic comparison was counted like one after a notice"

    run_with_monitor(test, interval=0.02)


def test_change_without_a_notice_is_found_periodically(caplog: pytest.LogCaptureFixture) -> None:
    async def test(component: MonitoredComponent) -> None:
        component.repairs_per_comparison = 1
        await until(lambda: component.monitor.counters.repaired)

    run_with_monitor(test, interval=0.02)
    assert "changed by another program; the kernel does not report which" in caplog.text


def test_failed_repair_is_retried_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "RETRY_SECONDS", 0.01)

    async def test(component: MonitoredComponent) -> None:
        component.fails = True
        component.source.report("root qdisc of wan0")
        await until(lambda: len(component.comparison_times) >= 3)

    run_with_monitor(test)


def test_failing_notice_source_is_closed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(component: MonitoredComponent) -> None:
        component.source.fails = True
        component.source.report("")
        await until(lambda: component.source.closed)

    run_with_monitor(test)
    assert "Input/output error" in caplog.text


def test_notice_source_that_cannot_be_opened_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> Source:
        raise KernelError("listen to kernel notices: Operation not permitted")

    async def scenario() -> None:
        DriftMonitor((), 30).open([refuse])

    asyncio.run(scenario())
    assert "Operation not permitted; changes are found within 30 s" in caplog.text


def test_object_that_changes_repeatedly_waits_for_the_periodic_comparison(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drift, "PAUSE_RATIO", 0)
    monkeypatch.setattr(drift, "GROUPING_SECONDS", 0.001)

    async def test(component: MonitoredComponent) -> None:
        component.repairs_per_comparison = 1
        for number in range(MAX_PROMPT_REPAIRS):
            component.source.report("root qdisc of wan0")
            await until(lambda: component.monitor.counters.repaired > number)  # noqa: B023 - awaited in the iteration
        component.source.report("root qdisc of wan0")
        await until(lambda: "keeps changing" in caplog.text)
        assert len(component.comparison_times) == MAX_PROMPT_REPAIRS
        component.source.report("table mptcp_throttler")
        await until(lambda: len(component.comparison_times) > MAX_PROMPT_REPAIRS)
        monkeypatch.setattr(drift, "REPAIR_WINDOW_SECONDS", 0.0)
        component.source.report("root qdisc of wan0")
        await until(lambda: len(component.comparison_times) > MAX_PROMPT_REPAIRS + 1)

    run_with_monitor(test)


def test_daemon_repairs_changes_without_a_notice(tmp_path: Path) -> None:
    async def scenario() -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
        async with running(tmp_path, CAPPED, kernel) as scene:
            changes: tuple[Callable[[], object], ...] = (
                kernel.netfilter.entries.clear,
                lambda: setattr(kernel.pacing, "problems", ["the BPF program was detached"]),
                (tmp_path / "s").unlink,
            )
            for count, change in enumerate(changes, start=1):
                change()
                assert await scene.daemon._drift._compare()
                assert scene.status()["counters"]["changes"]["repaired"] == count
            assert set(kernel.netfilter.entries) == {four_tuple("10.1.0.1")}
            assert not kernel.pacing.problems

    asyncio.run(scenario())
