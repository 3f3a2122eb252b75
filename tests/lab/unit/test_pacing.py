"""Readings at a steady pace, and what a failed one leaves."""

from __future__ import annotations

import threading

import pytest

from mptcp_lab.agent.pacing import Paced


def test_the_first_reading_is_there_at_once_and_others_follow() -> None:
    enough = threading.Event()
    count = 0

    def take() -> None:
        nonlocal count
        count += 1
        if count == 3:
            enough.set()

    paced = Paced(take, 0.001)
    paced.start()
    assert count >= 1
    assert enough.wait(30)
    paced.stop()
    assert paced.error is None


def test_a_first_reading_that_fails_is_raised() -> None:
    def take() -> None:
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        Paced(take, 0.001).start()


def test_a_later_one_that_fails_is_kept_and_ends_it() -> None:
    failed = threading.Event()
    count = 0

    def take() -> None:
        nonlocal count
        count += 1
        if count > 1:
            failed.set()
            raise KeyError("eth0")

    paced = Paced(take, 0.001)
    paced.start()
    assert failed.wait(30)
    paced.stop()
    assert isinstance(paced.error, KeyError)
    assert count == 2
