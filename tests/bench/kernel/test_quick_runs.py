# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that experiments which no product test covers measure what they claim: one quick run of each.

``test_remote`` in tests/lab makes a figure of the paper, and ``test_relay_peers`` tests ``relay``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from mptcp_bench.demo import DEMO, running
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.middleboxes import SURVIVED
from mptcp_bench.experiments.scenario import ATTEMPTS, Attempts
from mptcp_bench.experiments.vpn_bed import NEEDS, Bed, measure, set_control, vpn_bed
from mptcp_bench.experiments.vpn_cells import CONTROLS, OVER_TCP, WAYS, Condition, Vpn
from mptcp_bench.paper import PAPER
from mptcp_bench.shipped import POLICY
from mptcp_lab.testbed.services import write_throttler_config
from mptcp_lab.testbed.system_state import differences, kernel_state

pytestmark = pytest.mark.kernel
CLAIMS = ("goodput", "requests/s", "SYN", "data", "user and kernel memory")
"""Prefixes of the aims that are claims of the paper: whether they are met depends on the machine."""
SPEEDS = (
    "reaction", "lag", "cores", "status --json", "scrape", "opened per second", "joins per", "one core", "p99",
    "time with a",
)  # fmt: skip
"""Words of the aims of ``load`` and ``middleboxes`` that depend on the machine."""
CELL = Condition(20, 40, inner=CONTROLS)


@pytest.mark.nightly(except_for=("[goodput]", "[demo]"))
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("demo", {}),
        ("table1", {"repetitions": "1"}),
        ("mimbox-goodput", {"runs": "1", "proxies": "ours", "mtu": "9000"}),
        ("mimbox-http", {"runs": "1", "proxies": "ours", "size": "1000"}),
        ("mimbox-memory", {"runs": "1", "buffer": "25000,200000"}),
        ("mimbox-delay", {"runs": "1"}),
        ("middleboxes", {"behaviour": ",".join((*SURVIVED, "remove-syn", "remove-data", "alg-longer"))}),
        ("load", {"netfilter": "nftables", "n": "50"}),
        ("soak", {}),
    ],
    ids=["demo", "table1", "goodput", "http", "memory", "delay", "middleboxes", "load", "soak"],
)
def test_quick_run_measures_what_it_claims(name: str, options: Mapping[str, str], require: Callable[..., None]) -> None:
    """On a loaded machine, one path may have room for all data during a measurement. Then it is repeated."""
    scenario = {**PAPER, **EXPERIMENTS, "demo": DEMO}[name].load()
    require(*scenario.needs)
    for _ in range(ATTEMPTS):
        findings = scenario.run(Console(quiet=True), 1, True, options)
        missed = [str(aim) for aim in findings.aims if not aim.met and not aim.what.startswith(CLAIMS)]
        missed = [aim for aim in missed if not any(word in aim for word in SPEEDS)]
        if not missed:
            break
    assert missed == []
    assert findings.failures == ()
    assert findings.data["runs"]


@pytest.mark.nightly
def test_demo_fails_when_the_policy_is_not_enforced(
    require: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The throttler caps the other path. The demo still expects the cap of the shipped policy."""
    require(*running.SCENARIO.needs)
    text, shipped = POLICY.read_text(), "    paths: [ethernet]"
    assert shipped in text
    policy = tmp_path / "broken.yaml"
    policy.write_text(text.replace(shipped, "    paths: [wifi]", 1))
    cells = running.SCENARIO.cells
    scenario = replace(running.SCENARIO, cells=lambda chosen: cells(chosen)[-1:])
    # The measurement reads the aims from the module.
    monkeypatch.setattr(running, "SCENARIO", scenario)
    monkeypatch.setattr(running, "write_throttler_config", lambda node, _: write_throttler_config(node, policy))
    wrong = scenario.run(Console(quiet=True), 1, True, {}).wrong
    assert any(": Ethernet, Mbit/s: " in line for line in wrong)


@pytest.fixture(scope="module")
def bed(require: Callable[..., None]) -> Iterator[Bed]:
    require(*NEEDS)
    with vpn_bed(CELL.paths, 1, 3.0) as built:
        yield built


@pytest.mark.nightly(except_for=("tunnel",))
@pytest.mark.parametrize("way", WAYS)
def test_way_carries_downloads_as_its_name_says_and_restores_the_state(bed: Bed, way: str) -> None:
    nodes = (bed.client, bed.server)
    for node in nodes:
        set_control(node, "bbr")
    before = list(map(kernel_state, nodes))
    turn = Turn(CELL, str(Vpn(way, "bbr" if way in OVER_TCP else "")), 1)
    attempts = Attempts(Console(quiet=True))
    points = attempts.try_run(partial(measure, bed, turn), way, ATTEMPTS)
    assert points is not None, attempts.failures
    assert list(points) == list(CONTROLS)
    assert all(point.goodput > 1e6 for point in points.values())
    # Where TCP itself distributes the connections, all connections inside the VPN may use the same path.
    assert not WAYS[way].both or max(point.second for point in points.values()) > 0.05
    assert [differences(state, kernel_state(node)) for state, node in zip(before, nodes, strict=True)] == [[], []]
