# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's pictures: each can be drawn, shows the data of the runs, and fits on its canvas."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from paper_mutants import TODAY, experiment, found

from mptcp_bench.experiments.columns import Results
from mptcp_bench.paper import PAPER
from mptcp_bench.paper.drawing import picture
from mptcp_bench.paper.panels import delays_picture


def figure(key: str, results: Results[Any, Any]) -> Any:
    return delays_picture(results) if key == "table1" else picture(key, results)


def lines(axes: Any, label: str) -> list[Any]:
    return [line for line in axes.lines if str(line.get_label()).startswith(label)]


@pytest.mark.nightly(except_for=("[fig6]",))
@pytest.mark.parametrize("key", PAPER)
def test_no_words_overlap_in_a_picture_and_an_unfinished_experiment_is_drawn(key: str) -> None:
    full = found("today", key)
    drawn = figure(key, full)
    drawn.draw_without_rendering()
    legends = [*drawn.legends, *(axes.get_legend() for axes in drawn.axes if axes.get_legend())]
    titles = [text for axes in drawn.axes for text in axes.texts]
    labels = [label for axes in drawn.axes for label in (axes.xaxis.label, axes.yaxis.label)]
    parts = [*legends, *(text for text in (*drawn.texts, *titles, *labels) if text.get_text())]
    boxes = [(part, part.get_window_extent()) for part in parts]
    for part, box in boxes:
        assert box.x0 >= 0 <= box.y0, part
        assert box.x1 <= drawn.bbox.x1, part
        assert box.y1 <= drawn.bbox.y1, part
    for (one, box), (other, with_box) in combinations(boxes, 2):
        assert not box.shrunk(0.98, 0.9).overlaps(with_box.shrunk(0.98, 0.9)), (one, other)
    begun = figure(key, Results(full.turns, full.runs[:1]))
    begun.draw_without_rendering()
    if key != "table1":
        assert "(incomplete)" in begun.texts[0].get_text()
        without_data_points = experiment(replace(TODAY, joins=False, server_is_multipath=True), key)
        figure(key, without_data_points).draw_without_rendering()


def test_picture_marks_the_cap_the_baselines_the_sweep_and_the_papers_values() -> None:
    first, repeated, bars = figure("fig6", found("today", "fig6")).axes[-3:]
    assert first.get_xlim() == repeated.get_xlim()
    (cap,), (mark,), (bold,) = (lines(first, label) for label in ("cap on Ethernet: 5", "cap in force", "Ethernet"))
    assert cap.get_ydata()[0] == 5
    assert mark.get_xdata()[0] == pytest.approx(0.21, abs=0.02)
    assert max(bold.get_ydata()) > 90
    (level,) = lines(first, "TCP, Wi-Fi alone: ")
    assert level.get_ydata()[0] == pytest.approx(0.99 * 20, rel=0.01)
    assert len(bars.patches) == 3
    (sweep,) = (axes for axes in figure("fig4", found("today", "fig4")).axes if "receive buffer (" in axes.get_xlabel())
    (needed,) = lines(sweep, "2 × sum")
    assert needed.get_xdata()[0] == pytest.approx(0.48)
    assert len(sweep.containers[0].lines[0].get_xdata()) == 10
    syn, *others = figure("table1", found("today", "table1")).axes
    assert len(others) == 4
    assert [line.get_xdata()[0] for line in lines(syn, "paper: 8.5 ms")] == [pytest.approx(8.5146)]
