# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for floods of events from any host: the daemon limits its log lines, and still reads the other captures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_kernel import FakeKernel
from mptcp_dialogue import PROXY, ClientSubflow, Host
from test_daemon import CAPPED, running, scenario, until

from mptcp_throttler.runtime.engine import MAX_LINES
from mptcp_throttler.runtime.observe import ReadingShare

PAUSE_SECONDS = 3600.0
"""Length of a pause. The test itself ends pauses of this length."""


def forged_join(number: int, interface: str = "w0") -> ClientSubflow:
    """Return a join to a connection that does not exist."""
    return ClientSubflow(Host(str(number)), "10.2.0.9", 1024 + number, False, PROXY, interface)


def test_refused_joins_are_logged_a_few_times_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Defect: each refused join of a flood was logged, with 100 lines per second."""
    caplog.set_level(logging.INFO)

    @scenario
    async def flood_daemon(tmp_path: Path) -> None:
        async with running(tmp_path, CAPPED, FakeKernel()) as scene:
            for number in range(5 * MAX_LINES):
                for segment in (forged_join(number).syn(), forged_join(number).proxy_rst()):
                    scene.kernel.captures["w0"].give(segment)
            await until(lambda: scene.engine.tracker.counters.joins_refused == 5 * MAX_LINES)

    flood_daemon(tmp_path)
    assert sum("join-refused" in each.message for each in caplog.records) == MAX_LINES


def test_only_the_flooded_capture_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other captures are still read. The paused capture is read after the pause, unless it was closed."""
    pauses, resumptions, loop_errors = [PAUSE_SECONDS], list[Callable[[], object]](), list[object]()
    monkeypatch.setattr(ReadingShare, "pause", lambda *_: pauses.pop() if pauses else 0.0)

    @scenario
    async def flood_daemon(tmp_path: Path) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: loop_errors.append(context))
        original = loop.call_later

        def call_later(delay: float, callback: Callable[..., object], *arguments: Any, **keywords: Any) -> Any:
            if delay != PAUSE_SECONDS:
                return original(delay, callback, *arguments, **keywords)
            resumptions.append(partial(callback, *arguments))
            return None

        monkeypatch.setattr(loop, "call_later", call_later)
        async with running(tmp_path, CAPPED, FakeKernel()) as scene:
            scene.daemon._observers._open_capture("w1")
            first, second = scene.kernel.captures["w0"], scene.kernel.captures["w1"]
            first.give(forged_join(1).syn())
            await until(lambda: resumptions)
            first.give(forged_join(2).syn())
            for number in range(3, 6):
                second.give(forged_join(number, "w1").syn())
                await until(lambda: not second.has_unread_items)
            assert first.has_unread_items
            resumptions.pop()()
            await until(lambda: not first.has_unread_items)
            pauses.append(PAUSE_SECONDS)
            first.give(forged_join(6).syn())
            await until(lambda: resumptions)
            scene.daemon._observers._close_capture("w0")
            resumptions.pop()()

    flood_daemon(tmp_path)
    assert not loop_errors
