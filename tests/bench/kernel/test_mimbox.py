# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the experiments mimbox-… measure what they claim: MTU, protocol, both paths, own connections, delays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from rich.console import Console

from mptcp_bench.experiments.mimbox import DELAY, GOODPUT, HTTP, MEMORY
from mptcp_bench.experiments.scenario import Scenario

pytestmark = pytest.mark.kernel
TRIES = 3
"""On a loaded machine one path may have room for all data during a measurement."""
OF_THE_MACHINE = ("goodput", "requests/s", "SYN", "data", "user and kernel memory")
"""How aims begin that are the paper's claims: whether they hold depends on the machine."""


@pytest.mark.nightly(besides=("goodput",))
@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        (GOODPUT, {"proxies": "ours", "mtu": "9000"}),
        (HTTP, {"proxies": "ours", "size": "1000"}),
        (MEMORY, {"buffer": "25000,200000"}),
        (DELAY, {}),
    ],
    ids=["goodput", "http", "memory", "delay"],
)
def test_quick_run_measures_what_it_claims(
    scenario: Scenario[Any, Any, Any, Any], options: Mapping[str, str], require: Callable[..., None]
) -> None:
    require("root", "mptcp", "mptcp-pm", "squid", "apache2", "mptcpize", "ss", "ethtool", "gcc", "curl", "tcpdump")
    for _ in range(TRIES):
        findings = scenario.run(Console(quiet=True), 1, True, {"runs": "1", **options})
        missed = [str(aim) for aim in findings.aims if not aim.met and not aim.what.startswith(OF_THE_MACHINE)]
        if not missed:
            break
    assert missed == []
    assert findings.failures == ()
    assert len(findings.data["runs"]) >= 4
