# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the report: one valid page that loads nothing, escapes all texts, and leaves nothing out."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from paper_examples import EXAMPLES, PROVENANCE, fig2, fig3, fig4, incomplete, table1
from rich.table import Table as RichTable

from mptcp_bench import result_file
from mptcp_bench.cli import main
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.findings import Findings, result_of
from mptcp_bench.paper import chapter
from mptcp_bench.paper.figures import svg
from mptcp_bench.paper.results import PaperResult
from mptcp_bench.report import FoundResult, report, write_report
from mptcp_bench.result_file import ExperimentResult, Result, ResultError

pytestmark = pytest.mark.usefixtures("undrawn")
VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Parses a page: its text, its references, and whether each element is closed in the right place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag == "tr":
            self.cells.append([])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            assert "url(" not in data
            assert "@import" not in data
            return
        self.words.append(data)
        if self.cells and "tr" in self.open:
            self.cells[-1].append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def own(name: str, failures: tuple[str, ...] = (), pictures: tuple[str, ...] = ()) -> ExperimentResult:
    """Return a result of one of our experiments: one met aim, one missed aim, a figure without an aim, and a table."""
    aims = (Aim("share", 0.97, least=0.95), Aim("gap", 0.5, " s", most=0.25), Aim("greatest", 12, " ms"))
    table = RichTable("cell", "kept", title="Kept")
    table.add_row("bbr <20 ms>", "[green]0.99[/]")
    result = Findings((table,), {}, failures, aims=aims)
    found = result_of(name, EXPERIMENTS[name].summary, result, PROVENANCE, {"runs": "3"}, seed=1, quick=False)
    return replace(found, pictures=pictures)


def page(*shown: Result) -> Page:
    text = report([FoundResult(result, Path()) for result in shown])
    assert text.lower().startswith("<!doctype html>")
    read = Page(text)
    assert read.open == []
    return read


@pytest.fixture(scope="module")
def everything(undrawn: None) -> Page:
    """Return the page of a report with a result of each experiment."""
    return page(*(make() for make in EXAMPLES), *(own(name) for name in EXPERIMENTS))


@pytest.fixture(scope="module")
def figure_3(undrawn: None) -> Page:
    return page(fig3())


@pytest.fixture(scope="module")
def table_1(undrawn: None) -> Page:
    return page(table1())


def test_the_page_fetches_nothing_and_runs_nothing(everything: Page) -> None:
    read = everything
    assert not {"script", "link", "iframe", "object", "base"} & set(read.tags)
    assert all(re.match(r"#[\w-]+$|data:image/svg\+xml;base64,", reference) for reference in read.references)
    inner = [r for r in read.references if r.startswith("#")]
    assert {r.removeprefix("#") for r in inner} <= set(read.ids)
    assert len(set(read.ids)) == len(read.ids) == len(EXAMPLES) + len(EXPERIMENTS)


