# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``datapath``: goodput with and without entries is compared within a round."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from mutants import missed
from mutants_of_runs import DATAPATH
from rich.console import Console

from mptcp_bench.experiments import aims, datapath
from mptcp_bench.experiments.datapath_judging import SentBytes, through_class, within_rounds
from mptcp_throttler.shaping.model import DEFAULT_MINOR


def test_ratios_compare_within_a_round() -> None:
    goodput = {"0 entries": [1.0, 2.0], "1,000 entries": [1.0, 1.0]}
    assert within_rounds(goodput, 1_000, 0) == [1.0, 0.5]


def test_noise_that_hides_a_cost_misses_the_bound_of_the_mean_and_not_the_median() -> None:
    assert missed(DATAPATH.mutants["noise hides what they do"]) == {
        f"nftables: {count} entries / 0 entries, mean, lower bound" for count in ("1,000", "50,000")
    }


PAYLOAD, ON_THE_WIRE = 1_000_000_000, 1_356_000_000
"""Bytes received in the measured second, and bytes sent for it, including headers and what came before."""


class FakeLink:
    """The proxy of a testbed, with a *share* of its bytes passing through our class."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._ours, self._device = 5_000.0, 9_000

    def __getitem__(self, node: str) -> Any:
        return self

    def run(self, argv: object) -> Any:
        minor = f"class htb {datapath.HANDLE:x}:{DEFAULT_MINOR:x} parent 1: prio 0"
        return SimpleNamespace(
            stdout=f"class htb 1:7 root\n Sent 7 bytes\n{minor}\n Sent {self._ours:.0f} bytes 9 pkt\n"
        )

    def interface_bytes(self, device: str) -> Any:
        return SimpleNamespace(sent=self._device)

    def transfer(self) -> float:
        self._ours += self._share * ON_THE_WIRE
        self._device += ON_THE_WIRE
        return 8.0 * PAYLOAD


@pytest.mark.parametrize("share", [1.0, 0.71])
def test_packets_that_go_round_the_class_miss_an_aim(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: bytes on the wire since the start were compared with one second of payload, so a share of 0.71 passed."""
    replaced = {
        "need": lambda *features: None, "backends": lambda: ["nftables"],
        "Testbed": lambda topology: nullcontext(FakeLink(share)),
        "prepare": lambda testbed, backend, count: testbed,
        "measure": lambda testbed: testbed.transfer(),
    }  # fmt: skip
    for name, fake in replaced.items():
        monkeypatch.setattr(datapath, name, fake)
    findings = datapath.run(Console(quiet=True), 1, True)
    [through] = [aim for aim in findings.aims if "through our class" in aim.what]
    assert through.value == pytest.approx(share)
    assert list(aims.missed(findings.aims)) == ([] if share == 1 else [str(through)])


def test_of_several_spans_the_one_that_differs_most_counts() -> None:
    start = SentBytes(100, 1_000)
    assert through_class([(start, SentBytes(1_100, 2_000)), (start, SentBytes(800, 2_000))]) == pytest.approx(0.7)
    assert through_class([(start, SentBytes(1_100, 2_000)), (start, SentBytes(1_500, 2_000))]) == pytest.approx(1.4)
    assert through_class([(start, start)]) == 0
    assert through_class([]) == 0
