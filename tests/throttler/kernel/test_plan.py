# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the commands printed by ``plan`` create the same state as the daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from throttler_site import features_needed_by

from mptcp_common.throttler_needs import BACKENDS
from mptcp_lab.testbed import Testbed
from mptcp_throttler.config.files import read_connections
from mptcp_throttler.config.settings import load_settings
from mptcp_throttler.kernel.netfilter.backends import open_netfilter
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.shaping.model import ClassSpec, Ownership, Target
from mptcp_throttler.shaping.plan import Planner

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[3]
NOW = 1_795_000_000.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_printed_commands_create_the_desired_state(
    testbed: Testbed, tmp_path: Path, require: object, backend: str
) -> None:
    require("htb", *features_needed_by(backend))  # type: ignore[operator]
    proxy = testbed["proxy"]
    commands = (ROOT / f"tests/throttler/golden/plan-{backend}.txt").read_text()
    proxy.run(["sh", "-e"], input=commands)
    planner = Planner(Ownership())
    policy = load_policy((ROOT / "conf/policy.yaml").read_text(), "policy.yaml")
    planner.set_policy(policy)
    settings = load_settings("interfaces: [wan0]\npolicy: policy.yaml\n", "throttler.yaml")
    for connection in read_connections(ROOT / "tests/throttler/golden/subflows.yaml", settings, NOW):
        planner.set_verdicts(connection.token, evaluate(policy, connection, NOW), NOW)

    async def read_state() -> tuple[dict[int, ClassSpec], dict[FourTuple, Target]]:
        tc = HtbTrafficControl(["wan0"], Ownership(), tmp_path)
        _, netfilter = open_netfilter(backend, Ownership())
        await tc.prepare()
        await netfilter.prepare()
        classes, entries = (await tc.read())[1], await netfilter.read_entries()
        await netfilter.remove()
        await tc.restore()
        netfilter.close()
        assert classes is not None
        return classes, entries

    with proxy.entered():
        classes, entries = asyncio.run(read_state())
    assert entries == planner.entries.desired
    assert classes.keys() == planner.classes.desired.keys()
    assert all(spec.same_as(classes[minor]) for minor, spec in planner.classes.desired.items())
    rules = proxy.run(["sh", "-c", "iptables-legacy-save -t mangle; ipset save; nft list ruleset"]).stdout
    assert "throttler" not in rules
