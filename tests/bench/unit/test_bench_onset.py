# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment onset: what it varies, and how it judges the cost of a cap for the other path."""

from __future__ import annotations

import pytest
from mutants import rehearsed

from mptcp_bench.experiments.onset import DOWN, SCENARIO, UP, Outcome, Windows, judge
from mptcp_lab.testbed.recorder import Sample

ONSET, INTERVAL = 3.5, 0.1
CAP, LINK = 1_000_000, 30_000_000


def judged(windows: Windows, *stalls: tuple[float, float], in_force: float = 0.5) -> Outcome:
    """Judge a transfer whose other path stalls during *stalls*, in seconds after the onset."""
    samples, capped, other = [], 0.0, 0.0
    for number in range(round((ONSET + windows.steady[1] + 0.5) / INTERVAL)):
        time = number * INTERVAL
        samples.append(Sample(time, {"eth0": round(capped), "wlan0": round(other)}))
        after = time - ONSET + INTERVAL / 2
        capped += INTERVAL / 8 * (CAP if after > in_force else 100_000_000)
        other += 0 if any(begin < after < end for begin, end in stalls) else INTERVAL / 8 * LINK
    return judge(samples, "eth0", "wlan0", ONSET, CAP, LINK, 0.02, windows)


def test_a_stall_late_in_an_upload_counts_but_a_download_is_watched_for_three_seconds() -> None:
    outcome = judged(UP, (6.0, 7.0), (12.0, 14.0))
    assert (outcome.stalled, outcome.kept, outcome.worst) == pytest.approx((3.0, 17 / 20, 0), abs=0.01)
    assert judged(DOWN, (4.0, 5.0)).stalled == 0
    assert judged(DOWN, (2.0, 2.5)).stalled == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("control", "stalls", "in_force", "wanted"),
    [
        ("cubic", [], 9.0, set()),
        ("bbr", [(4.5, 4.7), (14.5, 14.7)], 9.0, set()),
        ("cubic", [(4.5, 4.7), (14.5, 14.7)], 9.0, {"worst sample", "stalled"}),
        ("bbr", [(6.5, 7.7)], 9.0, {"kept", "stalled"}),
        ("bbr", [], 16.0, {"in force after", "from then on off by"}),
    ],
)
def test_an_upload_may_stall_only_for_the_dips_of_its_congestion_control(
    control: str, stalls: list[tuple[float, float]], in_force: float, wanted: set[str]
) -> None:
    options = {"direction": "up", "cc": control, "rtt": "20/20", "cap": "100-1", "variant": "soft", "runs": "1"}
    results = rehearsed(SCENARIO, options, lambda turn: judged(UP, *stalls, in_force=in_force))
    assert {aim.what.rpartition(": ")[2] for aim in SCENARIO.aims(results) if not aim.met} == wanted


def test_either_path_may_be_the_capped_one() -> None:
    chosen = SCENARIO.chosen({"cc": "bbr", "rtt": "20/80", "cap": "100-5,wifi:30-2"})
    ethernet, wifi = SCENARIO.cells(chosen)
    assert (ethernet.capped[0], ethernet.other, ethernet.rates) == ("ethernet", "wifi", (100, 30))
    assert (wifi.capped[0], wifi.other, wifi.rates, wifi.rtt) == ("wifi", "ethernet", (50, 30), 80)
    assert str(wifi) == "bbr, 20/80 ms, 30→2 Mbit/s, wifi"
    assert {cell.capped[0] for cell in SCENARIO.cells(SCENARIO.chosen({"direction": "up"}))} == {"ethernet", "wifi"}
    assert len(SCENARIO.cells(SCENARIO.chosen({}))) == 24
