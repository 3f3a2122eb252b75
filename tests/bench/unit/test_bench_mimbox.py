# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiments mimbox-…: verdicts, ratios, bytes that passed a router, options, tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from mutants import Judge
from mutants_of_mimbox import (
    LARGE_MTU,
    MIMBOX_DELAY,
    MIMBOX_GOODPUT,
    MIMBOX_HTTP,
    MIMBOX_MEMORY,
    RUNS,
    SMALL_MTU,
    Judged,
    points,
)
from paper_conversion_dialogue import CLIENT, CLIENT_KEY, CLIENT_WIFI, ORIGIN, PROXY_KEY, Talk, dss

from mptcp_bench.experiments import mimbox_goodput, mimbox_http, mimbox_memory
from mptcp_bench.experiments.mimbox_bed import Chosen, Declared, chosen, claims_table, curves, drawn
from mptcp_bench.experiments.mimbox_delay import passages, routed
from mptcp_bench.experiments.mimbox_http import times
from mptcp_bench.experiments.mimbox_judging import EACH, ROUTER, goodput_claims
from mptcp_bench.experiments.mimbox_points import Claim, Points, growth
from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.relay_bed import MULTIPATH_PORT
from mptcp_bench.experiments.relay_cells import DIRECT, LIMIT, OURS, Cell
from mptcp_bench.wire.packets import ACK, Packet
from mptcp_lab.testbed import TestbedError


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
def test_a_verdict_wants_the_whole_interval_on_one_side(values: Sequence[float], verdict: str) -> None:
    assert Claim("x", "y", tuple(values), least=0.8).verdict == verdict


def test_an_interval_around_both_bounds_judges_nothing() -> None:
    assert Claim("x", "y", (0.1, 1.0, 3.0) * 2, least=0.5, most=2.0).verdict == "not judged"
    assert Claim("x", "y", (0.9, 1.0, 1.1) * 2, least=0.5, most=2.0).verdict == "holds"


def test_a_claim_is_shown_with_its_interval_and_what_was_wanted() -> None:
    claim = Claim("It is close.", "goodput", (0.9,) * 6, least=0.8)
    table = claims_table("Figure 4", [claim])
    assert [list(column.cells) for column in table.columns] == [
        ["It is close."],
        ["goodput: 0.9 (0.9 to 0.9, n = 6); wanted ≥ 0.8"],
        ["holds"],
    ]


def goodputs() -> Points:
    return Points(points(mimbox_goodput.DECLARED, (SMALL_MTU, LARGE_MTU), lambda at: at * 1e4))


def test_ratios_are_those_of_one_round_and_one_value() -> None:
    ours, router = (Cell(OURS, "mptcp2"), "connect"), (ROUTER, "get")
    assert goodputs().ratios(ours, router, lambda p: p.goodput, min) == pytest.approx(dict.fromkeys(range(RUNS), 0.9))
    alone = Points(p for p in goodputs().all if p.cell != ROUTER or p.round == 1)
    assert alone.ratios(ours, router, lambda p: p.goodput, min) == pytest.approx({1: 0.9})


def test_the_best_of_several_is_that_of_one_round() -> None:
    ours, haproxy, splice = (Cell(OURS, "mptcp2"), "connect"), Cell("haproxy", "mptcp2"), Cell(LIMIT, "mptcp2")
    fast = {(haproxy, 2): 10, (splice, 0): 100}
    there = (replace(p, octets=p.octets * fast.get((p.cell, p.round), 1)) for p in goodputs().all)
    found = Points(p for p in there if (p.cell, p.round) != (haproxy, 0))
    others = [(haproxy, "get"), (splice, "get"), (Cell("squid", "tcp"), "get")]
    # HAProxy has no value in the first round, so splice's first value is not compared with HAProxy's second one.
    assert found.least_ratio(ours, others, lambda p: p.goodput) == pytest.approx(
        (0.9 / 0.8, 0.9 / 7, *[0.9 / 0.8] * (RUNS - 3))
    )


@pytest.mark.parametrize("dead", [SMALL_MTU, LARGE_MTU])
def test_a_peer_that_carried_nothing_is_outperformed_at_no_value(dead: int) -> None:
    there = [replace(p, octets=0) if (p.cell.proxy, p.at) == ("haproxy", dead) else p for p in goodputs().all]
    claim = goodput_claims(Points(there))[1]
    assert len(claim.values) == RUNS
    assert all(map(math.isnan, claim.values))
    assert (claim.aim.verdict, claim.verdict) == ("missed", "not judged")


@pytest.mark.parametrize("place", range(3))
def test_an_aim_is_met_by_no_value_that_is_no_number(place: int) -> None:
    values = [0.9, 0.9]
    values.insert(place, math.nan)
    assert Claim("x", "y", tuple(values), least=0.8).aim.verdict == "missed"


def test_growth_is_from_the_smallest_to_the_greatest_of_one_round() -> None:
    assert growth({(0, 1): 2.0, (0, 5): 1.0, (0, 9): 8.0, (1, 1): 2.0, (1, 5): 8.0, (2, 1): 0.0, (2, 9): 1.0}) == (4.0,)
    assert growth({(0, 1): 2.0, (1, 1): 3.0}) == growth({}) == ()


