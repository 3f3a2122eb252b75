# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for edge cases of the verdicts: what is not judged, the reasons, and that any order of runs can be judged.

``test_paper_mutants`` tests that each claim holds, fails and differs when it should.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_examples import PROVENANCE
from paper_mutants import World, experiment

from mptcp_bench.paper import engine
from mptcp_bench.paper.parameters import Parameters
from mptcp_bench.paper.results import (
    Cause,
    PaperResult,
    Reference,
    Run,
)
from mptcp_bench.paper.scenarios import NAMES, SCENARIOS
from mptcp_bench.paper.verdicts import CLAIMS, judged
from mptcp_bench.result_file import JudgedClaim

Values = dict[str, float]


def verdicts(key: str, values: dict[str, Values], runs_each: int = 3) -> dict[str, JudgedClaim]:
    """Judge scenario *key* if the runs of each case have about these *values*."""
    scenario, parameters = SCENARIOS[key], Parameters.of()
    planned = engine.plan(scenario, parameters, 1, False)
    runs = tuple(
        Run(case, number, True, values={k: v * (1 + number / 1000) for k, v in found.items()})
        for case, found in values.items()
        for number in range(runs_each)
    )
    result = PaperResult(
        provenance=PROVENANCE, experiment=key, title=scenario.title, paper=scenario.figure,
        parameters=dict(parameters.as_text()), seed=1, complete=True, repetitions=3,
        cases=engine.cases(scenario, planned, parameters), runs=runs,
        references=(Reference("sweep", 480_000, "needed"),),
    )  # fmt: skip
    return {verdict.id: verdict for verdict in judged(result).claims}


def rates(goodput: float, ethernet: float = 0.0, wifi: float = 0.0, **more: float) -> Values:
    total = ethernet + wifi or 1.0
    return {
        "goodput": goodput * 1e6,
        "rate_ethernet": ethernet * 1e6,
        "rate_wifi": wifi * 1e6,
        "share_ethernet": ethernet / total,
        "share_wifi": wifi / total,
        **more,
    }


SWEPT = (60, 120, 180, 240, 360, 480, 720, 1440)


def sweep(**changed: float) -> dict[str, Values]:
    """Return goodput in Mbit/s that grows with the buffer up to 0.44 MB, except for the *changed* sizes."""
    return {f"buffer-{kb}": rates(changed.get(f"at{kb}", min(110, kb / 4)), 99, 20) for kb in SWEPT}


ALONE = {"tcp-ethernet": rates(94, 99, 0), "tcp-wifi": rates(19, 0, 20)}
IN_FORCE = {"capped": 1.0, "time_to_throttle": 0.0, "joined": 0.01}


@pytest.mark.parametrize(
    ("key", "values", "claim", "verdict"),
    [
        ("fig2", {"tcp-ethernet": rates(94), "tcp-wifi": rates(19)}, "alone", "holds"),
        ("fig2", {"tcp-ethernet": rates(50), "tcp-wifi": rates(19)}, "alone", "fails"),
        ("fig3", {"mptcp": rates(112), "tcp-ethernet": rates(94)}, "capacity", "holds"),
        ("fig3", {"mptcp": rates(91), "tcp-ethernet": rates(94)}, "capacity", "holds"),
        ("fig3", {"mptcp": rates(88), "tcp-ethernet": rates(94)}, "capacity", "fails"),
        ("fig3", {"mptcp": rates(112, 98, 20)}, "ethernet-first", "not judged"),
        ("fig3", {"mptcp": rates(112, 98, 20), **ALONE}, "wifi-unused", "fails"),
        ("fig3", {"mptcp": rates(60, 40, 20), **ALONE}, "wifi-unused", "fails"),
        ("fig4", {"small": rates(60), "large": rates(110)}, "small-degrades", "holds"),
        ("fig4", {"small": rates(110), "large": rates(110)}, "small-degrades", "fails"),
        ("fig4", {"large": rates(110, 98, 19), **sweep()}, "large-suffices", "holds"),
        ("fig4", {"large": rates(110, 98, 12), **sweep()}, "large-suffices", "fails"),
        ("fig4", {"large": rates(110, 40, 19), **sweep()}, "large-suffices", "fails"),
        ("fig4", {"large": rates(110, 98, 19)}, "large-suffices", "not judged"),
        ("fig4", sweep(), "required", "holds"),
        ("fig4", sweep(at480=92), "required", "fails"),
        ("fig4", sweep(at480=104.5), "required", "not judged"),
        # The largest buffers are slower than an earlier one, so goodput has no plateau at its maximum.
        ("fig4", sweep(at1440=50, at720=60), "required", "holds"),
        ("fig4", {"buffer-480": rates(110), "buffer-1440": rates(110)}, "required", "not judged"),
        ("fig4", {"buffer-240": rates(60), "buffer-1440": rates(110)}, "required", "not judged"),
        ("fig4", {"buffer-720": rates(60), "buffer-1440": rates(110)}, "required", "not judged"),
        ("fig5", {"mtu-1000": rates(105), "mtu-1500": rates(110)}, "lower", "holds"),
        ("fig5", {"mtu-1000": rates(110), "mtu-1500": rates(110)}, "lower", "fails"),
        (
            "fig5",
            {
                "mtu-1000": rates(20, retransmission_share=0.0001, least_idle=0.5),
                "mtu-1500": rates(110, retransmission_share=0.0001),
            },
            "unstable",
            "fails",
        ),
        ("fig6", {"repeated": rates(22, 5, 20, **IN_FORCE), "tcp-wifi": rates(19)}, "no-less", "holds"),
        ("fig6", {"repeated": rates(12, 5, 9, **IN_FORCE), "tcp-wifi": rates(19)}, "no-less", "fails"),
        ("fig6", {"repeated": rates(110, 98, 20, capped=0.0), "tcp-wifi": rates(19)}, "no-less", "fails"),
        ("fig6", {"repeated": rates(22, 5, 20), "tcp-wifi": rates(19)}, "no-less", "not judged"),
        ("fig7", {"throttled": rates(23, 5.0, 20, **IN_FORCE)}, "cap", "holds"),
        ("fig7", {"throttled": rates(23, 5.5, 20, **IN_FORCE)}, "cap", "fails"),
        ("fig7", {"throttled": rates(23, 0.0, 20, **IN_FORCE)}, "cap", "fails"),
        # The path is as slow as the cap, but not because of it.
        ("fig7", {"throttled": rates(23, 5.0, 20, capped=0.0)}, "cap", "fails"),
        ("fig7", {"throttled": rates(23, 5.0, 20)}, "cap", "not judged"),
        ("fig7", {"throttled": rates(19.5, 5.0, 20, **IN_FORCE), "tcp-wifi": rates(19)}, "outperforms", "fails"),
    ],
)
def test_a_verdict_follows_the_figures(key: str, values: dict[str, Values], claim: str, verdict: str) -> None:
    found = verdicts(key, values)[claim]
    assert found.verdict == verdict, found
    assert not (found.why and verdict == "holds")
    assert found.why or verdict != "differs"


