# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the figures: each scenario's can be drawn, shows the data of the result, and fits on its canvas."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from paper_examples import EXAMPLES, fig2, fig3, fig4, fig6, fig7, incomplete, table1

from mptcp_bench import style
from mptcp_bench.paper.figures import draw, figure, svg
from mptcp_bench.paper.results import PaperResult, Run
from mptcp_bench.paper.summary import representative


def lines(axes: Any, label: str) -> list[Any]:
    return [line for line in axes.lines if line.get_label() == label]


@pytest.mark.nightly(besides=("[fig3]",))
@pytest.mark.parametrize("make", EXAMPLES)
def test_files_are_pictures_and_the_same_each_time(make: Callable[[], PaperResult], tmp_path: Path) -> None:
    png, vector = draw(make(), tmp_path / "new")
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    assert vector.read_bytes().startswith(b"<?xml")
    assert svg(make()) == vector.read_bytes()
    # Width and height in the header (PNG specification, 11.2.1), about twice what a page of 900 pixels shows.
    assert 1500 < int.from_bytes(png.read_bytes()[16:20]) < 2000


@pytest.mark.nightly
@pytest.mark.parametrize("make", EXAMPLES)
def test_no_words_leave_the_canvas_or_lie_on_others(make: Callable[[], PaperResult]) -> None:
    drawn = figure(make())
    drawn.draw_without_rendering()
    legends = [*drawn.legends, *(axes.get_legend() for axes in drawn.axes if axes.get_legend())]
    titles = [text for axes in drawn.axes for text in axes.texts if text.get_text()]
    labels = [axes.xaxis.label for axes in drawn.axes] + [axes.yaxis.label for axes in drawn.axes]
    boxes = [
        (part, part.get_window_extent())
        for part in [*drawn.texts, *titles, *legends, *labels]
        if part in legends or part.get_text()
    ]
    for part, box in boxes:
        assert box.x0 >= 0, part
        assert box.y0 >= 0, part
        assert box.x1 <= drawn.bbox.x1, part
        assert box.y1 <= drawn.bbox.y1, part
    for (one, box), (other, with_box) in combinations(boxes, 2):
        assert not box.shrunk(0.98, 0.9).overlaps(with_box.shrunk(0.98, 0.9)), (one, other)


def test_each_panel_shows_the_representative_run_bold_and_the_others_faint() -> None:
    result = fig3()
    (axes,) = figure(result).axes
    (bold,) = lines(axes, "Ethernet")
    chosen = representative(result.valid("mptcp"))
    assert chosen is not None
    assert chosen.series is not None
    assert list(bold.get_xdata()) == list(chosen.series.times)
    assert list(bold.get_ydata()) == style.smooth([v / 1e6 for v in chosen.series.paths["ethernet"]])
    faint = [line for line in axes.lines if line.get_color() == style.ETHERNET.color and line.get_alpha()]
    assert len(faint) == len(result.valid("mptcp")) - 1


@pytest.mark.nightly
def test_baselines_are_levels_of_the_panels() -> None:
    result = fig3()
    (axes,) = figure(result).axes
    dashed = [line for line in axes.lines if str(line.get_label()).startswith("TCP over Wi-Fi: ")]
    runs = [run for run in result.valid("tcp-wifi") if run.series]
    mean = sum(sum(run.series.paths["wifi"]) / len(run.series.times) for run in runs if run.series) / len(runs)
    assert [line.get_ydata()[0] for line in dashed] == [pytest.approx(mean / 1e6)]


@pytest.mark.nightly
def test_a_path_that_a_case_does_not_use_is_not_drawn() -> None:
    ethernet, wifi = figure(fig2()).axes
    assert lines(ethernet, "Ethernet")
    assert not lines(ethernet, "Wi-Fi")
    assert lines(wifi, "Wi-Fi")


@pytest.mark.nightly
def test_panels_can_be_compared() -> None:
    free, throttled = figure(fig7()).axes
    assert throttled.get_xlim()[1] > 3 * free.get_xlim()[1]
    first, repeated = figure(fig6()).axes[1:3]
    assert first.get_xlim() == repeated.get_xlim()
    assert first.get_ylim() == repeated.get_ylim()
    small, large = figure(fig4()).axes[:2]
    assert (small.get_xlim(), small.get_ylim()) == (large.get_xlim(), large.get_ylim())


