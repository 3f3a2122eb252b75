# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the claims that the experiments mimbox-… repeat, and for their pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from mutants import Judge
from mutants_of_mimbox import MIMBOX_DELAY, MIMBOX_GOODPUT, MIMBOX_HTTP, MIMBOX_MEMORY, Rehearsal, http

from mptcp_bench.experiments.claims import Claim
from mptcp_bench.experiments.mimbox import HTTP

JUDGES = {"goodput": MIMBOX_GOODPUT, "delay": MIMBOX_DELAY, "http": MIMBOX_HTTP, "memory": MIMBOX_MEMORY}


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.9, 0.95, 1.0) * 2, "holds"),
        ((0.5, 0.6, 0.7) * 2, "fails"),
        ((0.7, 0.8, 0.9) * 2, "not judged"),
        ((0.9,) * 5, "not judged"),
        ((0.5,) * 5, "not judged"),
        ((), "not judged"),
        ((0.9, math.nan, 0.9) * 2, "not judged"),
    ],
)
def test_claim_holds_or_fails_only_when_the_whole_interval_is_on_one_side(
    values: Sequence[float], verdict: str
) -> None:
    assert Claim("x", "y", tuple(values), least=0.8).verdict == verdict


def test_claim_by_the_mean_is_judged_after_two_rounds() -> None:
    assert Claim("x", "y", (0.90, 0.91), least=0.8, by="mean").verdict == "holds"


@pytest.mark.parametrize("name", JUDGES)
def test_claim_holds_for_no_mutant_that_misses_its_aim(name: str) -> None:
    judge: Judge = JUDGES[name]
    assert isinstance(judge.sound, Rehearsal)
    assert {claim.verdict for claim in judge.sound.claims()} == {"holds"}
    failing = set()
    for mutant_name, mutant in judge.mutants.items():
        assert isinstance(mutant, Rehearsal)
        for claim in mutant.claims():
            assert claim.aim.met or claim.verdict != "holds", (mutant_name, claim.paper)
            failing |= {claim.paper} if claim.verdict == "fails" else set()
    # Each claim fails for at least one mutant. A claim that is not judged does not count as failed.
    assert failing == {claim.paper for claim in judge.sound.claims()}


@pytest.mark.nightly
def test_picture_has_a_line_for_each_measured_proxy(tmp_path: Path) -> None:
    found = http(lambda turn, one: None if turn.cell.proxy == "squid" else {}).made()
    [picture] = HTTP.pictures(found)
    picture.draw(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert text.count("haproxy, mptcp1") == 2
    assert "squid" not in text
