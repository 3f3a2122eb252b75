# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that every claim of the paper can fail: it holds in the paper's own world, and its mutants break it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from examples import examples
from named_faults import FAULTS, PAPERS, Reason
from paper_mutants import (
    BREAKS,
    DECIDES,
    FIGURE_MUTANTS,
    NO_DATA_POINT,
    PAPER,
    TODAY,
    UNEXPLAINED,
    UNLIKELY,
    World,
    experiment,
    noisy,
    verdicts,
)

from mptcp_bench.paper.results import Cause, PaperResult
from mptcp_bench.paper.scenarios import NAMES, SCENARIOS
from mptcp_bench.paper.verdicts import CLAIMS, judged
from mptcp_bench.result_file import JudgedClaim, from_json, to_json

IN_THE_GATE = pytest.mark.nightly(besides=("[fig2", "[fig3", "[fig6", "[paper-", "[today-"))
"""Scenarios without and with a cap, and the two worlds that are not mutants."""
CLAIMED = [(key, claim.id) for key in SCENARIOS for claim in CLAIMS[key]]


@cache
def found(name: str, key: str) -> PaperResult:
    """Return the result of scenario *key* in the paper's world, in today's, or in the mutant *name* of the paper's."""
    worlds = {"paper": PAPER, "today": TODAY}
    return experiment(worlds[name] if name in worlds else FIGURE_MUTANTS[name](PAPER), key)


@pytest.mark.parametrize(("key", "claim"), CLAIMED)
def test_a_claim_has_mutants_and_holds_without_them(key: str, claim: str) -> None:
    assert BREAKS.get((key, claim)), (
        "a claim that nothing breaks says nothing: name its mutants in paper_mutants.BREAKS"
    )
    verdict = next(v for v in found("paper", key).claims if v.id == claim)
    assert verdict.verdict == "holds", (verdict, [run.reason for run in found("paper", key).failed()])


@IN_THE_GATE
@pytest.mark.parametrize(("key", "claim", "mutant"), [(*of, name) for of, names in BREAKS.items() for name in names])
def test_a_mutant_breaks_a_claim(key: str, claim: str, mutant: str) -> None:
    verdict = next(v for v in found(mutant, key).claims if v.id == claim)
    assert verdict.verdict == BREAKS[key, claim][mutant] != "holds", verdict


def test_the_named_faults_are_those_of_all_of_the_papers_experiments() -> None:
    assert sorted(PAPERS) == sorted(NAMES)


@pytest.mark.parametrize("key", SCENARIOS)
def test_each_experiment_has_the_named_faults_or_says_why_not(key: str) -> None:
    assert set(PAPERS[key]) == set(FAULTS)
    broken = {mutant for (scenario, _), mutants in BREAKS.items() if scenario == key for mutant in mutants}
    assert {answer for answer in PAPERS[key].values() if not isinstance(answer, Reason)} <= broken


@pytest.mark.parametrize("key", [key for key in SCENARIOS if key != "fig2"])
@pytest.mark.parametrize("mutant", NO_DATA_POINT)
def test_what_is_not_of_the_kind_wanted_is_kept_with_its_reason(key: str, mutant: str) -> None:
    result = found(mutant, key)
    through = [run for run in result.runs if result.case(run.case).path is None]
    assert {(run.valid, run.reason) for run in through} == {(False, NO_DATA_POINT[mutant])}


@pytest.mark.parametrize("mutant", ["throttler dead", "throttler caps the wrong path", "cap never comes"])
@pytest.mark.parametrize("key", ["fig6", "fig7"])
def test_nothing_holds_of_a_throttler_that_does_not_throttle(key: str, mutant: str) -> None:
    assert set(verdicts(found(mutant, key)).values()) == {"fails"}


@pytest.mark.parametrize("key", SCENARIOS)
def test_nothing_is_judged_without_emulation(key: str) -> None:
    result = found("emulator off", key)
    assert not any(run.valid for run in result.runs)
    assert {run.reason.partition(" has ")[0] for run in result.runs} == {"ethernet"}
    assert set(verdicts(result).values()) == {"not judged"}


@pytest.mark.parametrize(("key", "claim"), UNEXPLAINED)
def test_what_differs_does_so_by_the_mechanism_that_was_measured(key: str, claim: str) -> None:
    assert verdicts(found("today", key))[claim] == "differs"
    without = UNEXPLAINED[key, claim](TODAY)
    assert verdicts(experiment(without, key))[claim] == "fails"


