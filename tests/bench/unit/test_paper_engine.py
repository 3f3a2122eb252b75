# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for planning the runs of a scenario, for data points and failed runs, and for the numbers of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mptcp_bench.paper import engine, measures
from mptcp_bench.paper.parameters import Parameters
from mptcp_bench.paper.results import Cause
from mptcp_bench.paper.scenarios import SCENARIOS, Trial
from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed.recorder import Sample
from mptcp_lab.testbed.transfer import Observation

CAP = 5_000_000
THROUGH = Trial("mptcp", "through the proxy", 10, 10)
ALONE = Trial("tcp-wifi", "alone", 10, 10, alone="wifi")
SEEN = Observation(
    ended=4.0,
    status=0,
    timed_out=False,
    octets=10_000_000,
    sha256="same",
    said="",
    samples=(),
    memory=(),
    joined=0.1,
    counters={"MPTcpExtMPCapableSYNTX": 1, "MPTcpExtMPJoinSynAckRx": 1},
    proxy_counters={"MPTcpExtMPJoinAckRx": 1},
    origin_counters={},
)
FELL_BACK = {"MPTcpExtMPCapableSYNTX": 1, "MPTcpExtMPCapableFallbackSYNACK": 1}


def samples(*rates: tuple[float, float], interval: float = 0.1) -> tuple[Sample, ...]:
    """Return counters of ``ethernet`` and ``wifi`` that grew at *rates*, in bits/s."""
    octets = {"ethernet": 0, "wifi": 0}
    found = [Sample(0.0, dict(octets))]
    for number, (ethernet, wifi) in enumerate(rates, 1):
        octets["ethernet"] += round(ethernet * interval / 8)
        octets["wifi"] += round(wifi * interval / 8)
        found.append(Sample(number * interval, dict(octets)))
    return tuple(found)


@pytest.mark.parametrize("key", SCENARIOS)
@pytest.mark.parametrize("quick", [False, True])
def test_a_plan_has_every_trial_as_often_as_it_says(key: str, quick: bool) -> None:
    scenario = SCENARIOS[key]
    planned = engine.plan(scenario, Parameters.of(), 1, quick)
    count = scenario.quick_repetitions if quick else scenario.repetitions
    wanted = [trial.key for trial in scenario.trials if trial.in_quick or not quick]
    assert Counter(t.key for trials in planned.rounds for t in trials) == dict.fromkeys(wanted, count)
    assert [case.key for case in engine.cases(scenario, planned, Parameters.of())] == wanted


def test_the_order_is_drawn_from_the_seed_unless_it_matters() -> None:
    fig4, fig6 = SCENARIOS["fig4"], SCENARIOS["fig6"]
    assert engine.plan(fig4, Parameters.of(), 1, False) == engine.plan(fig4, Parameters.of(), 1, False)
    assert engine.plan(fig4, Parameters.of(), 1, False) != engine.plan(fig4, Parameters.of(), 2, False)
    for trials in engine.plan(fig6, Parameters.of(), 1, False).rounds:
        assert [t.key for t in trials] == ["tcp-wifi", "free", "first", "repeated"]


def test_repetitions_can_be_set() -> None:
    assert len(engine.plan(SCENARIOS["fig2"], Parameters.of(["repetitions=7"]), 1, True).rounds) == 7


def test_all_of_the_paper_is_quick_enough() -> None:
    plans = [engine.plan(scenario, Parameters.of(), 1, True) for scenario in SCENARIOS.values()]
    assert sum(engine.estimate(planned, Parameters.of()) for planned in plans) < 480