@pytest.mark.nightly
def test_cap_and_the_moment_of_throttling_are_marked_where_there_is_a_cap() -> None:
    free, first, *_ = figure(fig6()).axes
    assert not lines(free, "cap in force")
    (cap,) = lines(first, "cap on Ethernet: 5 Mbit/s")
    assert cap.get_ydata()[0] == 5
    (mark,) = lines(first, "cap in force")
    assert mark.get_xdata()[0] == pytest.approx(0.8)
    (join,) = lines(first, "second subflow joined")
    assert join.get_xdata()[0] == pytest.approx(0.8 / 3)


@pytest.mark.nightly
def test_a_cap_that_takes_hold_early_is_looked_at_closely() -> None:
    full = fig6()
    early = [
        replace(run, values={**run.values, "joined": 0.03, "time_to_throttle": 0.03}) if run.case != "free" else run
        for run in full.runs
    ]
    drawn = figure(replace(full, runs=tuple(early)))
    assert len(drawn.axes) == len(figure(full).axes) + 2
    for axes in drawn.axes[-2:]:
        assert axes.get_xlim() == (0, pytest.approx(0.24))
        (mark,) = lines(axes, "cap in force")
        assert mark.get_xdata()[0] == pytest.approx(0.06)


@pytest.mark.nightly
def test_completion_times_stand_beside_the_transfers() -> None:
    result = fig6()
    bars = figure(result).axes[-1].patches
    means = [s.mean for case in result.cases if (s := result.statistic(case.key, "duration"))]
    assert [bar.get_width() for bar in bars] == pytest.approx(means)


@pytest.mark.nightly
def test_the_sweep_shows_mean_and_requirement() -> None:
    axes = figure(fig4()).axes[-2]
    (needed,) = [line for line in axes.lines if str(line.get_label()).startswith("2 × sum")]
    assert needed.get_xdata()[0] == pytest.approx(0.48)
    (container,) = axes.containers
    assert list(container.lines[0].get_xdata()) == [0.06, 0.12, 0.18, 0.24, 0.36, 0.48, 0.72, 1.44, 2.88, 5.76]


@pytest.mark.nightly
def test_conversion_has_a_row_for_each_kind_and_the_papers_values() -> None:
    drawn = figure(table1())
    assert len(drawn.axes) == 4
    syn, data, *_ = drawn.axes
    assert [line.get_xdata()[0] for line in lines(syn, "paper, SYN: 8.5 ms")] == [8.5]
    assert [line.get_xdata()[0] for line in lines(data, "paper, data: 23.4 ms")] == [pytest.approx(23.4)]
    (legend,) = [t.get_text() for t in syn.get_legend().get_texts() if t.get_text().startswith("plain TCP")]
    assert re.match(r"plain TCP, client → origin: n = 1200\nmedian \d+ µs, p95 \d+ µs, p99 \d+ µs", legend)


@pytest.mark.nightly
@pytest.mark.parametrize("make", EXAMPLES)
def test_a_result_of_one_valid_run_is_drawn(make: Callable[[], PaperResult]) -> None:
    full = make()
    lonely = replace(full, runs=full.runs[:1], summary=(), complete=False)
    drawn = figure(lonely)
    drawn.draw_without_rendering()
    assert "(incomplete)" in drawn.texts[0].get_text()


@pytest.mark.nightly
def test_without_a_data_point_the_panels_say_so() -> None:
    drawn = figure(incomplete())
    assert all("no data point yet" in [text.get_text() for text in axes.texts] for axes in drawn.axes)


@pytest.mark.nightly
def test_a_failed_run_is_not_drawn() -> None:
    full = fig3()
    strayed = Run("mptcp", 7, False, "fell back", series=full.runs[0].series, end=99.0)
    (axes,) = figure(replace(full, runs=(*full.runs, strayed))).axes
    assert len(axes.lines) == len(figure(full).axes[0].lines)
    assert axes.get_xlim()[1] < 50
