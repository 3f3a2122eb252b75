"""The demo itself, with shorter downloads: it succeeds on any machine, and fails where a part does not do its work."""

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
from mptcp_lab.testbed import Host
from mptcp_lab.testbed.services import Proxy, Throttler, start_throttler

pytestmark = pytest.mark.kernel


def found_wrong(directory: Path) -> str:
    """Return what the demo that left its files in *directory* found wrong in its last download."""
    return "\n".join(json.loads((directory / "demo.json").read_text())["downloads"][-1]["wrong"])


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


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the demo run one of its downloads alone."""

    def only(key: str) -> None:
        monkeypatch.setattr(running, "parts", lambda cap: tuple(part for part in shorter(cap) if part.key == key))

    return only


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


@pytest.mark.parametrize(
    ("shipped", "broken"),
    [
        pytest.param("    paths: [ethernet]", "    paths: [wifi]", id="the cap is on the other path"),
        pytest.param("version: 1", "version: 1\ndry_run: true", id="the cap never comes"),
    ],
)
def test_the_demo_fails_with_a_policy_that_is_not_enforced(
    demo: Callable[[], str],
    only: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    shipped: str,
    broken: str,
) -> None:
    text = running.POLICY.read_text()
    assert shipped in text
    policy = tmp_path / "broken.yaml"
    policy.write_text(text.replace(shipped, broken, 1))
    only("mptcp-policy")
    # The cap that the demo expects is still that of the policy as shipped.
    configure = running.write_throttler_config
    monkeypatch.setattr(running, "write_throttler_config", lambda node, _: configure(node, policy))
    with pytest.raises(DemoError, match=r"not as it should be: MPTCP through the proxy \+ policy "):
        demo()
    assert re.search("Ethernet carried .* and its cap allows 5", found_wrong(tmp_path))


def test_the_demo_fails_where_the_second_path_is_not_used(
    demo: Callable[[], str], only: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = running.start_proxy

    def refuse_joins(node: Host) -> Proxy:
        node.run(["ip", "mptcp", "limits", "set", "subflows", "0"])
        return start(node)

    monkeypatch.setattr(running, "start_proxy", refuse_joins)
    only("mptcp")
    with pytest.raises(DemoError, match="not as it should be: MPTCP through the proxy "):
        demo()
    assert re.search("Wi-Fi carried 0.0 Mbit/s .* and should have been used", found_wrong(tmp_path))
