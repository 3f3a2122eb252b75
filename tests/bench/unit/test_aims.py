# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that an aim is met within its bounds."""

from __future__ import annotations

import math

import pytest

from mptcp_bench.experiments.aims import Aim, aims_table


@pytest.mark.parametrize(
    ("aim", "text"),
    [
        (Aim("share", 0.99996, least=1), "share: 0.99996, wanted ≥ 1"),
        (Aim("share", 0.94999, least=0.95, most=1), "share: 0.94999, wanted ≥ 0.95 and ≤ 1"),
        (Aim("gap", math.inf, " s", most=0.1), "gap: inf s, wanted ≤ 0.1"),
        (Aim("gap", math.nan, most=0.1), "gap: nan, wanted ≤ 0.1"),
        (Aim("share", math.nextafter(1, 0), least=1), "share: 0.9999999999999999, wanted ≥ 1"),
    ],
)
def test_an_aim_that_is_missed_does_not_read_as_met(aim: Aim, text: str) -> None:
    assert str(aim) == text
    [cell] = list(aims_table("Aims", [aim]).columns[1].cells)
    assert f": {cell}, wanted" in text
    assert aim.measured == cell