@pytest.mark.parametrize(
    ("declared", "at", "compared"),
    [(mimbox_goodput.DECLARED, 1500, 1), (mimbox_http.DECLARED, 1_000, 1), (mimbox_memory.DECLARED, EACH, 2)],
    ids=lambda value: value.name if isinstance(value, Declared) else None,
)
def test_no_claim_holds_by_comparing_a_value_with_itself(declared: Declared, at: int, compared: int) -> None:
    """If only one value was measured, claims that compare it with others are not judged."""
    alone = Points(points(declared, (at,), lambda at: at * 1e4))
    both = Points(points(declared, (at // 2, at, at * 2), lambda at: at * 1e4))
    judged = [sum(bool(claim.values) for claim in declared.claims(each)) for each in (alone, both)]
    assert judged[1] - judged[0] == compared


@pytest.mark.parametrize(
    "judge", [MIMBOX_GOODPUT, MIMBOX_DELAY, MIMBOX_HTTP, MIMBOX_MEMORY], ids=["goodput", "delay", "http", "memory"]
)
def test_a_claim_holds_for_no_mutant_that_misses_its_aim(judge: Judge) -> None:
    assert isinstance(judge.sound, Judged)
    assert {claim.verdict for claim in judge.sound.claims()} == {"holds"}
    failing = set()
    for name, mutant in judge.mutants.items():
        assert isinstance(mutant, Judged)
        for claim in mutant.claims():
            assert claim.aim.met or claim.verdict != "holds", (name, claim.paper)
            failing |= {claim.paper} if claim.verdict == "fails" else set()
    # A claim that is not judged is not refuted: each claim fails for one of the mutants.
    assert failing == {claim.paper for claim in judge.sound.claims()}


def test_what_was_not_measured_is_compared_with_nothing() -> None:
    without = Points(p for p in goodputs().all if p.cell.proxy != "haproxy")
    assert {claim.verdict for claim in goodput_claims(without)} == {"holds"}
    assert {claim.verdict for claim in goodput_claims(Points(()))} == {"not judged"}


def packet(time: int, sequence: int = 1, source: bytes = b"\1\1\1\1") -> Packet:
    return Packet(time, source, 1000, b"\2\2\2\2", 80, ACK, sequence, 7, (), 100, b"")


def test_a_segment_that_was_seen_twice_has_passed() -> None:
    found = passages([packet(9_000), packet(1_000), packet(5_000, sequence=2), packet(4_000, source=b"\3\3\3\3")])
    assert [p.sequence for p, _ in found] == [1]
    assert [seconds for _, seconds in found] == pytest.approx([8e-6])


def test_a_segment_that_is_sent_again_passes_again() -> None:
    found = passages([packet(time) for time in (1_000, 2_000, 5_000, 7_000)])
    assert [seconds for _, seconds in found] == pytest.approx([1e-6, 2e-6])


def twice(*talks: Talk) -> list[Packet]:
    """Return the packets captured on both sides of a router that takes 3 µs."""
    there = [p for talk in talks for p in talk.packets]
    return [*there, *(replace(p, time=p.time + 3_000) for p in there)]


def test_what_a_router_passes_is_connections_by_multipath_tcp() -> None:
    server = (ORIGIN, MULTIPATH_PORT)
    first = Talk((CLIENT, 1), server).open_mptcp(0, 10_000, 20_000)
    first.up(30_000, 1, b"GET", dss(CLIENT_KEY, 0, 1, 3))
    first.down(40_000, 1, b"data", dss(PROXY_KEY, 0, 1, 4))
    second = Talk((CLIENT_WIFI, 2), server).join(50_000, 60_000, 70_000)
    found = routed(ROUTER, 4, twice(first, second))
    assert (found.round, found.requests, found.subflows) == (4, 1, 2)
    assert (found.syn, found.answer, found.data) == pytest.approx([3e-6] * 3)
    with pytest.raises(TestbedError, match="1 of 2 connections were plain TCP"):
        routed(ROUTER, 4, twice(first, second, Talk((CLIENT, 3), server).open(80_000, 90_000, 95_000)))
    with pytest.raises(TestbedError, match="and 0 segments were routed"):
        routed(ROUTER, 4, twice(second, Talk((CLIENT, 1), server).open_mptcp(0, 10_000, 20_000)))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcp_bench.experiments.peers.Peer.lacking", lambda peer: None)


@pytest.mark.usefixtures("installed")
def test_options_choose_proxies_and_values_and_no_proxy_is_always_there() -> None:
    what = chosen(mimbox_goodput.DECLARED, {"proxies": "ours", "mtu": "9000,296", "runs": "2"}, quick=False)
    assert (what.values, what.runs, what.seconds) == ((296, 9000), 2, mimbox_goodput.DECLARED.seconds)
    assert {cell.proxy for cell, _ in what.tasks} == {OURS, DIRECT}
    assert len(what.planned) == 2 * len(what.tasks)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("options", [{"mtu": "x"}, {"proxies": "varnish"}, {"runs": "0"}, {"seconds": "0"}])
def test_what_there_is_not_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        chosen(mimbox_goodput.DECLARED, options, quick=False)


@pytest.mark.nightly
def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    declared = mimbox_http.DECLARED
    what = Chosen(declared.tasks, (1_000, 1_000_000), 3, 1.0, ())
    there = Points(p for p in points(declared, what.values, lambda at: at * 1e3) if p.cell.proxy != "squid")
    target = tmp_path / "x.svg"
    drawn(target, "Title", "under it", [lambda a: curves(a, declared, what, there), lambda a: times(a, what, there)])
    text = target.read_text()
    assert text.count("haproxy, mptcp1") == 2
    assert "squid" not in text
