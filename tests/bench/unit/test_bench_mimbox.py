"""The experiments mimbox-…: verdicts, ratios, what passed a router, what options choose, tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from mutants_of_mimbox import LARGE_MTU, SMALL_MTU, points

from mptcp_bench.experiments import mimbox_goodput, mimbox_http
from mptcp_bench.experiments.mimbox_bed import Chosen, chosen, claims_table, curves, drawn
from mptcp_bench.experiments.mimbox_delay import passages
from mptcp_bench.experiments.mimbox_http import times
from mptcp_bench.experiments.mimbox_judging import ROUTER, goodput_claims
from mptcp_bench.experiments.mimbox_points import Claim, Points
from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.relay_cells import DIRECT, OURS, Cell
from mptcp_bench.wire.packets import ACK, Packet


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.9, 0.95, 1.0), "holds"),
        ((0.5, 0.6, 0.7), "fails"),
        ((0.7, 0.8, 0.9), "not judged"),
        ((0.9,), "not judged"),
        ((), "not judged"),
        ((0.9, math.nan, 0.9), "not judged"),
    ],
)
def test_a_verdict_wants_the_whole_interval_on_one_side(values: Sequence[float], verdict: str) -> None:
    assert Claim("x", "y", tuple(values), least=0.8).verdict == verdict


def test_an_interval_around_both_bounds_holds_nothing() -> None:
    assert Claim("x", "y", (0.1, 1.0, 3.0), least=0.5, most=2.0).verdict == "fails"
    assert Claim("x", "y", (0.9, 1.0, 1.1), least=0.5, most=2.0).verdict == "holds"


def test_a_claim_is_shown_with_its_interval_and_what_was_wanted() -> None:
    claim = Claim("It is close.", "goodput", (0.9, 0.9), least=0.8)
    table = claims_table("Figure 4", [claim])
    assert [list(column.cells) for column in table.columns] == [
        ["It is close."],
        ["goodput: 0.9 (0.9 to 0.9, n = 2); wanted ≥ 0.8"],
        ["holds"],
    ]


def goodputs() -> Points:
    return Points(points(mimbox_goodput.DECLARED, (SMALL_MTU, LARGE_MTU), lambda at: at * 1e4))


def test_ratios_are_those_of_one_round_and_one_value() -> None:
    ours, router = (Cell(OURS, "mptcp2"), "connect"), (ROUTER, "get")
    assert goodputs().ratios(ours, router, lambda p: p.goodput, min) == pytest.approx([0.9] * 3)
    alone = Points(p for p in goodputs().all if p.cell != ROUTER or p.round == 1)
    assert len(alone.ratios(ours, router, lambda p: p.goodput, min)) == 1


def test_what_was_not_measured_is_compared_with_nothing() -> None:
    without = Points(p for p in goodputs().all if p.cell.proxy != "haproxy")
    assert {claim.verdict for claim in goodput_claims(without)} == {"holds"}
    assert {claim.verdict for claim in goodput_claims(Points(()))} == {"not judged"}


def packet(time: int, sequence: int = 1, source: bytes = b"\1\1\1\1") -> Packet:
    return Packet(time, source, 1000, b"\2\2\2\2", 80, ACK, sequence, 7, (), 100, b"")


def test_a_segment_that_was_seen_twice_has_passed() -> None:
    found = passages([packet(9_000), packet(1_000), packet(5_000, sequence=2), packet(4_000, source=b"\3\3\3\3")])
    assert [(p.sequence, seconds) for p, seconds in found] == [(1, pytest.approx(8e-6))]


def test_a_segment_that_is_sent_again_passes_again() -> None:
    found = passages([packet(time) for time in (1_000, 2_000, 5_000, 7_000)])
    assert [seconds for _, seconds in found] == pytest.approx([1e-6, 2e-6])


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


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    declared = mimbox_http.DECLARED
    what = Chosen(declared.tasks, (1_000, 1_000_000), 3, 1.0, ())
    there = Points(p for p in points(declared, what.values, lambda at: at * 1e3) if p.cell.proxy != "squid")
    target = tmp_path / "x.svg"
    drawn(target, "Title", "under it", [lambda a: curves(a, declared, what, there), lambda a: times(a, what, there)])
    text = target.read_text()
    assert text.count("haproxy, mptcp1") == 2
    assert "squid" not in text
