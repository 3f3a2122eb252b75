# SPDX-License-Identifier: GPL-2.0-or-later
"""Test that the gate detects nearly all faults that all tests detect."""

from __future__ import annotations

import pytest
from random_mutants import run_mutants

MIN_SHARE = 0.97


@pytest.mark.nightly
def test_gate_kills_nearly_all_mutants_that_all_tests_kill() -> None:
    found = run_mutants(100, seed=46)
    assert found["gate"] >= MIN_SHARE * found["all"], found["survivors of the gate"]
