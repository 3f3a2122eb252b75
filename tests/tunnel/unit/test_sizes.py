# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the search for a path's packet size: it finds the largest size that was answered, also with loss."""

from __future__ import annotations

import random

import pytest

from mptcp_tunnel.learning import SECOND
from mptcp_tunnel.sizes import SEARCH_INTERVAL, SIZES, SizeSearch

STEP = SECOND // 20


def search(sizes: SizeSearch, limit: int, now: int, loss: float = 0.0) -> int:
    """Search once on a path that carries packets of up to *limit* bytes. Return how many bytes were sent."""
    rng, sent, probe_times = random.Random(1), 0, list[int]()
    for _ in range(200):
        now += STEP
        for each in probe_times:
            assert sizes.process_answer(each)
        size = sizes.next_size(now)
        sent += size or 0
        probe_times = [now] if size is not None and size <= limit and rng.random() >= loss else []
    return sent


@pytest.mark.parametrize("limit", [*SIZES, 1450, 9000])
def test_search_finds_the_largest_size_that_passes(limit: int) -> None:
    sizes = SizeSearch()
    assert search(sizes, limit, SECOND) < 50_000, "the search sent too many bytes"
    assert sizes.largest == max(each for each in SIZES if each <= limit)


def test_search_finds_a_reduced_size_and_ignores_a_dead_path() -> None:
    sizes = SizeSearch()
    search(sizes, 1500, SECOND)
    assert search(sizes, 1400, 20 * SECOND) == 0, "the size was searched again too early"
    search(sizes, 0, SEARCH_INTERVAL + 20 * SECOND)
    assert sizes.largest == 1500
    search(sizes, 1400, SEARCH_INTERVAL + 60 * SECOND)
    assert sizes.largest == 1400


def test_search_finds_the_size_despite_loss() -> None:
    sizes = SizeSearch()
    search(sizes, 1500, SECOND, loss=0.2)
    assert sizes.largest == 1500


def test_answers_to_other_messages_are_ignored() -> None:
    sizes = SizeSearch()
    assert sizes.next_size(SECOND) is not None
    assert not sizes.process_answer(SECOND + 1)
