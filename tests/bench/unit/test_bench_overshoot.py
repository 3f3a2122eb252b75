# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment overshoot: byte counters, its poller, and its options."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from mutants import Load, constant, rehearsed, series
from mutants_of_overshoot import CAPPED, FULL, PHASE, outcome, overshoot, until
from rich.console import Console

from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.overshoot import (
    AGAIN,
    FIRST,
    PACKET,
    SCENARIO,
    Poller,
    expected,
    first_packet,
    judge,
)


def test_a_transfer_under_its_cap_has_no_overshoot() -> None:
    found = outcome(CAPPED)
    assert (found.mean, found.rate / 1e6, found.other / 1e6) == pytest.approx((1, 5, 20), rel=0.01)
    assert found.ahead < 100_000, "an interval of the samples"
    assert found.excess < 18_000, "a burst of the class, and an initial window"
    assert found.above == 0
    assert found.early == pytest.approx(1, rel=0.02)
    assert outcome(until(1)).early == pytest.approx((48 + 9 * 5) / 50, rel=0.03), "of ten seconds, whatever follows"


@pytest.mark.parametrize(("ours", "floor"), [(constant(4.5), PACKET), (until(0.5), None)])
def test_the_overshoot_of_a_poller_is_a_multiple_of_ours_or_of_one_packet(ours: Load, floor: int | None) -> None:
    [aim] = [aim for aim in overshoot(ours=ours)() if "poller: expected" in aim.what]
    assert aim.what == "poller: expected overshoot, × the most of ours, but 1500 B at the least"
    poller = expected([(PHASE, outcome(until(PHASE), phase=PHASE))])
    assert aim.value == pytest.approx(poller / (floor or outcome(ours).ahead))


def test_what_a_poller_lets_through_grows_with_its_phase() -> None:
    found = outcome(until(PHASE), phase=PHASE)
    assert found.ahead == pytest.approx((48 - 5) / 8 * 1e6 * PHASE, rel=0.02)
    assert found.above == pytest.approx(PHASE, abs=0.2)
    assert found.rate == pytest.approx(48e6, rel=0.01)
    measured = [(phase, outcome(until(phase), phase=phase)) for phase in (4.0, 26.0)]
    assert expected(measured) == pytest.approx((48 - 5) / 8 * 1e6 * 15, rel=0.03)
    assert math.isnan(expected([]))


def test_a_transfer_begins_with_its_first_packet_not_with_what_was_there_before() -> None:
    samples = series({"eth0": lambda t: 0.0005 if t < 2 else 5, "wlan0": constant(20)}, 12)
    assert first_packet(samples) == pytest.approx(2.0, abs=0.11)
    with pytest.raises(ValueError, match="nothing came"):
        first_packet(series({"eth0": constant(0)}, 2))
    with pytest.raises(ValueError, match="is over after"):
        judge(samples, 5_000_000, 4.0, None)


def test_the_poller_caps_once_and_not_what_is_little() -> None:
    readings, capped = iter([0, 10, 2_000_000, 9_000_000]), []
    poller = Poller(lambda: next(readings), lambda: capped.append(time.monotonic()), 0.0, 0.01)
    begin = time.monotonic()
    poller.start(begin)
    # Run five more turns after the cap.
    while poller.capped_at is None or poller._paced._due < poller.capped_at + 0.05:
        assert time.monotonic() < begin + 60
        time.sleep(0.005)
    poller.stop()
    assert len(capped) == 1
    assert next(readings) == 9_000_000


def test_variants_take_turns_and_the_poller_reads_in_the_middle_of_each_part_of_its_period() -> None:
    turns = SCENARIO.plan(SCENARIO.chosen({"runs": "2", "variant": "ours,static,poller"}))
    phases = [5.0, 15.0, 25.0]
    pollers = [f"poller, reading after {phase:.1f} s" for phase in phases]
    assert list(map(str, turns)) == ["ours", "static", *pollers, "ours", "static"]
    assert [turn.cell.phase for turn in turns if turn.cell.phase] == phases


@pytest.mark.parametrize(
    "option", ["variant=theirs", "phases=0", "phases=x", "cap=50", "cap=0", "seconds=30", "runs=1"]
)
def test_an_option_that_makes_no_sense_is_refused(option: str) -> None:
    with pytest.raises(OptionError, match=rf"^--set {option}: "):
        SCENARIO.chosen(dict([option.split("=")]))


def test_table_and_picture_show_each_variant(tmp_path: Path) -> None:
    runs = {"none": outcome(FULL), "poller": outcome(until(PHASE), phase=PHASE)}
    found = rehearsed(
        SCENARIO,
        {"variant": "none,poller", "phases": "1"},
        lambda turn: dict.fromkeys((FIRST, AGAIN), runs[turn.cell.variant]),
    )
    findings = SCENARIO.findings(found.turns, found.runs)
    console = Console(width=140, record=True, file=(tmp_path / "shown").open("w"))
    console.print(findings.tables[0])
    shown = console.export_text()
    assert all(word in shown for word in ("no policy", "never", "reading after 15.0 s", "mean over all phases"))
    [picture] = findings.pictures
    picture.draw(tmp_path / "overshoot.png")
    assert (tmp_path / "overshoot.png").stat().st_size > 10_000
