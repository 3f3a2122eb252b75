# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's pictures: no texts overlap, an unfinished experiment is drawn, marks have their values."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from mutants_of_paper import TODAY, results

from mptcp_bench.experiments.columns import Results
from mptcp_bench.paper import PAPER
from mptcp_bench.paper.drawing import picture


def figure(key: str, runs: int | None = None) -> Any:
    """Return the picture of a scenario on a machine of today, of the first *runs* or of all runs."""
    full = results(key, TODAY.get(key, {}))
    found: Results[Any, Any] = Results(full.turns, full.runs[:runs])
    return picture(key, found)


@pytest.mark.nightly(except_for=("[fig6]",))
@pytest.mark.parametrize("key", [key for key in PAPER if key != "table1"])
def test_no_texts_overlap_in_a_picture_and_an_unfinished_experiment_is_drawn(key: str) -> None:
    drawn = figure(key)
    drawn.draw_without_rendering()
    texts = [
        part for axes in drawn.axes for part in (axes.get_legend(), axes.xaxis.label, axes.yaxis.label, *axes.texts)
    ]
    boxes = [(part, part.get_window_extent()) for part in (*drawn.texts, *texts)]
    for part, box in boxes:
        assert 0 <= box.x0 <= box.x1 <= drawn.bbox.x1, part
        assert 0 <= box.y0 <= box.y1 <= drawn.bbox.y1, part
    for (one, box), (other, with_box) in combinations(boxes, 2):
        assert not box.shrunk(0.98, 0.9).overlaps(with_box.shrunk(0.98, 0.9)), (one, other)
    figure(key, 1).draw_without_rendering()


def test_picture_marks_the_cap_the_baseline_() -> None:
    *_, first, repeated = figure("fig6").axes
    assert first.get_xlim() == repeated.get_xlim()
    marks = {str(line.get_label()).partition(":")[0]: line for line in first.lines}
    assert marks["cap on Ethernet"].get_ydata()[0] == 5
    assert marks["cap in force"].get_xdata()[0] == pytest.approx(0.21, abs=0.02)
    assert marks["TCP, Wi-Fi alone"].get_ydata()[0] == pytest.approx(0.99 * 20, rel=0.01)
    assert max(marks["Ethernet"].get_ydata()) == pytest.approx(4.9, rel=0.01)
