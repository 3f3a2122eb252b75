# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the bytes of today and of the month in the policy's time zone, over midnights and restarts."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mptcp_console.saved_volumes import SavedVolumes
from mptcp_console.volumes import Volumes

ATHENS = ZoneInfo("Europe/Athens")


def time_of(*when: int) -> float:
    return datetime(*when, tzinfo=ATHENS).timestamp()  # type: ignore[arg-type,misc]


def summary(time: float, started: float, sent: int, pid: int = 1) -> dict[str, Any]:
    path = {"path": "wifi", "bytes_sent": sent, "bytes_received": sent // 10}
    policy = {"time_zone": "Europe/Athens"}
    return {"time": time, "started": started, "pid": pid, "policy": policy, "paths": [path]}


def volumes_of(found: dict[str, Any]) -> tuple[float, int, float, int]:
    """Return since when today's bytes are counted, and their number; then both for the month."""
    sent = [sum(each["down"] for each in found[name]["paths"]) for name in ("day", "month")]
    return found["day"]["since"], sent[0], found["month"]["since"], sent[1]


def test_bytes_before_the_consoles_start_count_in_their_day_and_month() -> None:
    now, today, before = time_of(2026, 10, 14, 9), time_of(2026, 10, 14, 7), time_of(2026, 10, 3)
    assert volumes_of(Volumes().update(summary(now, today, 500))) == (today, 500, today, 500)
    # The bytes since an earlier day cannot be divided between the days.
    assert volumes_of(Volumes().update(summary(now, before, 500))) == (now, 0, before, 500)
    assert volumes_of(Volumes().update(summary(now, time_of(2026, 9, 30), 500))) == (now, 0, now, 0)


def test_days_begin_in_the_policys_zone_and_restarts_lose_no_bytes() -> None:
    volumes, started = Volumes(), time_of(2026, 10, 31, 12)
    volumes.update(summary(time_of(2026, 10, 31, 23, 59, 45), started, 1_000))
    # In UTC it is still October.
    assert volumes_of(volumes.update(summary(time_of(2026, 11, 1, 0, 1), started, 1_300))) == (
        time_of(2026, 11, 1), 300, time_of(2026, 11, 1), 300,
    )  # fmt: skip
    restarted = time_of(2026, 11, 1, 1)
    assert volumes_of(volumes.update(summary(restarted + 5, restarted, 40, pid=2)))[1::2] == (340, 340)
    assert volumes_of(volumes.update(summary(restarted + 6, restarted, 30, pid=2)))[1::2] == (340, 340), (
        "a count that decreased added bytes"
    )
    volumes.update(summary(time_of(2026, 11, 1, 23, 59, 45), restarted, 30, pid=2))
    assert volumes_of(volumes.update(summary(time_of(2026, 11, 2, 0, 1), restarted, 130, pid=2)))[1::2] == (100, 440)


def test_summary_without_time_zone_is_counted_in_utc() -> None:
    found = summary(1_795_000_000, 1_794_999_000, 7)
    found["policy"] = {}
    del found["started"]
    assert Volumes().update(found)["day"]["begin"] % 86_400 == 0


def test_volumes_continue_after_a_restart_of_the_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = time_of(2026, 10, 3)
    saved_volumes = SavedVolumes(str(tmp_path))
    volumes = saved_volumes.read()
    volumes.update(summary(time_of(2026, 10, 14, 9), started, 500))
    expected = volumes_of(volumes.update(summary(time_of(2026, 10, 14, 9, 1), started, 800)))
    saved_volumes._write(volumes.serialize())
    assert volumes_of(saved_volumes.read().update(summary(time_of(2026, 10, 14, 10), started, 1_000)))[1::2] == (
        expected[1] + 200, expected[3] + 200,
    )  # fmt: skip
    new_throttler = summary(time_of(2026, 10, 14, 10), time_of(2026, 10, 14, 9, 30), 70, pid=2)
    assert volumes_of(saved_volumes.read().update(new_throttler))[1::2] == (
        expected[1] + 70, expected[3] + 70,
    )  # fmt: skip
    assert not capsys.readouterr().err
    for damaged in (b"[", b"[]", b'{"pid": 1}', b'{"pid": 1, "before": [[1]], "periods": {}}'):
        (tmp_path / "volumes.json").write_bytes(damaged)
        assert not saved_volumes.read().serialize()
        assert "restart at 0" in capsys.readouterr().err
    assert not SavedVolumes(None).read().serialize()


def test_bytes_across_a_missed_midnight_count_only_for_the_month() -> None:
    """Defect: a console that was down over midnight assigned the bytes of two days to today."""
    volumes, started = Volumes(), time_of(2026, 10, 3)
    volumes.update(summary(time_of(2026, 10, 9, 12), started, 100))
    now = time_of(2026, 10, 11, 10)
    since, day, _, month = volumes_of(volumes.update(summary(now, started, 100_100)))
    assert (since, day, month) == (now, 0, 100_100)


def test_changed_time_zone_does_not_restart_the_month() -> None:
    volumes, started, now = Volumes(), time_of(2026, 10, 1), time_of(2026, 10, 20, 12)
    volumes.update(summary(time_of(2026, 10, 1, 0, 0), started, 0))
    volumes.update(summary(now, started, 1_000))
    other = summary(now + 5, started, 1_007)
    other["policy"] = {"time_zone": "America/New_York"}
    assert volumes_of(volumes.update(other))[3] == 1_007


def test_volume_starts_later_if_console_and_throttler_were_down() -> None:
    volumes, started = Volumes(), time_of(2026, 10, 14, 0, 0)
    volumes.update(summary(time_of(2026, 10, 14, 9), started, 1_000))
    later = time_of(2026, 10, 14, 12)
    since, day, *_ = volumes_of(volumes.update(summary(later + 5, later, 5, pid=2)))
    assert (since, day) == (later, 1_005)
    restarted = Volumes(volumes.serialize())
    assert volumes_of(restarted.update(summary(later + 10_000, later + 9_000, 40, pid=2)))[1] == 1_045, (
        "the bytes of a throttler with a reused process ID were not added"
    )


def test_volumes_are_written_at_shutdown(tmp_path: Path) -> None:
    async def saved_volumes() -> None:
        task = asyncio.create_task(SavedVolumes(str(tmp_path)).keep_writing(lambda: b"{}"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(saved_volumes())
    assert (tmp_path / "volumes.json").read_bytes() == b"{}"
