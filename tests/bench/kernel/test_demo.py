"""The demo itself, with shorter downloads: it succeeds on any machine, and fails with a throttler that does nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mptcp_bench.demo import DemoError, running
from mptcp_bench.demo.parts import Part, parts
from mptcp_lab.testbed import Host
from mptcp_lab.testbed.services import Throttler, start_throttler

pytestmark = pytest.mark.kernel


def shorter(cap: int) -> tuple[Part, ...]:
    return tuple(replace(part, seconds=part.seconds / 2, settle=min(part.settle, 3.0)) for part in parts(cap))


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, require: Callable[..., None], tmp_path: Path) -> Callable[[], str]:
    """Run the demo and return what it says."""
    require(*running.NEEDED)
    monkeypatch.setattr(running, "parts", shorter)

    def run() -> str:
        text = io.StringIO()
        running.run(tmp_path, Console(file=text, width=100))
        return text.getvalue()

    return run


def test_the_demo_shows_what_it_should_on_any_machine(demo: Callable[[], str]) -> None:
    assert "✗" not in demo()


def test_the_demo_fails_with_a_throttler_that_is_dead(
    demo: Callable[[], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start_and_kill(node: Host, config: Path) -> Throttler:
        throttler = start_throttler(node, config)
        throttler.process.kill()
        return throttler

    monkeypatch.setattr(running, "start_throttler", start_and_kill)
    with pytest.raises(DemoError, match=r"not as it should be: MPTCP through the proxy \+ policy "):
        demo()
    assert (tmp_path / "throughput.png").exists()
