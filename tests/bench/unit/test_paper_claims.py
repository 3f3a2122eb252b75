# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's claims and pictures: each claim holds with the paper's values, and mutants break it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
from mutants import constant, series, simulated_results

from mptcp_bench.experiments.columns import Results, Turn
from mptcp_bench.paper import PAPER, drawing
from mptcp_bench.paper.conversion_claims import (
    DOWNLOAD,
    KINDS,
    REQUEST,
    RESPONSE,
    SYN,
    SYN_AFTER_REQUEST,
    UPLOAD,
    Delays,
)
from mptcp_bench.paper.measurements import Download
from mptcp_bench.result_file import Judgement, Verdict

Values = Mapping[str, Mapping[str, float]]
"""The values of each download, or the delays of each kind of segment, in SI units."""
NOISE = (0.998, 1.002, 0.999, 1.001)
"""Factor on the values of each run."""


def _delays(least_idle: float, *seconds: float) -> Values:
    """Return the delays of each kind of segment, in the order of ``KINDS``."""
    return {kind: {"seconds": each, "least_idle": least_idle} for kind, each in zip(KINDS, seconds, strict=True)}


ALONE = {
    "tcp-ethernet": {"fell_back": 1, "goodput": 93e6, "rate_ethernet": 99e6},
    "tcp-wifi": {"fell_back": 1, "goodput": 18.6e6, "rate_wifi": 19.8e6},
}
LOSSY = {"retransmission_share": 0.02}
LOSSLESS = {"retransmission_share": 0}
CAPPED = {"capped": 1, "joined": 0.01, "before_cap": 99e6, "goodput": 23e6, "share_ethernet": 0.2, "share_wifi": 0.8,
          "rate_ethernet": 4.9e6, "rate_wifi": 18.8e6}  # fmt: skip
