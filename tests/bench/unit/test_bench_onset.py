# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment onset: what it varies, and how it judges the cost of a cap for the other path."""

from __future__ import annotations

import math

import pytest

from mptcp_bench.experiments.onset import _when
from mptcp_bench.experiments.onset_cells import cells
from mptcp_bench.experiments.onset_judging import DOWN, UP, Outcome, Windows, aims, judge
from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.tables import mean
from mptcp_lab.testbed.recorder import Sample

ONSET, INTERVAL = 3.5, 0.1
CAP, LINK = 1_000_000, 30_000_000


def judged(windows: Windows, *stalls: tuple[float, float], in_force: float = 0.5) -> Outcome:
    """Judge a transfer whose other path stalls during *stalls*, in seconds after the onset."""
    samples, capped, other = [], 0.0, 0.0
    for number in range(round((ONSET + windows.end + 0.5) / INTERVAL)):
        time = number * INTERVAL
        samples.append(Sample(time, {"eth0": round(capped), "wlan0": round(other)}))
        after = time - ONSET + INTERVAL / 2
        capped += INTERVAL / 8 * (CAP if after > in_force else 100_000_000)
        other += 0 if any(begin < after < end for begin, end in stalls) else INTERVAL / 8 * LINK
    return judge(samples, "eth0", "wlan0", ONSET, CAP, LINK, 0.02, windows)


def test_a_stall_late_in_an_upload_is_counted_and_said_where() -> None:
    outcome = judged(UP, (6.0, 7.0), (12.0, 14.0))
    assert outcome.stalled == pytest.approx(3.0)
    assert [pytest.approx(each, abs=0.01) for each in outcome.stalls] == [(6.0, 7.0), (12.0, 14.0)]
    assert outcome.kept == pytest.approx(17 / 20, abs=0.01)
    assert outcome.worst == 0
    assert _when([outcome, judged(UP, (3.0, 4.0))]) == "3.0-14.0"
    assert _when([judged(UP)]) == ""


def test_a_download_is_watched_for_three_seconds() -> None:
    assert judged(DOWN, (4.0, 5.0)).stalled == 0
    assert judged(DOWN, (2.0, 2.5)).stalled == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("control", "stalls", "in_force", "wanted"),
    [
        ("cubic", [], 9.0, set()),
        ("bbr", [(4.5, 4.7), (14.5, 14.7)], 9.0, set()),
        ("cubic", [(4.5, 4.7), (14.5, 14.7)], 9.0, {"worst", "stalled"}),
        ("bbr", [(6.5, 7.7)], 9.0, {"kept", "stalled"}),
        ("bbr", [], 16.0, {"in_force", "off"}),
    ],
)
def test_the_aims_for_uploads(
    control: str, stalls: list[tuple[float, float]], in_force: float, wanted: set[str]
) -> None:
    found = aims([judged(UP, *stalls, in_force=in_force)], 1, UP, control, 0.02)
    assert {name for name, aim in found.items() if not aim.met} == wanted


def test_a_cap_that_never_came_is_in_no_mean_and_meets_no_aim() -> None:
    never, soon = judged(DOWN, in_force=99), judged(DOWN)
    assert never.in_force == math.inf
    found = aims([soon, never], 2, DOWN, "cubic", 0.02)
    assert not found["in_force"].met
    assert mean([soon.in_force, never.in_force]) == "never in 1 of 2"
    assert mean([never.in_force]) == "never"
    assert mean([1.0, 3.0]).startswith("2.00 ± ")


def test_either_path_may_be_the_capped_one() -> None:
    [ethernet, wifi] = cells({"cc": "bbr", "rtt": "20/80", "cap": "100-5,wifi:30-2"}, quick=False)
    assert (ethernet.path, ethernet.other, ethernet.rates) == ("ethernet", "wifi", (100, 30))
    assert (wifi.path, wifi.other, wifi.rates, wifi.cap) == ("wifi", "ethernet", (50, 30), 2)
    assert str(wifi) == "bbr, 20/80 ms, 30→2 Mbit/s, wifi"


def test_uploads_have_the_second_path_among_their_cells() -> None:
    assert {cell.path for cell in cells({"direction": "up"}, quick=False)} == {"ethernet", "wifi"}
    assert len(cells({}, quick=False)) == 24


@pytest.mark.parametrize("options", [{"cap": "lte:30-2"}, {"cap": "30"}, {"direction": "both"}, {"rtt": "20"}])
def test_a_cell_that_makes_no_sense_is_refused_with_what_is_allowed(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"^--set takes cc=…"):
        cells(options, quick=False)
