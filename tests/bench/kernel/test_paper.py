# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for Table 1 of the paper on real packets. ``test_paper_remote`` makes a figure."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.console import Console

from mptcp_bench.paper.conversion import SCENARIO
from mptcp_bench.paper.conversion_claims import ANSWER, REQUEST, SYN_AFTER_REQUEST, SYN_AFTER_SYN
from mptcp_bench.paper.settings import NEEDED

pytestmark = [pytest.mark.kernel, pytest.mark.nightly]
MAX_SECONDS = 20.0
"""Maximum delay of a working proxy, however busy the machine is."""


def test_every_request_is_matched_and_leaves_after_its_arrival(require: Callable[..., None]) -> None:
    require(*NEEDED)
    findings = SCENARIO.run(Console(quiet=True), 1, True, {"repetitions": "1"})
    # On a busy machine, a second subflow may join too late. The run is then repeated.
    assert all("attempts repeated" in line for line in findings.wrong)
    for client in ("Multipath TCP", "plain TCP"):
        delays = {each["part"]: each["seconds"] for each in findings.data["runs"] if each["cell"] == client}
        assert delays.keys() == set(SCENARIO.parts(client))
        assert all(0 < seconds < MAX_SECONDS for values in delays.values() for seconds in values)
        assert len(delays[REQUEST]) == 120
        assert all(one < other for one, other in zip(delays[ANSWER], delays[SYN_AFTER_SYN], strict=True))
        assert all(one < other for one, other in zip(delays[SYN_AFTER_REQUEST], delays[REQUEST], strict=True))
