# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the ledger when the wall clock changes: which accounts the ledger keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from short_budgets import timestamp
from test_budgets import BOOT, Host, play_and_kill, usage

from mptcp_throttler.policy.budget import Account
from mptcp_throttler.runtime.budgets import CLOCK_STABLE_SECONDS
from mptcp_throttler.storage import Ledger

DAY = 86_400
ACCOUNT = Account("lte", "10.77.1.2", int(timestamp("2026-11-01 00:00")))
OLD_ACCOUNT = Account("lte", "10.77.1.2", int(timestamp("2025-10-01 00:00")))


@pytest.mark.parametrize("ticks_before", [0, 1], ids=["at the start", "later"])
def test_clock_that_is_temporarily_far_ahead_deletes_no_accounts(tmp_path: Path, ticks_before: int) -> None:
    """Defect: the first tick after the start deleted accounts that seemed old because the clock was wrong."""
    path = tmp_path / "lib" / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.write(BOOT, usage({ACCOUNT: 2_000_000, OLD_ACCOUNT: 5}))

    def accounts_in_ledger() -> set[Account]:
        return set(ledger.read_usage([(each.budget, each.start) for each in (ACCOUNT, OLD_ACCOUNT)]))

    async def pass_time(host: Host, seconds: float) -> None:
        host.now += seconds
        await host.count(seconds - 1)

    async def play(host: Host) -> None:
        correct_time = host.now
        for _ in range(ticks_before):
            await pass_time(host, 5)
        # The clock is wrong for an hour. Then the network is up, and NTP corrects the clock.
        host.now = correct_time + 500 * DAY
        await pass_time(host, 1)
        await pass_time(host, 3600)
        host.now = correct_time + 3600
        await pass_time(host, 1)
        host.decide()
        assert host.verdict.throttle is not None, "the usage was lost"
        await pass_time(host, CLOCK_STABLE_SECONDS - 2)
        assert accounts_in_ledger() == {ACCOUNT, OLD_ACCOUNT}
        await pass_time(host, 2)
        assert accounts_in_ledger() == {ACCOUNT}
        ledger.write(BOOT, usage({OLD_ACCOUNT: 5}))
        await pass_time(host, DAY - 1)
        assert accounts_in_ledger() == {ACCOUNT, OLD_ACCOUNT}, (
            "an old account was deleted within a day after the last deletion"
        )
        await pass_time(host, 1)
        assert accounts_in_ledger() == {ACCOUNT}
        # The clock of a daemon that has run for days jumps to another day, and is corrected.
        await pass_time(host, DAY - 2)
        host.now += 500 * DAY
        await pass_time(host, 1)
        await pass_time(host, 1)
        host.now -= 500 * DAY
        await pass_time(host, 1)
        assert accounts_in_ledger() == {ACCOUNT}

    play_and_kill(path, play, "period: month")
    ledger.close()
