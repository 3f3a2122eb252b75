# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the paper's figures: each can be drawn, shows the data of the runs, and fits on its canvas."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import paper_conversion_mutants as conversions
import pytest
from paper_mutants import TODAY, experiment

from mptcp_bench import style
from mptcp_bench.paper.figures import draw, figure
from mptcp_bench.paper.results import Measurements, representative
from mptcp_bench.paper.scenarios import NAMES, TABLE


@cache
def measured(key: str) -> Measurements:
    return conversions.experiment(conversions.TODAY) if key == TABLE else experiment(TODAY, key)


def lines(axes: Any, label: str) -> list[Any]:
    return [line for line in axes.lines if str(line.get_label()).startswith(label)]


@pytest.mark.nightly(except_for=("[fig6]",))
@pytest.mark.parametrize("key", NAMES)
def test_figure_is_a_picture_in_which_no_words_overlap(key: str, tmp_path: Path) -> None:
    png, vector = tmp_path / "new.png", tmp_path / "new.svg"
    for target in (png, vector):
        draw(measured(key), target)
    assert vector.read_bytes().startswith(b"<?xml")
    # Width and height in the header (PNG specification, 11.2.1), about twice what a page of 900 pixels shows.
    assert 1500 < int.from_bytes(png.read_bytes()[16:20]) < 2000
    drawn = figure(measured(key))
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


def test_panel_shows_the_representative_run_bold_the_others_faint_and_the_baselines() -> None:
    result = measured("fig3")
    (axes,) = figure(result).axes
    (bold,) = lines(axes, "Ethernet")
    chosen = representative(result.valid("mptcp"))
    assert chosen is not None
    assert chosen.series is not None
    assert list(bold.get_ydata()) == style.smooth([v / 1e6 for v in chosen.series.paths["ethernet"]])
    faint = [line for line in axes.lines if line.get_color() == style.ETHERNET.color and line.get_alpha()]
    assert len(faint) == len(result.valid("mptcp")) - 1
    (level,) = lines(axes, "TCP, Wi-Fi alone: ")
    assert level.get_ydata()[0] == pytest.approx(0.99 * 20, rel=0.01)


@pytest.mark.nightly
def test_caps_the_sweep_and_the_papers_values_are_marked() -> None:
    _, first, repeated, bars = figure(measured("fig6")).axes
    assert first.get_xlim() == repeated.get_xlim()
    (cap,), (mark,) = lines(first, "cap on Ethernet: 5 Mbit/s"), lines(first, "cap in force")
    assert cap.get_ydata()[0] == 5
    assert mark.get_xdata()[0] == pytest.approx(0.21, abs=0.02)
    assert len(bars.patches) == 3
    (sweep,) = (axes for axes in figure(measured("fig4")).axes if "receive buffer (" in axes.get_xlabel())
    (needed,) = lines(sweep, "2 × sum")
    assert needed.get_xdata()[0] == pytest.approx(0.48)
    assert len(sweep.containers[0].lines[0].get_xdata()) == 10
    syn, *others = figure(measured(TABLE)).axes
    assert len(others) == 4
    assert [line.get_xdata()[0] for line in lines(syn, "paper, SYN: 8.5 ms")] == [pytest.approx(8.5146)]


@pytest.mark.nightly
@pytest.mark.parametrize("key", NAMES)
def test_unfinished_experiment_is_drawn_and_says_so(key: str) -> None:
    full = measured(key)
    drawn = figure(replace(full, runs=full.runs[:1], complete=False))
    drawn.draw_without_rendering()
    assert "(incomplete)" in drawn.texts[0].get_text()
    nothing = figure(replace(full, runs=tuple(replace(run, valid=False) for run in full.runs)))
    shown = [text.get_text() for axes in nothing.axes for text in axes.texts]
    assert "no data point yet" in shown or key == TABLE
