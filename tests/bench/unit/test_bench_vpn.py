# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiments vpn-…: claims, traces, bursts and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import bounds, broken, judged_by, rehearsed
from mutants_of_vpn import VPN, point

from mptcp_bench.experiments.vpn_cells import VPNS
from mptcp_bench.experiments.vpn_figures import FIG7
from mptcp_bench.experiments.vpn_judging import claims_of
from mptcp_bench.experiments.vpn_losses import bursts
from mptcp_bench.experiments.vpn_trace import acknowledged
from mptcp_bench.wire.packets import ACK, SYN, Packet
from mptcp_lab.testbed import TestbedError


@pytest.mark.parametrize("name", sorted(VPN))
def test_each_claim_holds_in_the_papers_world_and_is_broken_in_another(name: str) -> None:
    claims, judge = VPN[name].claims(), VPN[name].judge
    assert claims
    assert {claim.verdict for claim in claims} == {"holds"}
    found = set().union(*(broken(judged_by(mutant)) for mutant in judge.mutants.values()))
    assert bounds(claim.aim for claim in claims) - found == set()


@given(st.sets(st.integers(0, 60)))
def test_bursts_are_runs_without_a_gap(lost: set[int]) -> None:
    lengths = bursts(sorted(lost))
    assert sum(lengths) == len(lost)
    assert len(lengths) == sum(number - 1 not in lost for number in lost)


FIRST = (1 << 32) - 1000
"""The server's first sequence number, chosen so that the numbers wrap around within the download."""


def packet(
    seconds: float, *, up: bool, flags: int = ACK, number: int = 0, length: int = 0, port: int = 40000
) -> Packet:
    """Return a packet; *number* is its sequence number or, from the client, the number that it acknowledges."""
    client, server = (b"\x0a\x5e\x00\x02", port), (b"\x0a\x4d\x09\x02", 80)
    ends = (*client, *server) if up else (*server, *client)
    number %= 1 << 32
    return Packet(round(seconds * 1e9), *ends, flags, 0 if up else number, number if up else 0, (), length, b"")


def test_a_trace_has_what_was_acknowledged_by_each_moment() -> None:
    packets = [
        packet(1.0, up=True, flags=SYN),
        packet(1.0001, up=False, flags=SYN | ACK, number=FIRST),
        packet(1.015, up=False, number=FIRST + 1, length=1360),
        packet(1.0151, up=False, number=FIRST + 1361, length=1360),
        packet(1.045, up=True, number=FIRST + 1361),
    ]
    other = [packet(0.5, up=False, flags=SYN | ACK, port=40001), packet(0.6, up=False, length=100, port=40001)]
    steps = acknowledged([*other, *reversed(packets)])
    assert (steps[4], steps[5], steps[-1]) == (0, 1360, 1360)
    for without in (packets[1:], [packets[0], *packets[2:]], []):
        with pytest.raises(TestbedError, match="no begin"):
            acknowledged(without)


def test_a_figure_is_drawn_and_one_round_judges_nothing(tmp_path: Path) -> None:
    results = rehearsed(
        FIG7, {"rtt": "20", "runs": "1"}, lambda turn: dict.fromkeys(turn.cell.inner, point(VPNS[turn.variant], 9.0))
    )
    findings = FIG7.findings(results.turns, results.runs)
    assert [table.row_count for table in findings.tables[:2]] == [4, 10]
    assert {claim.verdict for claim in claims_of("vpn-fig7", results)} == {"not judged"}
    findings.pictures[0].draw(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000