@pytest.mark.parametrize(
    ("trial", "change", "said"),
    [
        (THROUGH, {}, None),
        (ALONE, {"counters": FELL_BACK}, None),
        (THROUGH, {"counters": FELL_BACK}, "fell back to plain TCP"),
        (THROUGH, {"counters": {**SEEN.counters, "MPTcpExtDSSNoMatchTCPFallback": 1}}, "fell back"),
        (THROUGH, {"proxy_counters": {"MPTcpExtMPCapableFallbackACK": 1}}, "fell back"),
        (THROUGH, {"proxy_counters": {"MPTcpExtInfiniteMapTx": 1}}, "fell back"),
        (THROUGH, {"proxy_counters": {"MPTcpExtMPCapableSYNTX": 1}}, "asked the origin for Multipath TCP"),
        # To the client, a refused join looks established.
        (THROUGH, {"proxy_counters": {}}, "no second subflow"),
        (THROUGH, {"counters": {}}, "asked for 0 Multipath TCP connections"),
        (ALONE, {}, "did not fall back"),
        (THROUGH, {"sha256": "other"}, "SHA-256"),
        (THROUGH, {"status": 8, "said": "Saving\nERROR 503"}, "ended with 8: ERROR 503"),
        (THROUGH, {"status": -9, "timed_out": True}, "no end after 4 s"),
    ],
)
def test_what_is_no_data_point(trial: Trial, change: dict[str, object], said: str | None) -> None:
    found = engine.complaint(trial, replace(SEEN, **change), "same")  # type: ignore[arg-type]
    assert (found is None) if said is None else (found is not None and said in found.reason)


def test_a_cap_in_force_from_the_start_takes_no_time() -> None:
    seen = replace(SEEN, joined=0.1, samples=samples((90e6, 0), *[(5e6, 20e6)] * 30))
    assert measures.time_to_throttle(seen, "ethernet", CAP) == pytest.approx(0.0)


def test_time_to_throttle_ends_with_the_last_excess() -> None:
    seen = replace(SEEN, joined=0.1, samples=samples(*[(90e6, 0)] * 9, *[(5e6, 20e6)] * 20))
    assert measures.time_to_throttle(seen, "ethernet", CAP) == pytest.approx(0.8)


def test_no_second_subflow_no_time_to_throttle() -> None:
    seen = replace(SEEN, joined=None, samples=samples(*[(90e6, 0)] * 9))
    assert measures.time_to_throttle(seen, "ethernet", CAP) is None


def test_a_packet_more_than_the_cap_within_a_sample_is_no_excess() -> None:
    bursts = [(30e6, 20e6) if number % 10 == 0 else (2e6, 20e6) for number in range(200)]
    seen = replace(SEEN, joined=0.0, ended=2.0, samples=samples(*bursts, interval=0.01))
    assert measures.time_to_throttle(seen, "ethernet", CAP) == pytest.approx(0.0)


def test_values_of_a_run() -> None:
    seen = replace(
        SEEN,
        samples=samples(*[(30e6, 10e6)] * 42),
        memory=tuple((0.1 * n, 1000 * n) for n in range(43)),
        proxy_counters={"TcpRetransSegs": 5, "TcpOutSegs": 1000},
        origin_counters={"TcpRetransSegs": 7, "TcpOutSegs": 70},
    )
    values = measures.values(seen, THROUGH, CAP)
    assert values["goodput"] == 20_000_000
    assert values["share_ethernet"] == pytest.approx(0.75)
    assert values["rate_wifi"] == pytest.approx(10e6)
    assert values["retransmission_share"] == 0.005
    assert values["out_of_order_bytes"] == 42_000
    assert "time_to_throttle" not in values
    assert measures.values(seen, ALONE, CAP)["retransmission_share"] == 0.1
    series = measures.series(seen)
    assert len(series.times) == len(series.paths["wifi"]) == len(series.extra["out_of_order_bytes"]) == 42


def test_a_cap_that_never_came_takes_no_time_at_all() -> None:
    """The throttler is dead. The end of the transfer must not count as the moment of the cap."""
    for last in (0, 1):
        seen = replace(SEEN, joined=0.1, ended=1.0, samples=samples(*[(90e6, 0)] * (10 - last), *[(5e6, 20e6)] * 5))
        assert measures.time_to_throttle(seen, "ethernet", CAP) is None
    throttled = replace(THROUGH, throttled=True)
    values = measures.values(replace(SEEN, ended=4.0, samples=samples(*[(90e6, 0)] * 43)), throttled, CAP)
    assert values["capped"] == 0
    assert "time_to_throttle" not in values


