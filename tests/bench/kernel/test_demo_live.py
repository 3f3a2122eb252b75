# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the demo with shorter downloads: it succeeds on any machine, and fails if the cap is not enforced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mptcp_bench.demo import running
from mptcp_bench.experiments.findings import Findings
from mptcp_bench.experiments.setup import POLICY
from mptcp_lab.testbed.services import write_throttler_config

pytestmark = pytest.mark.kernel


def run(require: Callable[..., None]) -> Findings:
    require(*running.SCENARIO.needs)
    return running.SCENARIO.run(Console(quiet=True), 1, True, {})


def test_demo_shows_what_it_should_on_any_machine(require: Callable[..., None]) -> None:
    assert run(require).wrong == ()


@pytest.mark.nightly
def test_demo_fails_when_the_policy_is_not_enforced(
    require: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The throttler caps the other path. The demo still expects the cap of the shipped policy."""
    text, shipped = POLICY.read_text(), "    paths: [ethernet]"
    assert shipped in text
    policy = tmp_path / "broken.yaml"
    policy.write_text(text.replace(shipped, "    paths: [wifi]", 1))
    cells = running.SCENARIO.cells
    monkeypatch.setattr(running, "SCENARIO", replace(running.SCENARIO, cells=lambda chosen: cells(chosen)[-1:]))
    monkeypatch.setattr(running, "write_throttler_config", lambda node, _: write_throttler_config(node, policy))
    assert any(": Ethernet, Mbit/s: " in line for line in run(require).wrong)
