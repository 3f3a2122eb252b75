# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``crowds`` on real packets: limits work, and without them an aim is missed."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from mptcp_bench.experiments.crowds import BUSY, NEW, NEW_LIMITED, ONE_ADDRESS, SCENARIO

pytestmark = pytest.mark.kernel
STANDING = f"{ONE_ADDRESS}: connections that stand, × its share"


@pytest.mark.nightly
@pytest.mark.parametrize("limits", ["yes", "no"])
def test_one_address_has_its_share_unless_nothing_limits_it(limits: str, require: Callable[..., None]) -> None:
    require("root", "mptcp", "squid", "apache2")
    options = {"arm": ONE_ADDRESS, "runs": "2", "requests": "10", "limits": limits}
    findings = SCENARIO.run(Console(file=io.StringIO()), 1, True, options)
    # The seconds of requests depend on the machine.
    missed = {aim.what for aim in findings.aims if not aim.met and "latency" not in aim.what}
    assert missed == (set() if limits == "yes" else {f"{STANDING}, most"})
    assert findings.failures == ()


@pytest.mark.nightly
def test_busy_client_gets_answers_and_conf_nftables_limits_new_connections(
    require: Callable[..., None],
) -> None:
    require("root", "mptcp", "squid", "apache2", "gcc", "nftables")
    options = {"arm": ",".join(BUSY), "runs": "2", "requests": "10"}
    findings = SCENARIO.run(Console(file=io.StringIO()), 1, True, options)
    # The seconds of requests, and who waits, depend on the machine.
    assert {aim.what for aim in findings.aims if not aim.met and "latency" not in aim.what} == set()
    answers = {arm: [each["answers"] for each in findings.data["runs"] if each["cell"] == arm] for arm in BUSY}
    # 50 a second, plus the rest of an earlier second.
    assert max(answers[NEW_LIMITED]) < min(100, *answers[NEW])
    assert findings.failures == ()
