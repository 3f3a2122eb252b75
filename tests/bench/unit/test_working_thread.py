# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for threads beside a measurement: they end when told to, and their errors are not lost."""

from __future__ import annotations

import threading

import pytest

from mptcp_bench.experiments.working_thread import WorkingThread


class Until(WorkingThread):
    """A thread that works until it is told to end, and then raises *error*, if given."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__("until")
        self._failure = error
        self.begun = threading.Event()
        self.ended = False

    def work(self) -> None:
        self.begun.set()
        assert self.stop.wait(60)
        self.ended = True
        if self._failure is not None:
            raise self._failure


def test_the_work_ends_with_the_statement() -> None:
    with Until() as work:
        assert work.begun.wait(60)
        assert not work.ended
    assert work.ended


def test_what_the_work_raises_is_raised_at_the_exit() -> None:
    with pytest.raises(OSError, match="nobody answers"), Until(OSError("nobody answers")):
        pass


def test_an_error_of_the_statement_goes_before_the_works_own() -> None:
    with pytest.raises(KeyError, match="statement"), Until(OSError("nobody answers")):
        raise KeyError("statement")
