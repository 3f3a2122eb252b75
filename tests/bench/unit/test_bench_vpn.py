# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiments vpn-…: verdicts, rounds, options, traces, bursts, tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import bounds, broken, judged_by
from mutants_of_vpn import VPN, point

from mptcp_bench.experiments import vpn_trace
from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.vpn_cells import GOOD_LOSS, Cell, Claim, Condition, Points, loss_of
from mptcp_bench.experiments.vpn_figures import FIG4, FIG7, FIG10, FIGURES, Figure, draw, goodputs
from mptcp_bench.experiments.vpn_judging import Group, claims_of, ratio
from mptcp_bench.experiments.vpn_losses import bursts
from mptcp_bench.experiments.vpn_trace import CELLS, Trace, draw_traces, trace
from mptcp_bench.wire.packets import ACK, SYN, Packet
from mptcp_lab.testbed import TestbedError

LONGEST, LONGEST_QUICK = 20 * 60, 5 * 60
"""Seconds."""
TCP, MPTCP = Cell("tcp", outer="bbr"), Cell("mptcp", outer="bbr")
AT, FAR = Condition(20, 20), Condition(100, 100)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.9, 0.95, 1.0), "holds"),
        ((0.5, 0.55, 0.6), "fails"),
        ((2.0, 2.1, 2.2), "fails"),
        ((0.7, 0.8, 0.9), "not judged"),
        ((0.1, 1.0, 3.0), "not judged"),
        ((0.9,), "not judged"),
        ((), "not judged"),
    ],
)
def test_a_verdict_wants_the_whole_interval_on_one_side_of_each_bound(values: Sequence[float], verdict: str) -> None:
    assert Claim("x", "y", tuple(values), least=0.8, most=1.5).verdict == verdict


@pytest.mark.parametrize("name", sorted(VPN))
def test_each_claim_holds_in_the_papers_world_and_is_broken_in_another(name: str) -> None:
    claims, judge = VPN[name].claims(), VPN[name].judge
    assert claims
    assert {claim.verdict for claim in claims} == {"holds"}
    found = set().union(*(broken(judged_by(mutant)) for mutant in judge.mutants.values()))
    assert bounds(claim.aim for claim in claims) - found == set()


def test_ratios_are_of_one_round_in_which_both_were_measured_everywhere() -> None:
    there = [point(TCP, at, number, 5.0) for at in (AT, FAR) for number in range(3)]
    there += [point(MPTCP, at, number, 10.0 + 30 * (at is FAR)) for at in (AT, FAR) for number in (0, 2)]
    both = Group(Points(there), "cubic", "bbr", (AT, FAR))
    assert ratio("mptcp", "tcp")(both) == pytest.approx({0: 4.0, 2: 4.0})
    assert ratio("mptcp", "tcp")(both.shortest) == pytest.approx({0: 2.0, 2: 2.0})
    assert ratio("mptcp", "udp")(both) == {}


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_each_is_over_in_its_time_and_a_single_round_judges_nothing(name: str) -> None:
    figure = FIGURES[name]
    quick = figure.chosen({}, True)
    assert figure.chosen({}, False).estimate <= LONGEST
    assert quick.estimate <= LONGEST_QUICK
    claims = claims_of(name, Points(point(cell, at, 0, 9.0) for cell, at in quick.planned))
    assert claims
    assert {claim.verdict for claim in claims} == {"not judged"}


def test_options_choose() -> None:
    options = {"ratio": "1,2.5", "loss": "0,ge3", "inner": "bbr", "outer": "cubic,bbr", "ways": "mptcp,tunnel"}
    what = FIG10.chosen(options | {"runs": "4"}, False)
    assert what.conditions == tuple(Condition(20, second, loss) for loss in ("0", "ge3") for second in (20, 50))
    assert list(what.groups.items()) == [
        (("mptcp", "cubic"), ["bbr"]),
        (("mptcp", "bbr"), ["bbr"]),
        (("tunnel", ""), ["bbr"]),
    ]
    assert what.runs == 4