FREE = {"goodput": 93e6, "share_ethernet": 0.98, "share_wifi": 0.02, "rate_ethernet": 99e6, "rate_wifi": 0.4e6}
PAPERS_VALUES: dict[str, Values] = {
    "fig2": ALONE,
    "fig3": ALONE | {"mptcp": FREE},
    "fig4": {
        "small": {"goodput": 50e6, **LOSSY},
        "large": {"goodput": 110e6, "rate_ethernet": 99e6, "rate_wifi": 19e6, **LOSSLESS},
        "ample": {"goodput": 110e6, "rate_ethernet": 99e6, "rate_wifi": 19e6},
        "needed": {"goodput": 109e6},
    },
    "fig5": {
        "mtu-1500": {"goodput": 100e6, "retransmission_share": 0, "least_idle": 0},
        "mtu-1000": {"goodput": 80e6, "retransmission_share": 0.02, "least_idle": 0},
    },
    "fig6": {
        "tcp-wifi": ALONE["tcp-wifi"],
        "free": {**FREE, "duration": 0.43},
        "first": {**CAPPED, "duration": 0.8, "time_to_throttle": 0.3},
        "repeated": {**CAPPED, "duration": 1.7, "time_to_throttle": 0.02},
    },
    "fig7": {"tcp-wifi": ALONE["tcp-wifi"], "free": FREE, "throttled": CAPPED},
    "table1": _delays(0.01, 0.0085, 0.009, 0.0075, 0.0005, 0.02, 0.0234, 0.015, 0.015, 0.05),
}  # fmt: skip
"""Values of the paper: Linux 3.14 with MPTCP 0.89 on a Raspberry Pi, and a guest of ESXi with little processor time."""
FULL = {"goodput": 111e6, "share_ethernet": 0.83, "share_wifi": 0.17, "rate_wifi": 19.6e6}
CAPPED_SOFTLY = {"duration": 1.5, "time_to_throttle": 0.2, "rate_wifi": 19.6e6}
TODAY: dict[str, Values] = {
    "fig5": {"mtu-1000": {"goodput": 96.5e6, "retransmission_share": 0, "least_idle": 0.4}},
    "fig6": {"free": {**FULL, "duration": 0.36}, "first": CAPPED_SOFTLY, "repeated": CAPPED_SOFTLY},
    "fig7": {"free": FULL, "throttled": {"rate_wifi": 19.6e6}},
    "table1": _delays(0.5, 340e-6, 355e-6, 280e-6, 15e-6, 310e-6, 210e-6, 40e-6, 40e-6, 0.022),
}  # fmt: skip
"""The values of a current kernel, machine and throttler that differ from the paper's."""
NOT_CAPPED = {"capped": 0}
MUTANTS: tuple[tuple[str, int, Values, Judgement], ...] = (
    ("fig2", 0, {"tcp-wifi": {"fell_back": 0}}, "fails"),
    ("fig2", 1, {"tcp-ethernet": {"goodput": 18.6e6}}, "fails"),
    ("fig2", 1, {"tcp-wifi": {"goodput": 16e6}}, "fails"),
    ("fig2", 1, {"tcp-ethernet": {"goodput": 110e6}}, "fails"),
    ("fig3", 0, {"mptcp": {"goodput": 80e6}}, "fails"),
    ("fig3", 1, {"mptcp": {"share_ethernet": 0.4, "share_wifi": 0.6}}, "fails"),
    ("fig3", 1, {"tcp-ethernet": {"goodput": 18e6}}, "not judged"),
    ("fig3", 2, {"mptcp": {"share_wifi": 0.17}}, "fails"),
    ("fig4", 0, {"small": {"goodput": 110e6}}, "fails"),
    ("fig4", 1, {"small": LOSSLESS}, "fails"),
    ("fig4", 1, {"large": {"retransmission_share": 0.04}}, "fails"),
    ("fig4", 2, {"large": {"rate_ethernet": 80e6}}, "fails"),
    ("fig4", 2, {"large": {"rate_wifi": 14e6}}, "fails"),
    ("fig4", 3, {"needed": {"goodput": 92e6}}, "fails"),
    ("fig4", 3, {"needed": {"goodput": 104.5e6}}, "not judged"),
    ("fig4", 3, {"small": {"goodput": 110e6}}, "not judged"),
    ("fig5", 0, {"mtu-1000": {"goodput": 100e6}}, "fails"),
    ("fig5", 1, {"mtu-1000": {"goodput": 96.5e6}}, "fails"),
    ("fig5", 1, {"mtu-1000": {"retransmission_share": 0}}, "fails"),
    ("fig5", 1, {"mtu-1500": {"retransmission_share": 0.04}}, "fails"),
    ("fig6", 0, {"first": {"time_to_throttle": 0.06}}, "differs"),
    ("fig6", 0, {"first": {"time_to_throttle": 1.4}, "repeated": {"time_to_throttle": 1.2}}, "fails"),
    ("fig6", 0, {"repeated": NOT_CAPPED}, "fails"),
    ("fig6", 1, {"first": {"duration": 1.5, "rate_wifi": 8e6}}, "fails"),
    ("fig6", 1, {"repeated": NOT_CAPPED}, "fails"),
    ("fig6", 2, {"first": {"time_to_throttle": 0.06}}, "differs"),
    ("fig6", 2, {"repeated": {"share_ethernet": 0.97}}, "fails"),
    ("fig6", 2, {"repeated": NOT_CAPPED}, "fails"),
    ("fig6", 3, {"repeated": {"goodput": 16e6}}, "fails"),
    ("fig6", 3, {"repeated": {"rate_wifi": 8e6}}, "fails"),
    ("fig6", 3, {"repeated": NOT_CAPPED}, "fails"),
    ("fig7", 0, {"throttled": {"rate_ethernet": 6e6}}, "fails"),
    ("fig7", 0, {"throttled": {"rate_ethernet": 2.5e6}}, "fails"),
    ("fig7", 0, {"throttled": NOT_CAPPED}, "fails"),
    ("fig7", 1, {"throttled": {"share_wifi": 0.01}}, "fails"),
    ("fig7", 1, {"free": {"rate_wifi": 19.6e6}, "throttled": {"rate_wifi": 19.6e6}}, "differs"),
    ("fig7", 2, {"throttled": {"goodput": 93e6}}, "fails"),
    ("fig7", 2, {"free": {"rate_wifi": 19.8e6}, "throttled": {"rate_wifi": 17.8e6}}, "fails"),
    ("fig7", 3, {"throttled": {"goodput": 18.6e6}}, "fails"),
    ("table1", 0, {SYN: {"seconds": 0.0008}}, "fails"),
    ("table1", 0, {SYN: {"seconds": 0.08}}, "fails"),
    ("table1", 1, {REQUEST: {"seconds": 0.002}, RESPONSE: {"seconds": 0.002}}, "fails"),
    ("table1", 1, {REQUEST: {"seconds": 0.2}}, "fails"),
    ("table1", 2, {REQUEST: {"seconds": 0.004}, SYN_AFTER_REQUEST: {"seconds": 0.0001}}, "fails"),
    ("table1", 2, {RESPONSE: {"seconds": 0.004}, UPLOAD: {"seconds": 0.001}}, "differs"),
    ("table1", 3, {DOWNLOAD: {"seconds": 0.0004}}, "fails"),
)
"""Experiment, number of the claim, values that differ from ``PAPERS_VALUES``, and the verdict that they must have."""
UNEXPLAINED: tuple[tuple[str, int, Values], ...] = (
    # Squid is single-threaded, so an idle second processor does not help it.
    ("fig5", 1, {"mtu-1000": {"least_idle": 0}}),
    ("fig6", 0, {"first": {"time_to_throttle": 1.2}, "repeated": {"time_to_throttle": 1.2}}),
    ("fig6", 1, {"first": {"rate_wifi": 10e6}}),
    ("fig6", 2, {"repeated": {"before_cap": 30e6}}),
    ("fig7", 1, {"free": {"rate_wifi": 15e6}, "throttled": {"rate_wifi": 15e6}}),
    ("table1", 0, {SYN: {"least_idle": 0.01}}),
    ("table1", 1, {SYN: {"least_idle": 0.01}}),
    ("table1", 2, {SYN_AFTER_REQUEST: {"seconds": 30e-6}}),
)
"""Changes of ``TODAY`` with which a claim fails, because the values do not show the reason why it differs."""