@pytest.mark.parametrize(("key", "claim"), UNEXPLAINED)
def test_a_mechanism_that_noise_hides_is_none(key: str, claim: str) -> None:
    hidden = noisy(found("today", key), DECIDES[key, claim])
    assert verdicts(judged(hidden))[claim] == "not judged"


def test_a_sign_that_noise_hides_is_no_likely_reason() -> None:
    hidden = judged(noisy(found("today", "fig3"), ("tcp-ethernet", "rate_ethernet")))
    claim = next(each for each in hidden.claims if each.id == "wifi-unused")
    assert (claim.verdict, claim.why) == ("fails", "")


@pytest.mark.parametrize(("key", "claim"), UNLIKELY)
def test_what_was_not_measured_is_no_reason_to_differ(key: str, claim: str) -> None:
    def judged_claim(result: PaperResult) -> JudgedClaim:
        return next(each for each in result.claims if each.id == claim)

    failed = judged_claim(found("today", key))
    assert failed.verdict == "fails"
    assert failed.why.startswith("Likely, but not measured: ")
    without = judged_claim(experiment(UNLIKELY[key, claim](TODAY), key))
    assert (without.verdict, without.why) == ("fails", "")


@pytest.mark.parametrize(("key", "claim"), CLAIMED)
def test_nothing_else_differs(key: str, claim: str) -> None:
    if verdicts(found("today", key))[claim] == "differs":
        assert (key, claim) in UNEXPLAINED


def test_a_result_without_what_decides_it_loads_and_is_not_judged() -> None:
    """Until 2026-11-23 results had only the idle time of all processors together, not of the busiest one."""
    kept = found("today", "fig5")
    runs = tuple(replace(run, values={k: v for k, v in run.values.items() if k != "least_idle"}) for run in kept.runs)
    old = from_json(to_json(judged(replace(kept, runs=runs))), "f", PaperResult)
    assert old.values("mtu-1000", "idle") == kept.values("mtu-1000", "idle") != ()
    assert verdicts(judged(old)) == verdicts(kept) | {"unstable": "not judged"}


WORLDS = ("paper", "today", *FIGURE_MUTANTS)


@IN_THE_GATE
@pytest.mark.parametrize("key", SCENARIOS)
@pytest.mark.parametrize("name", WORLDS)
def test_a_single_run_of_each_case_is_not_judged(name: str, key: str) -> None:
    found_once = found(name, key)
    once = judged(replace(found_once, runs=tuple(run for run in found_once.runs if run.repetition == 1)))
    assert set(verdicts(once).values()) == {"not judged"}


@IN_THE_GATE
@pytest.mark.parametrize("key", SCENARIOS)
@pytest.mark.parametrize("name", WORLDS)
def test_what_noise_hides_is_not_judged(name: str, key: str) -> None:
    """Each measured value is far above its mean in one run and equally far below it in the other.

    Counted values stay: a server without Multipath TCP, a cap that never came.
    """
    hidden = verdicts(judged(noisy(found(name, key))))
    counted = {claim for claim, verdict in hidden.items() if verdict != "not judged"}
    if key == "fig2":
        assert counted <= {"fallback"}
    elif never_capped(found(name, key)):
        assert set(hidden.values()) == {"fails"}
    else:
        assert not counted


def never_capped(result: PaperResult) -> bool:
    """Return whether the cap on Ethernet never came into force. All claims about throttled transfers depend on it."""
    return any(0.0 in result.values(case, "capped") for case in ("repeated", "throttled"))


@pytest.mark.parametrize("seed", range(examples(8)))
@pytest.mark.parametrize(("key", "claim"), [("fig3", "capacity"), ("fig6", "no-less")])
def test_noise_confirms_no_claim_of_no_less(key: str, claim: str, seed: int) -> None:
    """The rates of the two runs spread by half of their mean."""
    noisy = experiment(World(spread=0.5, links={"ethernet": 90e6, "wifi": 18e6}), key, repetitions=2, seed=seed)
    assert verdicts(noisy)[claim] != "holds"


def test_a_server_that_is_multipath_is_recorded_by_its_cause() -> None:
    result = found("server is multipath", "fig2")
    assert {run.cause for run in result.runs} == {Cause.NO_FALLBACK}
    assert verdicts(result)["fallback"] == "fails"
