# SPDX-License-Identifier: GPL-2.0-or-later
"""Test that the gate finds nearly every fault that all tests find."""

from __future__ import annotations

import pytest
from drawn_mutants import run_mutants

SHARE = 0.97


@pytest.mark.nightly
def test_gate_kills_nearly_all_mutants_that_all_tests_kill() -> None:
    found = run_mutants(100, seed=46)
    assert found["gate"] >= SHARE * found["all"], found["survivors of the gate"]
