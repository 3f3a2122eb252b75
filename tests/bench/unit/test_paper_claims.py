"""The verdicts follow the figures: each claim is seen to hold and not to hold, and is not judged without data."""

from __future__ import annotations

import re

import pytest
from paper_examples import PROVENANCE

from mptcp_bench.paper import claims, engine
from mptcp_bench.paper.parameters import Parameters
from mptcp_bench.paper.results import Reference, Result, Run, Verdict
from mptcp_bench.paper.scenarios import SCENARIOS
from mptcp_bench.paper.summary import summarise

Values = dict[str, float]


def judged(key: str, values: dict[str, Values], runs_each: int = 3) -> dict[str, Verdict]:
    """Judge scenario *key* where the runs of each case have about these *values*."""
    scenario, parameters = SCENARIOS[key], Parameters.of()
    planned = engine.plan(scenario, parameters, 1, False)
    cases = engine.cases(scenario, planned, parameters)
    runs = tuple(
        Run(case, number, True, values={k: v * (1 + number / 1000) for k, v in found.items()})
        for case, found in values.items()
        for number in range(runs_each)
    )
    result = Result(
        PROVENANCE, key, scenario.title, scenario.figure, dict(parameters.document()), 1, True, 3, cases,
        runs, summarise(cases, runs), references=(Reference("sweep", 480_000, "needed"),),
    )  # fmt: skip
    return {verdict.id: verdict for verdict in claims.CLAIMS.judge(result)}


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


SWEEP = {f"buffer-{kb}": rates(min(110, kb / 4)) for kb in (60, 120, 180, 240, 360, 480, 720, 1440)}
SWEPT_RATES = {"buffer-1440": rates(111, 99, 20)}
WIFI_ALONE = {"tcp-wifi": rates(19, 0, 20)}
MEMORY = {"out_of_order_bytes": 1e5, "retransmissions": 10.0}


@pytest.mark.parametrize(
    ("key", "values", "claim", "verdict"),
    [
        ("fig2", {"tcp-ethernet": rates(94), "tcp-wifi": rates(19)}, "fallback", "holds"),
        ("fig2", {"tcp-ethernet": rates(94), "tcp-wifi": rates(19)}, "alone", "holds"),
        ("fig2", {"tcp-ethernet": rates(19), "tcp-wifi": rates(19)}, "alone", "fails"),
        ("fig3", {"mptcp": rates(112, 98, 20), "tcp-ethernet": rates(94)}, "capacity", "holds"),
        ("fig3", {"mptcp": rates(90, 98, 20), "tcp-ethernet": rates(94)}, "capacity", "fails"),
        ("fig3", {"mptcp": rates(112, 98, 20)}, "ethernet-first", "holds"),
        ("fig3", {"mptcp": rates(112, 9, 20)}, "ethernet-first", "fails"),
        ("fig3", {"mptcp": rates(95, 98, 2), "tcp-wifi": rates(19, 0, 20)}, "wifi-unused", "holds"),
        ("fig3", {"mptcp": rates(112, 98, 20), "tcp-wifi": rates(19, 0, 20)}, "wifi-unused", "differs"),
        ("fig4", {"small": rates(60), "large": rates(110)}, "small-degrades", "holds"),
        ("fig4", {"small": rates(110), "large": rates(110)}, "small-degrades", "fails"),
        (
            "fig4",
            {
                "small": rates(1, retransmission_share=0.02, **MEMORY),
                "large": rates(1, retransmission_share=0.001, **MEMORY),
            },
            "small-loses",
            "holds",
        ),
        (
            "fig4",
            {
                "small": rates(1, retransmission_share=0.0001, **MEMORY),
                "large": rates(1, retransmission_share=0.0001, **MEMORY),
            },
            "small-loses",
            "differs",
        ),
        ("fig4", {"large": rates(110, 98, 19), **SWEPT_RATES}, "large-suffices", "holds"),
        ("fig4", {"large": rates(110, 98, 12), **SWEPT_RATES}, "large-suffices", "fails"),
        ("fig4", {**SWEEP, "buffer-480": rates(109)}, "required", "holds"),
        ("fig4", {**SWEEP, "buffer-480": rates(92)}, "required", "differs"),
        ("fig5", {"mtu-1000": rates(105), "mtu-1500": rates(110)}, "lower", "holds"),
        ("fig5", {"mtu-1000": rates(110), "mtu-1500": rates(110)}, "lower", "fails"),
        (
            "fig5",
            {"mtu-1000": rates(50, retransmission_share=0.02), "mtu-1500": rates(110, retransmission_share=0.001)},
            "unstable",
            "holds",
        ),
        (
            "fig5",
            {"mtu-1000": rates(106, retransmission_share=0.0001), "mtu-1500": rates(110, retransmission_share=0.0001)},
            "unstable",
            "differs",
        ),
        (
            "fig6",
            {"first": {"time_to_throttle": 0.4, "duration": 0.9}, "repeated": {"time_to_throttle": 0.0}},
            "first-escapes",
            "holds",
        ),
        (
            "fig6",
            {"first": {"time_to_throttle": 0.0, "duration": 1.9}, "repeated": {"time_to_throttle": 0.0}},
            "first-escapes",
            "differs",
        ),
        (
            "fig6",
            {"free": {"duration": 0.4}, "first": {"duration": 0.6, "time_to_throttle": 0.4}},
            "small-impact",
            "holds",
        ),
        (
            "fig6",
            {"free": {"duration": 0.4}, "first": {"duration": 1.6, "time_to_throttle": 0.0}},
            "small-impact",
            "differs",
        ),
        (
            "fig6",
            {
                "free": {"share_ethernet": 0.8},
                "repeated": {"share_ethernet": 0.2, "time_to_throttle": 0.0, "duration": 1.6},
            },
            "repeated-throttled",
            "holds",
        ),
        (
            "fig6",
            {
                "free": {"share_ethernet": 0.8},
                "repeated": {"share_ethernet": 0.8, "time_to_throttle": 0.3, "duration": 0.5},
            },
            "repeated-throttled",
            "fails",
        ),
        ("fig6", {"repeated": rates(22, 5, 20), "tcp-wifi": rates(19)}, "no-less", "holds"),
        ("fig6", {"repeated": rates(12, 5, 9), "tcp-wifi": rates(19)}, "no-less", "fails"),
        ("fig2", {"tcp-ethernet": rates(20.5), "tcp-wifi": rates(20)}, "alone", "fails"),
        ("fig3", {**WIFI_ALONE, "mptcp": rates(95, 80, 8)}, "wifi-unused", "fails"),
        ("fig4", {"large": rates(110, 40, 19), **SWEPT_RATES}, "large-suffices", "fails"),
        ("fig4", {"large": rates(0.1, 0, 0.1)}, "large-suffices", "not judged"),
        (
            "fig5",
            {"mtu-1000": rates(20, retransmission_share=0.0001), "mtu-1500": rates(110, retransmission_share=0.0001)},
            "unstable",
            "fails",
        ),
        (
            "fig6",
            {"first": {"time_to_throttle": 0.3, "duration": 9.9}, "repeated": {"time_to_throttle": 0.0}},
            "first-escapes",
            "fails",
        ),
        (
            "fig6",
            {"free": {"duration": 0.4}, "first": {"duration": 1.6, "time_to_throttle": 1.4}},
            "small-impact",
            "fails",
        ),
        ("fig7", {**WIFI_ALONE, "throttled": rates(9, 5.0, 5), "free": rates(112, 98, 20)}, "offload", "fails"),
        ("fig7", {"throttled": rates(23, 5.0, 20)}, "cap", "holds"),
        ("fig7", {"throttled": rates(23, 5.5, 20)}, "cap", "fails"),
        ("fig7", {**WIFI_ALONE, "throttled": rates(23, 5.0, 20), "free": rates(95, 98, 2)}, "offload", "holds"),
        ("fig7", {**WIFI_ALONE, "throttled": rates(23, 5.0, 20), "free": rates(112, 98, 20)}, "offload", "differs"),
        ("fig7", {"throttled": rates(23, 5.0, 20), "free": rates(112, 98, 20)}, "inferior", "holds"),
        ("fig7", {"throttled": rates(23, 5.0, 20), "free": rates(20, 98, 20)}, "inferior", "fails"),
        ("fig7", {"throttled": rates(23, 5.0, 20), "tcp-wifi": rates(19)}, "outperforms", "holds"),
        ("fig7", {"throttled": rates(18, 5.0, 20), "tcp-wifi": rates(19)}, "outperforms", "fails"),
    ],
)
def test_a_verdict_follows_the_figures(key: str, values: dict[str, Values], claim: str, verdict: str) -> None:
    found = judged(key, values)[claim]
    assert found.verdict == verdict
    assert re.search(r"\d", found.measured) or verdict == "not judged"
    assert not (found.why and verdict == "holds")
    assert found.why or verdict != "differs"


