# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for what the experiment ``emulation`` computes from losses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_bench.experiments.emulation_judging import mean_run, run_lengths
from mptcp_lab.emulation.model import GilbertElliott, UniformLoss


@given(st.lists(st.booleans(), max_size=60))
def test_run_lengths_add_up_to_the_lost(lost: list[bool]) -> None:
    numbers = [i for i, gone in enumerate(lost) if gone]
    lengths = run_lengths(numbers)
    assert sum(lengths) == len(numbers)
    assert len(lengths) == sum(gone and not before for before, gone in zip([False, *lost], lost, strict=False))


def test_mean_run_of_a_chain_that_always_loses_when_bad_is_its_stay_there() -> None:
    assert mean_run(GilbertElliott(0.01, 0.25)) == pytest.approx(4)
    assert mean_run(UniformLoss(0.5)) == pytest.approx(2)
