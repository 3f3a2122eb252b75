# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the demo with shorter downloads: it succeeds on any machine, and fails if a part does not work.

``MPTCP_DEMO_RUNS=10`` also runs the whole demo ten times: idle, under load, and with a broken throttler.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mptcp_bench.cli import main
from mptcp_bench.demo import DemoError, running
from mptcp_bench.demo.parts import Part, parts
from mptcp_bench.shipped import POLICY
from mptcp_lab.testbed import Host
from mptcp_lab.testbed.services import Proxy, Throttler, program, start_proxy, start_throttler, write_throttler_config
from mptcp_lab.testbed.transfer import wget

pytestmark = pytest.mark.kernel
RUNS = int(os.environ.get("MPTCP_DEMO_RUNS", "0"))
often = pytest.mark.skipif(RUNS == 0, reason="NOT TESTED: MPTCP_DEMO_RUNS=10 takes half an hour")


def found_wrong(directory: Path) -> str:
    """Return the faults that the demo found in its last download, from its files in *directory*."""
    return "\n".join(json.loads((directory / "demo.json").read_text())["downloads"][-1]["wrong"])


def shorter(cap: int) -> tuple[Part, ...]:
    """Return the demo's parts, with half the time for those without a cap. A late cap must remain visible."""
    return tuple(part if part.capped else replace(part, seconds=part.seconds / 2) for part in parts(cap))


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, require: Callable[..., None], tmp_path: Path) -> Callable[[], str]:
    """Return a function that runs the demo and returns its output."""
    require(*running.NEEDED)
    monkeypatch.setattr(running, "parts", shorter)

    def run() -> str:
        text = io.StringIO()
        running.run(tmp_path, Console(file=text, width=100))
        return text.getvalue()

    return run


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that limits the demo to one of its downloads."""

    def only(key: str) -> None:
        monkeypatch.setattr(running, "parts", lambda cap: tuple(part for part in shorter(cap) if part.key == key))

    return only


def test_the_demo_shows_what_it_should_on_any_machine(demo: Callable[[], str]) -> None:
    assert "✗" not in demo()


def start_and_kill(node: Host, config: Path) -> Throttler:
    throttler = start_throttler(node, config)
    throttler.process.kill()
    return throttler


@pytest.mark.nightly
def test_the_demo_fails_with_a_throttler_that_is_dead(
    demo: Callable[[], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(running, "start_throttler", start_and_kill)
    with pytest.raises(DemoError, match=r"not as it should be: MPTCP through the proxy \+ policy "):
        demo()
    assert (tmp_path / "throughput.png").exists()


@often
@pytest.mark.parametrize("loops", [0, 2], ids=["alone", "beside two busy loops"])
def test_no_run_of_the_demo_fails(loops: int, tmp_path: Path) -> None:
    """A run that reports a busy machine also succeeds, but without a load no run may report this."""
    is_alone = loops == 0 and "PYTEST_XDIST_WORKER" not in os.environ
    with ExitStack() as stack:
        for _ in range(loops):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(loop.kill)
        for number in range(RUNS):
            output = tmp_path / str(number)
            argv = [program("mptcp-bench"), "demo", "--output", str(output)]
            done = subprocess.run(argv, check=False, capture_output=True, text=True)
            assert done.returncode == 0, f"run {number + 1}: {done.stdout}{done.stderr}"
            warning = json.loads((output / "demo.json").read_text())["warning"]
            assert warning is None or not is_alone, f"run {number + 1}: {warning}"


@often
def test_each_run_of_the_demo_with_a_broken_throttler_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(running, "start_throttler", start_and_kill)
    assert [main(["demo", "--output", str(tmp_path / str(number))]) for number in range(RUNS)] == [1] * RUNS


@pytest.mark.nightly
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
    text = POLICY.read_text()
    assert shipped in text
    policy = tmp_path / "broken.yaml"
    policy.write_text(text.replace(shipped, broken, 1))
    only("mptcp-policy")
    # The demo still expects the cap of the shipped policy.
    monkeypatch.setattr(running, "write_throttler_config", lambda node, _: write_throttler_config(node, policy))
    with pytest.raises(DemoError, match=r"not as it should be: MPTCP through the proxy \+ policy "):
        demo()
    assert re.search("Ethernet carried .* and its cap allows 5", found_wrong(tmp_path))


@pytest.mark.nightly
def test_the_demo_fails_where_the_second_path_is_not_used(
    demo: Callable[[], str], only: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse_joins(node: Host) -> Proxy:
        node.run(["ip", "mptcp", "limits", "set", "subflows", "0"])
        return start_proxy(node)

    monkeypatch.setattr(running, "start_proxy", refuse_joins)
    only("mptcp")
    with pytest.raises(DemoError, match="not as it should be: MPTCP through the proxy "):
        demo()
    assert re.search("Wi-Fi carried 0.0 Mbit/s .* and should have been used", found_wrong(tmp_path))


@pytest.mark.nightly
def test_the_demo_fails_where_the_client_speaks_plain_tcp(
    demo: Callable[[], str], only: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(running, "wget", lambda url, **options: wget(url, **{**options, "multipath": False}))
    only("mptcp")
    with pytest.raises(DemoError, match="not as it should be: MPTCP through the proxy "):
        demo()
    assert "the client opened no MPTCP connection" in found_wrong(tmp_path)
