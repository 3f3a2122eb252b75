# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that proxy and throttler work with middleboxes on the paths, by the experiment that measures each middlebox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
from rich.console import Console

from mptcp_bench.experiments.middleboxes import PLACES, SCENARIO, Download, StatusCheck

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


def test_connection_ends_as_its_middlebox_implies_and_status_follows_the_kernel(require: Callable[..., None]) -> None:
    require(*SCENARIO.needs)
    findings = SCENARIO.run(Console(quiet=True), 1, False, {"behaviour": ",".join(BOXES)})
    names = [each.name for each in fields(Download)]
    downloads = {
        (run["cell"], run["variant"]): Download(**{name: run[name] for name in names}) for run in findings.data["runs"]
    }
    for behaviour, places in BOXES.items():
        assert {place: downloads[behaviour, place].outcome for place in places} == places, behaviour
    # The experiment, not this test, judges how soon the status is right: on a busy machine, many readings precede that.
    of_time = ("time with a wrong status", "time with a cap on the only subflow")
    assert [str(aim) for aim in findings.aims if not aim.met and not aim.what.endswith(of_time)] == []
    for case, download in downloads.items():
        checks = [StatusCheck(*each) for each in download.checks]
        right = [each.status == each.kernel and (each.capped > 0) == (each.kernel > 1) for each in checks]
        assert any(right[len(right) // 2 :]), case
