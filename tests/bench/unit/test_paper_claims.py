# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that every claim of the paper can fail: it holds in the paper's own world, and its mutants break it."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import paper_conversion_mutants as conversion
import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paper_mutants import (
    BREAKS,
    DECIDES,
    FIGURE_MUTANTS,
    NO_DATA_POINT,
    PAPER,
    TODAY,
    UNEXPLAINED,
    UNLIKELY,
    claims,
    experiment,
    noisy,
    verdicts,
)

from mptcp_bench.paper.results import MPTCP, Measurements, Run
from mptcp_bench.paper.scenarios import FIGURES, NAMES, TABLE
from mptcp_bench.paper.verdicts import CLAIMS, judged

IN_THE_GATE = pytest.mark.nightly(except_for=("[fig2", "[fig3", "[fig6", "[table1", "[paper-", "[today-"))
"""Scenarios without and with a cap, and the two worlds that are not mutants."""
ALL_BREAKS = BREAKS | {(TABLE, claim): mutants for claim, mutants in conversion.BREAKS.items()}
ALL_UNEXPLAINED = [*UNEXPLAINED, *((TABLE, claim) for claim in conversion.UNEXPLAINED)]
WORLDS = ("paper", "today", *FIGURE_MUTANTS)
PROXIES = ("paper", "today", *conversion.MUTANTS)


@cache
def found(name: str, key: str) -> Measurements:
    """Return what scenario *key* measures in the world *name*: the paper's, today's, or a mutant of the paper's."""
    if key == TABLE:
        proxies = {"paper": conversion.PAPER, "today": conversion.TODAY}
        return conversion.experiment(proxies.get(name) or conversion.MUTANTS[name](conversion.PAPER))
    worlds = {"paper": PAPER, "today": TODAY}
    return experiment(worlds.get(name) or FIGURE_MUTANTS[name](PAPER), key)


@pytest.mark.parametrize(("key", "claim"), [(key, claim.id) for key in NAMES for claim in CLAIMS[key]])
def test_claim_has_mutants_and_holds_without_them(key: str, claim: str) -> None:
    assert ALL_BREAKS.get((key, claim)), "a claim that nothing breaks says nothing: name its mutants in BREAKS"
    assert verdicts(found("paper", key))[claim] == "holds"
    if verdicts(found("today", key))[claim] == "differs":
        assert (key, claim) in ALL_UNEXPLAINED


@IN_THE_GATE
@pytest.mark.parametrize(
    ("key", "claim", "mutant"), [(*of, mutant) for of, mutants in ALL_BREAKS.items() for mutant in mutants]
)
def test_claim_does_not_hold_when_a_mechanism_is_broken(key: str, claim: str, mutant: str) -> None:
    assert verdicts(found(mutant, key))[claim] == ALL_BREAKS[key, claim][mutant] != "holds"


@pytest.mark.parametrize(
    ("key", "mutant", "reason"),
    [(key, *of) for key in FIGURES if key != "fig2" for of in NO_DATA_POINT.items()]
    + [(TABLE, *of) for of in conversion.NO_DATA_POINT.items()],
)
def test_run_of_the_wrong_kind_is_kept_with_its_reason(key: str, mutant: str, reason: str) -> None:
    measured = found(mutant, key)
    through = [run for run in measured.runs if measured.case(run.case).path is None and run.case != "tcp"]
    assert {(run.valid, run.reason) for run in through} == {(False, reason)}


@pytest.mark.parametrize(("key", "claim"), ALL_UNEXPLAINED)
def test_claim_differs_only_by_the_mechanism_that_was_measured(key: str, claim: str) -> None:
    assert verdicts(found("today", key))[claim] == "differs"
    if key == TABLE:
        without = conversion.experiment(conversion.UNEXPLAINED[claim](conversion.TODAY))
        decides = (MPTCP, "syn_own" if claim == "data-slower" else "least_idle")
    else:
        without, decides = experiment(UNEXPLAINED[key, claim](TODAY), key), DECIDES[key, claim]
    assert verdicts(without)[claim] == "fails"
    # If noise hides the mechanism, the claim is undecided.
    assert verdicts(noisy(found("today", key), decides))[claim] == "not judged"


@pytest.mark.parametrize(("key", "claim"), UNLIKELY)
def test_unmeasured_reason_is_only_likely_and_needs_signs(key: str, claim: str) -> None:
    failed = claims(found("today", key))[claim]
    assert failed.verdict == "fails"
    assert failed.why.startswith("Likely, but not measured: ")
    without = claims(experiment(UNLIKELY[key, claim](TODAY), key))[claim]
    assert (without.verdict, without.why) == ("fails", "")


EVERYWHERE = [(key, name) for key in FIGURES for name in WORLDS] + [(TABLE, name) for name in PROXIES]


@IN_THE_GATE
@pytest.mark.parametrize(("key", "name"), EVERYWHERE)
def test_claim_is_not_judged_by_a_single_run_or_by_noise(key: str, name: str) -> None:
    """In noise, each measured value is far above its mean in one run and equally far below it in the other.

    Counted values do not change: a server without Multipath TCP, or a cap that was never set.
    """
    measured = found(name, key)
    once = replace(measured, runs=tuple(run for run in measured.runs if run.repetition == 1))
    assert set(verdicts(once).values()) == {"not judged"}
    hidden = verdicts(noisy(measured))
    if key == "fig2":
        assert {claim for claim, verdict in hidden.items() if verdict != "not judged"} <= {"fallback"}
    else:
        never_capped = any(0.0 in measured.values(case, "capped") for case in ("repeated", "throttled"))
        assert set(hidden.values()) == {"fails" if never_capped else "not judged"}


@pytest.mark.parametrize("key", NAMES)
def test_every_part_of_a_result_can_be_judged(key: str) -> None:
    """The experiment judges and writes its result after each run."""
    whole = found("paper", key)
    runs = random.Random(1).sample(whole.runs, len(whole.runs))
    for count in range(len(runs) + 1):
        part = judged(replace(whole, runs=tuple(runs[:count])))
        assert len(part) == len(CLAIMS[key])
        assert count or {each.verdict for each in part} == {"not judged"}


SWEPT = (60, 120, 180, 240, 360, 480, 720, 1440)


def swept(goodput: dict[int, float], runs_each: int = 3) -> str:
    """Return the verdict on the required buffer, with *goodput* in Mbit/s by the buffer's size in kB."""
    values = {f"buffer-{kb}": 1e6 * value for kb, value in goodput.items()}
    runs = tuple(
        Run(case, number, True, values={"goodput": value * (1 + number / 1000)})
        for case, value in values.items()
        for number in range(runs_each)
    )
    return verdicts(replace(found("paper", "fig4"), runs=runs))["required"]


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "holds"),
        ({480: 92}, "fails"),
        ({480: 104.5}, "not judged"),
        # The largest buffers are slower than an earlier one, so goodput has no plateau at its maximum.
        ({1440: 50, 720: 60}, "holds"),
    ],
)
def test_required_buffer_is_found_in_the_sweep(changed: dict[int, float], verdict: str) -> None:
    assert swept({kb: min(110, kb / 4) for kb in SWEPT} | changed) == verdict


@settings(max_examples=examples(60), deadline=None)
@given(st.dictionaries(st.sampled_from(SWEPT), st.floats(0.1, 200), max_size=len(SWEPT)), st.integers(1, 3))
@example({480: 110, 1440: 110}, 3)
def test_any_sweep_can_be_judged(goodput: dict[int, float], runs_each: int) -> None:
    assert swept(goodput, runs_each) in ("holds", "fails", "not judged")
