# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiments vpn-…: traces, bursts and pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import simulated_results
from mutants_of_vpn import point

from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.vpn_cells import VPNS, Condition
from mptcp_bench.experiments.vpn_figures import Start, bursts, start_of
from mptcp_bench.experiments.vpn_judging import claims_of
from mptcp_bench.wire.capture import ACK, SYN, Packet
from mptcp_lab.testbed import TestbedError


@given(st.sets(st.integers(0, 60)))
def test_bursts_are_runs_without_a_gap(lost: set[int]) -> None:
    lengths = bursts(sorted(lost))
    assert sum(lengths) == len(lost)
    assert len(lengths) == sum(number - 1 not in lost for number in lost)


FIRST = (1 << 32) - 1000
"""The server's first sequence number. The numbers wrap around within the download."""


def packet(at: float, number: int, *, up: bool = False, flags: int = ACK, length: int = 0, port: int = 40000) -> Packet:
    """Return a packet *at* seconds.

    *number*: sequence number of data to the client, or the number that a packet from the client acknowledges.
    """
    client, server = (b"\x0a\x5e\x00\x02", port), (b"\x0a\x4d\x09\x02", 80)
    ends, number = (*client, *server) if up else (*server, *client), number % (1 << 32)
    return Packet(round(at * 1e9), *ends, flags, 0 if up else number, number if up else 0, (), length, b"")


def test_trace_has_the_bytes_sent_and_acknowledged_by_each_moment() -> None:
    packets = [
        packet(1.0, 0, up=True, flags=SYN),
        packet(1.0001, FIRST, flags=SYN | ACK),
        packet(1.015, FIRST + 1, length=1360),
        packet(1.0151, FIRST + 1361, length=1360),
        packet(1.045, FIRST + 1361, up=True),
        packet(1.2, FIRST + 1, length=1360),
    ]
    other = [packet(0.5, 0, flags=SYN | ACK, port=40001), packet(0.6, 0, length=100, port=40001)]
    sent, acknowledged = start_of([*other, *reversed(packets)])
    assert (sent[1], sent[2], sent[-1]) == (0, 2720, 2720)
    assert (acknowledged[4], acknowledged[5], acknowledged[-1]) == (0, 1360, 1360)
    for incomplete in (packets[1:], [packets[0], *packets[2:]], []):
        with pytest.raises(TestbedError, match="no start"):
            start_of(incomplete)


@pytest.mark.parametrize(("name", "rows"), [("vpn-fig7", [8, 30]), ("vpn-fig8", [2, 4])])
def test_figure_is_drawn_and_one_round_judges_nothing(name: str, rows: list[int], tmp_path: Path) -> None:
    scenario = EXPERIMENTS[name].load()

    def measure(turn: Turn[Condition]) -> dict[str, Start]:
        return dict.fromkeys(
            turn.cell.inner, replace(point(VPNS[turn.variant], 9.0), sent_by_step=(0, 2), acknowledged_by_step=(0, 1))
        )

    results = simulated_results(scenario, {"runs": "1"}, measure)
    findings = scenario.findings(results.turns, results.runs)
    assert [sum(bool(aim.measured_text) for aim in findings.aims), findings.tables[0].row_count] == rows
    assert {claim.verdict for claim in claims_of(name, results)} == {"not judged"}
    findings.pictures[0].draw(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000
