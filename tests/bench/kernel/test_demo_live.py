# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the demo with shorter downloads: it succeeds on any machine, and fails if the cap is not enforced."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mptcp_bench.demo import DemoError, running
from mptcp_bench.demo.parts import Part, parts
from mptcp_bench.shipped import POLICY
from mptcp_lab.testbed.services import write_throttler_config

pytestmark = pytest.mark.kernel


def shorter(cap: int) -> tuple[Part, ...]:
    """Return the demo's parts, with half the time for those without a cap. A late cap must remain visible."""
    return tuple(part if part.capped else replace(part, seconds=part.seconds / 2) for part in parts(cap))


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, require: Callable[..., None], tmp_path: Path) -> Callable[[], str]:
    """Return a function that runs the demo and returns its output."""
    require(*running.REQUIREMENTS)
    monkeypatch.setattr(running, "parts", shorter)

    def run() -> str:
        text = io.StringIO()
        running.run(tmp_path, Console(file=text, width=100))
        return text.getvalue()

    return run


def test_demo_shows_what_it_should_on_any_machine(demo: Callable[[], str]) -> None:
    assert "✗" not in demo()


@pytest.mark.nightly
def test_demo_fails_when_the_policy_is_not_enforced(
    demo: Callable[[], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The throttler caps the other path. The demo still expects the cap of the shipped policy."""
    text, shipped = POLICY.read_text(), "    paths: [ethernet]"
    assert shipped in text
    policy = tmp_path / "broken.yaml"
    policy.write_text(text.replace(shipped, "    paths: [wifi]", 1))
    monkeypatch.setattr(running, "parts", lambda cap: shorter(cap)[-1:])
    monkeypatch.setattr(running, "write_throttler_config", lambda node, _: write_throttler_config(node, policy))
    with pytest.raises(DemoError, match=r"not as it should be: MPTCP through the proxy \+ policy "):
        demo()
    *_, found = json.loads((tmp_path / "demo.json").read_text())["downloads"]
    assert re.search("Ethernet carried .* but its cap is 5 Mbit/s", "\n".join(found["wrong"]))