@pytest.mark.nightly(besides=("fig3",))
@pytest.mark.parametrize("make", [fig3, table1])
def test_the_figures_within_fetch_nothing(make: Callable[[], PaperResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chapter, "svg", svg)
    (picture,) = (r for r in page(make()).references if r.startswith("data:"))
    text = base64.b64decode(picture.partition(",")[2]).decode()
    assert text.startswith("<?xml")
    assert all(r.startswith("#") for r in re.findall(r'(?:xlink:)?href="([^"]*)"', text))
    assert "<script" not in text


def test_everything_is_said_of_an_experiment(figure_3: Page) -> None:
    text = figure_3.text
    assert "2 claims of the paper: 1 holds 1 differs" in text
    for words in (
        "Figure 3: MPTCP through the proxy",
        "MPTCP gives no less than TCP on the better path.",
        "113 against 92 Mbit/s.",
        "The kernel's scheduler fills every path whose window has room.",
        "15 data points of 15 planned; 1 run failed",
        "1 × MPTCP through the proxy: fell back to plain TCP",
        "The links are emulated.",
        "mptcp-bench run fig3 --seed 7",
        "0123456789abcdef0123456789abcdef01234567",
        "6.18.44",
        "2026-01-02T03:04:05+00:00",
    ):
        assert words in text, words


def test_statistics_are_mean_interval_and_count(figure_3: Page) -> None:
    result = fig3()
    line = result.statistic("mptcp", "goodput")
    assert line is not None
    assert line.high is not None
    (cells,) = [row for row in figure_3.cells if row[0] == "goodput"]
    expected = f"{line.mean / 1e6:.1f} ± {(line.high - line.mean) / 1e6:.1f} Mbit/s (n = 5)"
    assert cells[1] == expected
    assert len(cells) == 4


def test_the_sweep_has_a_row_for_each_point() -> None:
    rows = page(fig4()).cells
    assert len([row for row in rows if row[0].startswith("buffer ")]) == 10


def test_delays_stand_beside_the_papers(table_1: Page) -> None:
    rows = table_1.cells
    (syn,) = [row for row in rows if row[0] == "syn, client → origin" and row[1] == "plain TCP"]
    assert syn[2] == "1200"
    assert syn[-1] == "8.50 ms"
    (bulk,) = [row for row in rows if row[0] == "bulk, origin → client" and row[1] == "plain TCP"]
    assert bulk[-1] == "—"


def test_texts_are_escaped_and_an_interrupted_experiment_is_flagged() -> None:
    read = page(incomplete())
    assert "script" not in read.tags
    assert read.text.count('<script>alert(1)</script> & "quoted"') >= 6
    assert "was interrupted or is still running" in read.text
    assert "No run is a data point" in read.text
    assert "img" not in read.tags


def test_missing_experiments_are_named(everything: Page) -> None:
    text = page(fig2(), table1()).text
    assert "Not run yet: fig3, fig4, fig5, fig6, fig7, goodput, " in text
    assert "Not run yet" not in everything.text


def test_files_are_found_put_in_order_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, result in (("a", table1()), ("b", fig3()), ("c", fig2())):
        result_file.write(result, tmp_path / name / result_file.FILE)
    (tmp_path / "goodput.json").write_text("{}")
    for name in ("emulation", "goodput"):
        result_file.write(own(name), tmp_path / name / result_file.FILE)
    assert write_report(tmp_path, tmp_path / "out" / "r.html") == (
        "fig4",
        "fig5",
        "fig6",
        "fig7",
        *(name for name in EXPERIMENTS if name not in ("emulation", "goodput")),
    )
    written = (tmp_path / "out" / "r.html").read_text()
    assert [id.partition("-")[0] for id in Page(written).ids] == ["fig2", "fig3", "table1", "goodput", "emulation"]
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text() == written
    assert str(tmp_path / "report.html") in capsys.readouterr().out


def test_two_results_of_one_experiment_are_both_shown() -> None:
    ids = page(fig3(), replace(fig3(), seed=8)).ids
    assert len(ids) == len(set(ids)) == 2


def test_every_file_that_is_wrong_is_reported_and_no_page_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / result_file.FILE).write_text("{")
    assert main(["report", str(tmp_path)]) == 1
    message = capsys.readouterr().err.splitlines()
    assert [line.partition(": Invalid JSON")[0] for line in message] == [
        f"mptcp-bench: {tmp_path}/{name}/result.json" for name in ("a", "b")
    ]
    assert not (tmp_path / "report.html").exists()


def test_a_directory_without_a_result_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"no NAME/result\.json in it"):
        write_report(tmp_path, tmp_path / "r.html")


def test_ours_have_their_aims_and_tables() -> None:
    read = page(own("onset", failures=("bbr, 2/2 ms: void",)))
    text = read.text
    assert "3 aims of ours: 1 met 1 missed 1 no aim" in text
    for words in (
        "onset: A cap falls on a running download",
        "1 of 2 met",
        "missed gap: 0.5 s, wanted ≤ 0.25",
        "missed bbr, 2/2 ms: void",
        "bbr <20 ms>",
        "runs 3",
        "6.18.44",
    ):
        assert words in text, words
    assert [row for row in read.cells if row[0] == "greatest"] == [["greatest", "12 ms", "no aim"]]
    assert "img" not in read.tags


def test_our_pictures_are_those_beside_the_result(tmp_path: Path) -> None:
    for directory in ("onset", "guard"):
        result_file.write(own(directory, pictures=("drawn",)), tmp_path / directory / result_file.FILE)
    (tmp_path / "onset" / "drawn.svg").write_text("<svg/>")
    write_report(tmp_path, tmp_path / "r.html")
    read = Page((tmp_path / "r.html").read_text())
    (picture,) = [r for r in read.references if r.startswith("data:")]
    assert base64.b64decode(picture.partition(",")[2]) == b"<svg/>"
    assert "The picture drawn.svg cannot be shown: No such file or directory." in read.text


def test_a_file_of_neither_kind_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    for text, message in (
        ("[]", "Input should be an object"),
        ('{"experiment": "onset"}', "provenance: Field required"),
    ):
        (tmp_path / "a" / result_file.FILE).write_text(text)
        assert main(["report", str(tmp_path)]) == 1
        assert capsys.readouterr().err.startswith(f"mptcp-bench: {tmp_path}/a/result.json: {message}")
