# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that Squid gets a signal only when all its processes exist and none would die of the signal."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

import pytest

from mptcp_proxy.configuration.workers import Workers
from mptcp_proxy.pending_signals import MAX_KIDS_DELAY, MAX_LISTENERS_DELAY, MAX_STOP_DELAY, PendingSignals

FIRST_PID = 100
ALL_SIGNALS = frozenset({signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})


@dataclass
class FakeSquid:
    """A fake Squid: its first process, its kids, and the signals that each catches. A kid that is not in *executed*
    still runs the program of the first process."""

    kids: dict[int, frozenset[signal.Signals]] = field(default_factory=dict)
    executed: set[int] = field(default_factory=set)
    first_catches: frozenset[signal.Signals] = ALL_SIGNALS
    listens: bool = True

    def fork(self, pid: int, catches: frozenset[signal.Signals] = ALL_SIGNALS) -> None:
        self.kids[pid] = catches

    def execute(self, pid: int, catches: frozenset[signal.Signals] = frozenset()) -> None:
        self.kids[pid] = catches
        self.executed.add(pid)

    def children(self, pid: int) -> tuple[int, ...]:
        assert pid == FIRST_PID
        return tuple(self.kids)

    def catches(self, pid: int, number: int) -> bool:
        return number in (self.first_catches if pid == FIRST_PID else self.kids[pid])

    def command(self, pid: int) -> bytes:
        return f"(squid-{pid})\0".encode() if pid in self.executed else b"squid\0--foreground\0"


def pending_signals(squid: FakeSquid, kid_count: int) -> PendingSignals:
    return PendingSignals(
        kid_count,
        all_listen=lambda _: squid.listens,
        children=squid.children,
        catches=squid.catches,
        command=squid.command,
    )


def test_reload_waits_until_each_kid_catches_the_signal() -> None:
    """Defect: a reload killed a worker that did not exist yet or was being restarted."""
    squid = FakeSquid()
    pending = pending_signals(squid, Workers(2).processes)
    pending.add(signal.SIGHUP)
    assert list(pending.ready_signals(FIRST_PID, 0.0)) == []
    for pid in (101, 102, 103):
        squid.fork(pid)
        # execve(2) removes the handlers that the kid inherited from its parent.
        assert list(pending.ready_signals(FIRST_PID, 0.1)) == []
        squid.execute(pid)
        assert list(pending.ready_signals(FIRST_PID, 0.2)) == []
        squid.execute(pid, ALL_SIGNALS)
        assert list(pending.ready_signals(FIRST_PID, 0.3)) == ([signal.SIGHUP] if pid == 103 else [])
    assert not pending
    assert list(pending.ready_signals(FIRST_PID, 0.4)) == []


def test_reload_waits_until_the_first_process_catches_the_signal() -> None:
    squid = FakeSquid(first_catches=frozenset())
    squid.execute(101, ALL_SIGNALS)
    pending = pending_signals(squid, Workers(1).processes)
    pending.add(signal.SIGHUP)
    assert list(pending.ready_signals(FIRST_PID, 0.0)) == []
    squid.first_catches = ALL_SIGNALS
    assert list(pending.ready_signals(FIRST_PID, 1000.0)) == [signal.SIGHUP]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1])
def test_signal_does_not_wait_forever_for_a_missing_kid(number: signal.Signals) -> None:
    squid = FakeSquid()
    for pid in (101, 102):
        squid.execute(pid, ALL_SIGNALS)
    pending = pending_signals(squid, 3)
    if number == signal.SIGTERM:
        pending.stop(number, 0.0)
    else:
        pending.add(number)
    assert list(pending.ready_signals(FIRST_PID, 0.0)) == []
    assert list(pending.ready_signals(FIRST_PID, MAX_KIDS_DELAY)) == [number]
    assert list(pending.ready_signals(FIRST_PID, MAX_KIDS_DELAY + 1)) == []


def test_reload_waits_until_all_workers_listen() -> None:
    """Defect: a worker that got the signal before its main loop died of it."""
    squid = FakeSquid(listens=False)
    squid.execute(101, ALL_SIGNALS)
    pending = pending_signals(squid, 1)
    pending.add(signal.SIGUSR1)
    pending.add(signal.SIGHUP)
    assert list(pending.ready_signals(FIRST_PID, 0.0)) == [signal.SIGUSR1]
    squid.listens = True
    assert list(pending.ready_signals(FIRST_PID, 0.1)) == [signal.SIGHUP]
    assert not pending