@pytest.mark.parametrize(
    "options",
    [
        {"rtt": "0"},
        {"rtt": "20,x"},
        {"rtt": "9999"},
        {"rtt": "20,20"},
        {"loss": "2"},
        {"inner": "reno"},
        {"ways": "tcp"},
        {"runs": "0"},
        {"seconds": "-1"},
    ],
    ids=str,
)
def test_an_option_without_sense_is_refused_by_its_name(options: dict[str, str]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=name):
        FIG7.chosen(options, False)


def test_losses_of_the_papers_table_are_seen_by_what_crosses_twice() -> None:
    for name in GOOD_LOSS:
        model = loss_of(name)
        assert model is not None
        assert 100 * (1 - (1 - model.mean) ** 2) == pytest.approx(float(name.removeprefix("ge")), abs=0.5)


@given(st.sets(st.integers(0, 60)))
def test_bursts_are_runs_without_a_gap(lost: set[int]) -> None:
    lengths = bursts(sorted(lost))
    assert sum(lengths) == len(lost)
    assert len(lengths) == sum(one - 1 not in lost for one in lost)


CLIENT, SERVER = b"\x0a\x5e\x00\x02", b"\x0a\x4d\x09\x02"
FIRST = (1 << 32) - 1000
"""The server's first sequence number, chosen so that the numbers wrap around within the download."""


def packet(at: float, *, up: bool, flags: int = ACK, number: int = 0, length: int = 0, port: int = 40000) -> Packet:
    """Return a packet *at* seconds.

    *number*: sequence number of data that comes down, or the number that a packet going up acknowledges.
    """
    ends = (CLIENT, port, SERVER, 80) if up else (SERVER, 80, CLIENT, port)
    number %= 1 << 32
    return Packet(round(at * 1e9), *ends, flags, 0 if up else number, number if up else 0, (), length, b"")


def test_a_trace_has_what_was_sent_and_acknowledged_by_each_moment() -> None:
    begin = [
        packet(1.0, up=True, flags=SYN),
        packet(1.0001, up=False, flags=SYN | ACK, number=FIRST),
        packet(1.015, up=False, number=FIRST + 1, length=1360),
        packet(1.0151, up=False, number=FIRST + 1361, length=1360),
        packet(1.045, up=True, number=FIRST + 1361),
        packet(1.2, up=False, number=FIRST + 1, length=1360),
    ]
    other = [packet(0.5, up=False, flags=SYN | ACK, port=40001), packet(0.6, up=False, length=100, port=40001)]
    found = trace(MPTCP, 0, [*other, *reversed(begin)])
    assert (found.sent[1], found.sent[2], found.sent[-1]) == (0, 2720, 2720)
    assert (found.acknowledged[4], found.acknowledged[5], found.acknowledged[-1]) == (0, 1360, 1360)
    for without in (begin[1:], [begin[0], *begin[2:]], []):
        with pytest.raises(TestbedError, match="no begin"):
            trace(MPTCP, 0, without)


@pytest.mark.parametrize("figure", [FIG4, FIG7], ids=lambda figure: figure.name)
def test_what_was_measured_is_shown_and_drawn(figure: Figure, tmp_path: Path) -> None:
    what = figure.chosen({}, True)
    there = Points(
        point(cell, at, number, 9.0) for cell, at in what.planned for number in range(2) if cell != what.cells[0]
    )
    table = goodputs(what, there)
    assert table.row_count == len(what.cells)
    assert [list(column.cells)[:2] for column in table.columns[3:]] == [["", "9.0 ± 0.0"]] * len(what.conditions)
    draw(figure, what, there, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000


def test_traces_are_drawn(tmp_path: Path) -> None:
    steps = range(round(vpn_trace.SHOWN / vpn_trace.STEP) + 1)
    rising = tuple(1000 * step for step in steps)
    draw_traces(tmp_path / "figure.svg", [Trace(cell, 0, rising, rising) for cell in CELLS[1:]])
    assert (tmp_path / "figure.svg").stat().st_size > 10_000
