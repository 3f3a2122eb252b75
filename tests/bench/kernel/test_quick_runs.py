# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that experiments which no product test covers measure what they claim: one quick run of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from rich.console import Console

from mptcp_bench.experiments import EXPERIMENTS

pytestmark = pytest.mark.kernel
ATTEMPTS = 3
"""Number of attempts, because on a loaded machine one path may have room for all data during a measurement."""
CLAIMS = ("goodput", "requests/s", "SYN", "data", "user and kernel memory")
"""Prefixes of the aims that are claims of the paper: whether they are met depends on the machine."""
SPEEDS = (
    "reaction", "lag", "cores", "status --json", "scrape", "opened per second", "joins per", "one core", "p99",
)  # fmt: skip
"""Words of the aims of ``load`` that depend on the machine."""


@pytest.mark.nightly(except_for=("goodput",))
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mimbox-goodput", {"runs": "1", "proxies": "ours", "mtu": "9000"}),
        ("mimbox-http", {"runs": "1", "proxies": "ours", "size": "1000"}),
        ("mimbox-memory", {"runs": "1", "buffer": "25000,200000"}),
        ("mimbox-delay", {"runs": "1"}),
        ("load", {"netfilter": "nftables", "n": "50"}),
        ("soak", {}),
    ],
    ids=["goodput", "http", "memory", "delay", "load", "soak"],
)
def test_quick_run_measures_what_it_claims(name: str, options: Mapping[str, str], require: Callable[..., None]) -> None:
    require("root", "mptcp", "mptcp-pm", "squid", "apache2", "mptcpize", "ss", "ethtool", "gcc", "curl", "tcpdump")
    for _ in range(ATTEMPTS):
        findings = EXPERIMENTS[name].load().run(Console(quiet=True), 1, True, options)
        missed = [str(aim) for aim in findings.aims if not aim.met and not aim.what.startswith(CLAIMS)]
        missed = [aim for aim in missed if not any(word in aim for word in SPEEDS)]
        if not missed:
            break
    assert missed == []
    assert findings.failures == ()
    assert findings.data["runs"]