def results(key: str, *changes: Values, **options: str) -> Results[Any, Any]:
    """Return the results of the experiment *key* with the values of ``PAPERS_VALUES`` and these *changes*."""
    values = {name: dict(each) for name, each in PAPERS_VALUES[key].items()}
    for change in changes:
        for name, changed in change.items():
            values[name] |= changed

    def values_of_run(name: str, number: int) -> dict[str, Any]:
        varied = {each: value * NOISE[number - 1] for each, value in values[name].items()}
        return varied | {each: values[name][each] for each in ("capped", "fell_back") if each in varied}

    def measure(turn: Turn[Any]) -> Download | dict[str, Delays]:
        if key == "table1":
            kinds = ((kind, values_of_run(kind, turn.number)) for kind in values)
            return {kind: Delays((each["seconds"],) * 3, each["least_idle"]) for kind, each in kinds}
        numbers = {"fell_back": False, "duration": 1.5, "joined": 0.01} | values_of_run(turn.cell.key, turn.number)
        loads = {path: constant(numbers.get(f"rate_{path}", 0.0) / 1e6) for path in ("ethernet", "wifi")}
        return Download(**numbers, samples=series(loads, numbers["duration"] + 0.3))

    return simulated_results(PAPER[key].load(), {"repetitions": str(len(NOISE)), **options}, measure)


def claims(key: str, *changes: Values, **options: str) -> list[Verdict]:
    return list(PAPER[key].load().verdicts(results(key, *changes, **options)))