@pytest.mark.parametrize("key", NAMES)
def test_nothing_is_judged_without_data(key: str) -> None:
    assert CLAIMS[key]
    if key in SCENARIOS:
        found = verdicts(key, {})
        assert {v.verdict for v in found.values()} == {"not judged"}
        assert set(found) == {claim.id for claim in CLAIMS[key]}


def test_two_runs_that_overlap_say_nothing() -> None:
    """The second run is a thousandth above the first one."""
    close = {"mtu-1000": rates(100), "mtu-1500": rates(101)}
    apart = {"mtu-1000": rates(90), "mtu-1500": rates(100)}
    assert verdicts("fig5", close, 2)["lower"].verdict == "not judged"
    assert "more repetitions" in verdicts("fig5", close, 2)["lower"].measured
    assert verdicts("fig5", apart, 2)["lower"].verdict == "holds"


def test_a_likely_reason_is_reported_as_no_more_than_that() -> None:
    found = verdicts("fig4", sweep(at480=92))["required"]
    assert found.verdict == "fails"
    assert found.why.startswith("Likely, but not measured: ")


def test_the_resolution_of_a_time_to_throttle_is_reported() -> None:
    values = {"first": {**IN_FORCE, "duration": 1.9}, "repeated": IN_FORCE}
    assert "less than one sample" in verdicts("fig6", values)["first-escapes"].measured


def test_a_first_transfer_that_was_over_before_its_cap_escaped() -> None:
    values = {"first": {"capped": 0.0, "joined": 0.01, "duration": 0.4}, "repeated": {**IN_FORCE, "duration": 1.7}}
    found = verdicts("fig6", values)["first-escapes"]
    assert found.verdict == "holds"
    assert "not before their end" in found.measured


@pytest.mark.parametrize("cause", Cause)
def test_a_server_that_is_multipath_fails_the_claim_by_the_cause_of_the_run_alone(cause: Cause) -> None:
    result = experiment(World(server_is_multipath=True), "fig2")
    runs = tuple(replace(run, cause=cause, reason="whatever the words are") for run in result.runs)
    found = {verdict.id: verdict.verdict for verdict in judged(replace(result, runs=runs)).claims}
    assert found["fallback"] == ("fails" if cause is Cause.NO_FALLBACK else "not judged")


@pytest.mark.parametrize("key", SCENARIOS)
@pytest.mark.parametrize("seed", range(3))
def test_a_result_can_be_judged_after_every_run_in_any_order(key: str, seed: int) -> None:
    """The experiment judges and writes its result after each run, so no partial result may raise an error."""
    whole = experiment(World(spread=0.3), key, repetitions=2, seed=seed)
    runs = random.Random(seed).sample(whole.runs, len(whole.runs))
    for count in range(len(runs) + 1):
        found = judged(replace(whole, runs=tuple(runs[:count]))).claims
        assert len(found) == len(CLAIMS[key])


@settings(max_examples=examples(60), deadline=None)
@given(st.dictionaries(st.sampled_from(SWEPT), st.floats(0.1, 200), max_size=len(SWEPT)), st.integers(1, 3))
def test_no_sweep_ends_the_experiment(goodput: dict[int, float], runs_each: int) -> None:
    found = verdicts("fig4", {f"buffer-{kb}": rates(value, value, value) for kb, value in goodput.items()}, runs_each)
    assert found["required"].verdict in ("holds", "fails", "not judged")
