# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that Table 1's claims can fail, and for the runs by which they are judged."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from named_faults import FAULTS, PAPERS, Reason
from paper_conversion_mutants import (
    BREAKS,
    MUTANTS,
    NO_DATA_POINT,
    PAPER,
    TODAY,
    UNEXPLAINED,
    experiment,
    verdicts,
)
from paper_mutants import noisy

from mptcp_bench.paper.conversion import FAST, PACED, SMALL, UPLOAD, estimate, run_of, workloads
from mptcp_bench.paper.conversion_metrics import MPTCP, TCP
from mptcp_bench.paper.results import Run
from mptcp_bench.paper.verdicts import CLAIMS, judged
from mptcp_bench.wire.workload import Conversions
from mptcp_lab.agent.processors import Usage


@pytest.mark.parametrize("claim", [claim.id for claim in CLAIMS["table1"]])
def test_a_claim_has_mutants_and_holds_without_them(claim: str) -> None:
    assert BREAKS.get(claim), "a claim that nothing breaks says nothing: name its mutants in BREAKS"
    assert verdicts(experiment(PAPER))[claim] == "holds"


@pytest.mark.parametrize(("claim", "mutant"), [(claim, name) for claim, names in BREAKS.items() for name in names])
def test_a_mutant_breaks_a_claim(claim: str, mutant: str) -> None:
    assert verdicts(experiment(MUTANTS[mutant](PAPER)))[claim] == BREAKS[claim][mutant] != "holds"


@pytest.mark.parametrize("mutant", NO_DATA_POINT)
def test_what_is_not_of_the_kind_wanted_is_kept_with_its_reason(mutant: str) -> None:
    runs = experiment(MUTANTS[mutant](PAPER)).runs
    assert {(run.valid, run.reason) for run in runs if run.case == MPTCP} == {(False, NO_DATA_POINT[mutant])}
    assert all(run.valid for run in runs if run.case == TCP)


def test_the_named_faults_are_there_or_it_is_said_why_not() -> None:
    answers = PAPERS["table1"]
    assert set(answers) == set(FAULTS)
    assert {answer for answer in answers.values() if not isinstance(answer, Reason)} <= set(MUTANTS)


@pytest.mark.parametrize("claim", UNEXPLAINED)
def test_what_differs_does_so_by_the_mechanism_that_was_measured(claim: str) -> None:
    assert verdicts(experiment(TODAY))[claim] == "differs"
    assert verdicts(experiment(UNEXPLAINED[claim](TODAY)))[claim] == "fails"


@pytest.mark.parametrize(
    ("claim", "metric"), [("syn", "least_idle"), ("data", "least_idle"), ("data-slower", "syn_own")]
)
def test_a_mechanism_that_noise_hides_is_none(claim: str, metric: str) -> None:
    hidden = judged(noisy(experiment(TODAY), (MPTCP, metric)))
    assert verdicts(hidden)[claim] == "not judged"


def test_nothing_else_differs() -> None:
    assert {id for id, verdict in verdicts(experiment(TODAY)).items() if verdict == "differs"} == set(UNEXPLAINED)


def test_a_slower_proxy_fails() -> None:
    found = verdicts(experiment(MUTANTS["ten times as slow"](PAPER)))
    assert (found["syn"], found["data"]) == ("fails", "fails")


WORLDS = {"paper": PAPER, "today": TODAY} | {name: change(PAPER) for name, change in MUTANTS.items()}


@pytest.mark.parametrize("name", WORLDS)
def test_one_repetition_decides_nothing(name: str) -> None:
    assert set(verdicts(experiment(WORLDS[name], repetitions=1)).values()) == {"not judged"}


@pytest.mark.parametrize("name", WORLDS)
def test_what_noise_hides_is_not_judged(name: str) -> None:
    assert set(verdicts(judged(noisy(experiment(WORLDS[name])))).values()) == {"not judged"}


def test_where_nothing_was_measured_nothing_is_judged() -> None:
    empty = replace(experiment(PAPER), runs=(Run(MPTCP, 1, valid=False, reason="no"),))
    assert set(verdicts(judged(empty)).values()) == {"not judged"}


def test_a_run_has_the_distributions_that_the_figure_draws() -> None:
    one = experiment(PAPER).runs[0]
    kinds = {"syn up", "syn-whole up", "data up", "data down", "stream up", "stream down", "bulk down"}
    assert set(one.distributions) == kinds
    assert (one.case, one.repetition, one.valid) == (MPTCP, 1, True)
    assert one.values["median_stream_up"] == PAPER.stream
    assert (one.values["idle"], one.values["least_idle"]) == (PAPER.idle, PAPER.least_idle)


def test_a_real_origin_is_not_slowed_down() -> None:
    assert PACED not in workloads(emulated=False)
    assert estimate(2, emulated=False) < estimate(2)
    few = tuple(PAPER.exchange(random.Random(1)) for _ in range(3))
    measured = {workload.key: Conversions(few, Usage(0.0, 0.5, None)) for workload in (SMALL, FAST, UPLOAD)}
    assert "stream down" not in run_of(MPTCP, 1, measured).distributions