def test_a_path_that_carries_nothing_is_not_capped() -> None:
    seen = replace(SEEN, joined=0.1, samples=samples(*[(0, 20e6)] * 43))
    assert measures.time_to_throttle(seen, "ethernet", CAP) is None


USED = (Usage(0.0, 0.5, None, least_idle=0.2), Usage(0.0, 0.4, None, least_idle=0.3))
"""Processor usage of client and proxy."""
RTTS = {"ethernet": 0.002, "wifi": 0.013}


@pytest.mark.parametrize(
    ("rtts", "ethernet", "said"),
    [
        (RTTS, 99e6, None),
        ({}, 99e6, None),
        ({**RTTS, "wifi": 0.0001}, 99e6, "wifi has an idle RTT of 0.1 ms instead of 16: it is not emulated"),
        ({**RTTS, "ethernet": 0.5}, 99e6, "ethernet has an idle RTT of 500.0 ms instead of 2"),
        (RTTS, 900e6, "ethernet carried 9"),
    ],
)
def test_a_path_that_is_not_emulated_makes_no_data_point(
    rtts: dict[str, float], ethernet: float, said: str | None
) -> None:
    seen = replace(SEEN, samples=samples(*[(ethernet, 19e6)] * 40))
    run = engine.data_point(
        THROUGH, 1, seen, "same", Parameters.of(), used=USED, rtts=rtts, emulated=True
    )  # fmt: skip
    assert run.valid is (said is None)
    assert (said or "") in run.reason
    real = engine.data_point(THROUGH, 1, seen, "same", Parameters.of(), used=USED, rtts=rtts, emulated=False)
    assert real.valid
    assert (real.values["idle"], real.values["least_idle"]) == (0.4, 0.2)
    assert all(real.values[f"rtt_{path}"] == seconds for path, seconds in rtts.items())


def test_a_download_too_short_to_be_measured_is_no_data_point() -> None:
    seen = replace(SEEN, ended=0.05, samples=samples((90e6, 0)))
    run = engine.data_point(THROUGH, 1, seen, "same", Parameters.of(), used=USED, rtts={}, emulated=True)
    assert "too short" in run.reason


def test_a_server_that_speaks_multipath_is_a_cause_of_its_own() -> None:
    seen = replace(SEEN, samples=samples(*[(0, 19e6)] * 40))
    run = engine.data_point(ALONE, 1, seen, "same", Parameters.of(), used=USED, rtts=RTTS, emulated=True)
    assert (run.valid, run.cause) == (False, Cause.NO_FALLBACK)
    other = engine.data_point(
        ALONE, 1, replace(seen, status=4), "same", Parameters.of(), used=USED, rtts={}, emulated=True
    )
    assert (other.valid, other.cause) == (False, Cause.OTHER)


def test_a_late_reading_and_the_one_right_after_it_make_no_peak() -> None:
    regular = samples(*[(5e6, 20e6)] * 20, interval=0.01)
    late = Sample(regular[10].time + 0.0098, regular[11].octets)
    burst = Sample(
        regular[11].time, {"ethernet": regular[11].octets["ethernet"] + 1514, "wifi": regular[11].octets["wifi"]}
    )
    seen = replace(SEEN, samples=(*regular[:11], late, burst, *regular[12:]), memory=tuple((0.0, n) for n in range(22)))
    found = measures.series(seen)
    assert max(found.paths["ethernet"]) < 8e6
    assert len(found.times) == len(found.extra["out_of_order_bytes"]) == 20


def test_readings_that_are_few_are_all_taken() -> None:
    assert measures.spaced([]) == []
    assert measures.spaced([0.0, 0.1]) == [0, 1]
    assert measures.spaced([0.0, 0.1, 0.2]) == [0, 1, 2]