@pytest.mark.parametrize("key", claims.CLAIMS)
def test_nothing_is_judged_without_data(key: str) -> None:
    found = judged(key, {})
    assert {v.verdict for v in found.values()} == {"not judged"}
    assert len(found) == len(claims.CLAIMS[key])


def test_every_figure_of_the_paper_is_judged() -> None:
    assert set(claims.CLAIMS) == set(SCENARIOS)


def test_the_resolution_of_a_time_to_throttle_is_told() -> None:
    values = {"first": {"time_to_throttle": 0.0, "duration": 1.9}, "repeated": {"time_to_throttle": 0.0}}
    assert "less than one sample" in judged("fig6", values)["first-escapes"].measured


def test_two_runs_that_overlap_say_nothing() -> None:
    """The second run is a thousandth above the first."""
    close = {"mtu-1000": rates(100), "mtu-1500": rates(100.05)}
    apart = {"mtu-1000": rates(90), "mtu-1500": rates(100)}
    assert judged("fig5", close, 2)["lower"].verdict == "not judged"
    assert judged("fig5", apart, 2)["lower"].verdict == "holds"
    assert judged("fig5", close, 3)["lower"].verdict == "fails"


def test_downloads_that_never_fell_back_are_judged() -> None:
    scenario, parameters = SCENARIOS["fig2"], Parameters.of()
    planned = engine.plan(scenario, parameters, 1, False)
    runs = tuple(Run("tcp-wifi", n, False, "the connection did not fall back to plain TCP") for n in range(3))
    result = Result(
        PROVENANCE, "fig2", "", "Figure 2", {}, 1, True, 3, engine.cases(scenario, planned, parameters), runs
    )  # fmt: skip
    assert claims.CLAIMS.judge(result)[0].verdict == "fails"


def test_a_requirement_within_the_noise_is_not_judged() -> None:
    wide = {**SWEEP, "buffer-480": {"goodput": 104.4e6}}
    verdict = judged("fig4", wide)["required"]
    assert verdict.verdict == "not judged"
    assert "more repetitions" in verdict.measured
