# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that each warning or error of the daemon's threads becomes one event, but not those of a child process."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable

import pytest

from mptcp_throttler.runtime.logs import ALREADY_AN_EVENT, forward_faults

log = logging.getLogger("mptcp_throttler.test")


def recorded_faults(act: Callable[[], None]) -> list[str]:
    async def scenario() -> list[str]:
        faults: list[str] = []
        with forward_faults(lambda _, text: faults.append(text)):
            act()
            for _ in range(3):
                await asyncio.sleep(0)
        log.error("afterwards")
        await asyncio.sleep(0)
        return faults

    return asyncio.run(scenario())


def test_warnings_and_errors_become_events() -> None:
    def act() -> None:
        log.info("running")
        log.warning("%s was deleted", "wan0")
        log.error("two\nlines")
        log.warning("already recorded", extra=ALREADY_AN_EVENT)
        logging.getLogger("another").error("not ours")

    assert recorded_faults(act) == ["wan0 was deleted", "two lines"]


def test_error_of_a_thread_becomes_an_event() -> None:
    def act() -> None:
        thread = threading.Thread(target=log.error, args=("the ledger is full",))
        thread.start()
        thread.join()

    assert recorded_faults(act) == ["the ledger is full"]


def test_error_of_a_child_process_becomes_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        log.error("in a child")

    assert recorded_faults(act) == []