def test_reload_does_not_wait_forever_for_a_port_that_stays_closed() -> None:
    squid = FakeSquid(listens=False)
    squid.execute(101, ALL_SIGNALS)
    pending = pending_signals(squid, 1)
    for start in (0.0, 100.0):
        pending.add(signal.SIGHUP)
        assert list(pending.ready_signals(FIRST_PID, start)) == []
        assert list(pending.ready_signals(FIRST_PID, start + MAX_LISTENERS_DELAY - 0.1)) == []
        assert list(pending.ready_signals(FIRST_PID, start + MAX_LISTENERS_DELAY)) == [signal.SIGHUP]
        assert list(pending.ready_signals(FIRST_PID, start + MAX_LISTENERS_DELAY + 1)) == []


def test_stop_replaces_a_pending_reload() -> None:
    """Defect: Squid got the stop 10 s later, and then had less time in which it lets transfers finish."""
    squid = FakeSquid(listens=False)
    squid.execute(101, ALL_SIGNALS)
    pending = pending_signals(squid, 1)
    pending.add(signal.SIGHUP)
    pending.stop(signal.SIGTERM, 0.0)
    assert list(pending.ready_signals(FIRST_PID, 0.0)) == [signal.SIGTERM]
    assert not pending


def test_stop_is_sent_late_and_repeated_if_it_was_lost() -> None:
    squid = FakeSquid()
    squid.execute(101)
    pending = pending_signals(squid, 1)
    pending.stop(signal.SIGTERM, 0.0)
    assert pending.stopping
    assert list(pending.ready_signals(FIRST_PID, MAX_STOP_DELAY - 0.1)) == []
    assert list(pending.ready_signals(FIRST_PID, MAX_STOP_DELAY)) == [signal.SIGTERM]
    assert list(pending.ready_signals(FIRST_PID, MAX_STOP_DELAY + 1)) == []
    squid.execute(101, ALL_SIGNALS)
    assert list(pending.ready_signals(FIRST_PID, MAX_STOP_DELAY + 2)) == [signal.SIGTERM]
    assert not pending


def test_late_stop_between_fork_and_execve_counts_as_lost() -> None:
    """Defect: a kid with its parent's handlers lost the stop at execve(2), and Squid never ended."""
    squid = FakeSquid()
    squid.fork(101)
    pending = pending_signals(squid, 1)
    pending.stop(signal.SIGTERM, 0.0)
    assert list(pending.ready_signals(FIRST_PID, MAX_STOP_DELAY)) == [signal.SIGTERM]
    squid.execute(101)
    assert list(pending.ready_signals(FIRST_PID, MAX_STOP_DELAY + 1)) == []
    squid.execute(101, ALL_SIGNALS)
    assert list(pending.ready_signals(FIRST_PID, MAX_STOP_DELAY + 2)) == [signal.SIGTERM]
    assert not pending


def test_stop_that_one_kid_lost_is_repeated_after_the_other_ended() -> None:
    squid = FakeSquid()
    squid.execute(101, ALL_SIGNALS)
    squid.fork(102)
    pending = pending_signals(squid, 2)
    pending.stop(signal.SIGTERM, 0.0)
    assert list(pending.ready_signals(FIRST_PID, MAX_STOP_DELAY)) == [signal.SIGTERM]
    squid.execute(102, ALL_SIGNALS)
    # A second signal would abort the transfers that the first signal lets finish.
    assert list(pending.ready_signals(FIRST_PID, MAX_STOP_DELAY + 1)) == []
    del squid.kids[101]
    later = MAX_STOP_DELAY + 2
    assert list(pending.ready_signals(FIRST_PID, later)) == []
    assert list(pending.ready_signals(FIRST_PID, later + MAX_KIDS_DELAY)) == [signal.SIGTERM]
    assert not pending


def test_immediate_stop_replaces_a_gentle_stop() -> None:
    squid = FakeSquid()
    squid.execute(101, ALL_SIGNALS)
    pending = pending_signals(squid, 1)
    pending.stop(signal.SIGTERM, 0.0)
    pending.stop(signal.SIGINT, 0.0)
    assert signal.SIGTERM not in pending
    assert list(pending.ready_signals(FIRST_PID, 0.0)) == [signal.SIGINT]
