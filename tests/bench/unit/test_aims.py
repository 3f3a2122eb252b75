"""An aim is met within its bounds."""

from __future__ import annotations

import pytest

from mptcp_bench.experiments.aims import Aim, missed


@pytest.mark.parametrize(
    ("value", "met"), [(0.94, False), (0.95, True), (1.0, True), (1.05, True), (1.06, False), (float("nan"), False)]
)
def test_an_aim_is_met_within_its_bounds(value: float, met: bool) -> None:
    aim = Aim("x", value, least=0.95, most=1.05)
    assert aim.met is met
    assert bool(missed([aim])) is not met