@pytest.mark.parametrize("key", PAPER)
def test_each_claim_holds_with_the_papers_values_and_has_a_mutant(key: str) -> None:
    verdicts = [claim.verdict for claim in claims(key)]
    assert verdicts == ["holds"] * len(verdicts)
    assert {number for name, number, _, _ in MUTANTS if name == key} == set(range(len(verdicts)))
    reasons = {number for number, each in enumerate(claims(key, TODAY.get(key, {}))) if each.explanation}
    assert reasons == {number for name, number, _ in UNEXPLAINED if name == key}


@pytest.mark.parametrize(("key", "number", "changes", "verdict"), MUTANTS)
def test_claim_does_not_hold_with_faulty_values(key: str, number: int, changes: Values, verdict: Judgement) -> None:
    assert claims(key, changes)[number].verdict == verdict


@pytest.mark.parametrize(("key", "number", "changes"), UNEXPLAINED)
def test_claim_differs_only_if_the_values_show_the_reason(key: str, number: int, changes: Values) -> None:
    today, without = claims(key, TODAY[key])[number], claims(key, TODAY[key], changes)[number]
    assert today.verdict == "differs"
    assert (without.verdict, without.explanation) == ("fails", "")


@pytest.mark.parametrize("key", PAPER)
def test_claim_is_not_judged_by_one_run_or_none(key: str) -> None:
    complete, verdicts = results(key), PAPER[key].load().verdicts
    for number in (1, 0):
        runs = [run for run in complete.runs if run.turn.number <= number]
        assert {each.verdict for each in verdicts(Results(complete.turns, runs))} == {"not judged"}


@pytest.mark.parametrize(
    ("key", "number", "options"),
    [
        ("fig4", 3, {"inventory": "hosts.yaml"}),
        ("fig3", 1, {"inventory": "hosts.yaml"}),
        ("fig3", 1, {"ethernet.rtt": "80 ms"}),
    ],
)
def test_claim_is_not_judged_if_it_needs_other_links(key: str, number: int, options: dict[str, str]) -> None:
    """Figure 4 needs links of known rate and RTT; Figure 3 needs an Ethernet with the shorter RTT."""
    assert claims(key, **options)[number].verdict == "not judged"


def figure(key: str, runs: int | None = None) -> Any:
    """Return the picture of the first *runs* or of all runs on a current machine."""
    full = results(key, TODAY.get(key, {}))
    found: Results[Any, Any] = Results(full.turns, full.runs[:runs])
    return drawing.picture(key, found)


@pytest.mark.nightly(except_for=("[fig6]",))
@pytest.mark.parametrize("key", [key for key in PAPER if key != "table1"])
def test_no_texts_overlap_and_an_unfinished_experiment_is_drawn(key: str) -> None:
    picture = figure(key)
    picture.draw_without_rendering()
    texts = [
        part for axes in picture.axes for part in (axes.get_legend(), axes.xaxis.label, axes.yaxis.label, *axes.texts)
    ]
    boxes = [(part, part.get_window_extent()) for part in (*picture.texts, *texts)]
    for part, box in boxes:
        assert 0 <= box.x0 <= box.x1 <= picture.bbox.x1, part
        assert 0 <= box.y0 <= box.y1 <= picture.bbox.y1, part
    for (one, box), (other, with_box) in combinations(boxes, 2):
        assert not box.shrunk(0.98, 0.9).overlaps(with_box.shrunk(0.98, 0.9)), (one, other)
    figure(key, 1).draw_without_rendering()


def test_picture_marks_cap_baseline_and_the_time_to_throttle() -> None:
    *_, first, repeated = figure("fig6").axes
    assert first.get_xlim() == repeated.get_xlim()
    marks = {str(line.get_label()).partition(":")[0]: line for line in first.lines}
    assert marks["cap on Ethernet"].get_ydata()[0] == 5
    assert marks["cap in force"].get_xdata()[0] == pytest.approx(0.21, abs=0.02)
    assert marks["TCP, Wi-Fi alone"].get_ydata()[0] == pytest.approx(0.99 * 20, rel=0.01)
    assert max(marks["Ethernet"].get_ydata()) == pytest.approx(4.9, rel=0.01)
