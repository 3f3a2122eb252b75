# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for proxy and throttler behind middleboxes, by the experiment that defines the result with each middlebox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
from rich.console import Console

from mptcp_bench.experiments.findings import Findings
from mptcp_bench.experiments.middleboxes import PLACES, SCENARIO, Download

pytestmark = [pytest.mark.kernel, pytest.mark.nightly]
PLAIN = "plain TCP"
BOXES = {
    "nothing": dict.fromkeys(PLACES, "two subflows"),
    "remove-syn": {"ethernet": PLAIN, "wifi": "one subflow", "both": PLAIN},
    "sequence": dict.fromkeys(PLACES, "two subflows"),
    "remove-data": {"both": "fell back"},
    "alg-longer": {"both": "fell back"},
}
"""State of the connection for each place of the middlebox, if only one state is possible."""


@pytest.fixture(scope="module")
def found(require: Callable[..., None]) -> Findings:
    require("root", "mptcp", "mptcp-pm", "tbf", "htb", "nfqueue", "gcc", "apache2", "squid", "curl", "mptcpize", "ss")
    return SCENARIO.run(Console(quiet=True), 1, False, {"behaviour": ",".join(BOXES)})


def downloads(found: Findings) -> list[Download]:
    names = [each.name for each in fields(Download)]
    return [Download(**{name: run[name] for name in names}) for run in found.data["runs"]]


def test_connection_ends_as_its_middlebox_implies(found: Findings) -> None:
    outcomes = {(each.behaviour, each.place): each.outcome for each in downloads(found)}
    for behaviour, places in BOXES.items():
        assert {place: outcomes[behaviour, place] for place in places} == places, behaviour


def test_packets_are_changed_by_the_middlebox(found: Findings) -> None:
    aims = {aim.what: aim for aim in found.aims if "packets changed" in aim.what}
    assert len(aims) == len(BOXES) - 1
    assert [str(aim) for aim in aims.values() if not aim.met] == []


def test_downloads_are_whole_and_status_follows_the_kernel(found: Findings) -> None:
    wholes = {aim.what: aim.value for aim in found.aims if aim.what.endswith("downloads whole")}
    assert wholes == {f"{behaviour}: downloads whole": 1 for behaviour in BOXES}
    # The experiment, not this test, judges how soon the status is right: on a busy machine, many readings precede that.
    for each in downloads(found):
        right = [look.status == look.kernel and (look.capped > 0) == (look.kernel > 1) for look in each.looks]
        assert any(right[len(right) // 2 :]), each
