# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the report: one valid page that loads nothing, escapes all texts, and leaves nothing out."""

from __future__ import annotations

import base64
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from found_results import OURS, PAPERS

from mptcp_bench import result_file
from mptcp_bench.cli import main
from mptcp_bench.doc_tables import DOCS, read_kept
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.report import Chapter, render_page

VOID = {"meta", "img", "br", "link", "hr", "input"}
SVG = b"<svg/>"


class Page(HTMLParser):
    """Parses a page: its text, its references, and whether each element is closed in the right place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object", "base")
        assert not [name for name, _ in attrs if name.startswith("on")]
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            assert "url(" not in data
            assert "@import" not in data
        else:
            self.words.append(data)

    def values(self, *names: str) -> list[str]:
        return [value for name, value in self.attributes if name in names]


def test_page_has_verdicts_tables_pictures_and_provenance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for each in (OURS, PAPERS):
        result_file.write(each, tmp_path / each.experiment / result_file.FILE)
    (tmp_path / "fig3" / "figure.svg").write_bytes(SVG)
    assert main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'report.html'}\n"
    assert printed.err.startswith("mptcp-bench report: not run yet: fig2, fig4, fig5, fig6, fig7, table1, goodput, ")
    read = Page((tmp_path / "report.html").read_text())
    assert [id.partition("-")[0] for id in read.values("id")] == ["fig3", "recovery"]
    references = read.values("src", "href", "srcset", "action")
    assert {f"#{id}" for id in read.values("id")} <= set(references)
    [picture] = (each for each in references if not each.startswith("#"))
    assert base64.b64decode(picture.removeprefix("data:image/svg+xml;base64,")) == SVG
    for words in (
        "Figure 3: Multipath TCP",
        "2 claims of the paper: 1 holds 1 differs",
        "3 own aims: 1 met 1 missed 1 no aim",
        "holds The paper: No less than TCP. Measured: 113 against 92 Mbit/s.",
        "differs The paper: Wi-Fi stays unused. Measured: It carried 20 %. Why: The scheduler fills it.",
        "missed nftables: gap: nothing, wanted ≤ 0.25",
        "iptables: gap 0.125 s ≤ 0.25 met",
        "Rates path Mbit/s eth0 <100> 5.0",
        "1 × fell back",
        "The picture drawn.svg is missing.",
        "6.18.44",
        "runs 3",
        " ".join(EXPERIMENTS["recovery"].explanation.split("\n\n")[0].replace("``", "").split()),
    ):
        assert words in read.text, words


def test_texts_are_escaped() -> None:
    hostile = '<script>alert(1)</script> & "quoted"'
    aims = tuple(replace(aim, what=hostile, measured_text=hostile, explanation=hostile) for aim in PAPERS.aims)
    found = replace(PAPERS, title=hostile, aims=aims, notes=(hostile,), failures=(hostile,))
    read = Page(render_page([Chapter(found, hostile), Chapter(replace(found, seed=8), hostile)]))
    assert read.text.count(hostile) >= 20
    assert len(set(read.values("id"))) == 2


def test_no_page_is_written_when_a_file_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "contains no NAME/result.json" in capsys.readouterr().err
    target = tmp_path / "a" / result_file.FILE
    result_file.write(OURS, target)
    target.write_text(target.read_text().replace('"title": "kill -9"', '"title": 7'))
    assert main(["report", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mptcp-bench: {target}: Expected `str`, got `int`")
    assert not (tmp_path / "report.html").exists()


def test_page_of_kept_results_has_all_that_is_kept(tmp_path: Path) -> None:
    assert main(["report", str(tmp_path), "--kept"]) == 0
    html = (tmp_path / "kept.html").read_text()
    text, results = Page(html).text, read_kept()
    for name, found in results.items():
        cells = [cell for table in found.tables for row in (table.head, *table.rows) for cell in row]
        aims = [text for aim in found.aims for text in (aim.what, aim.measured, aim.wanted)]
        remarks = (found.earlier_rule, found.replacement, *found.notes)
        for words in (name, found.provenance.command, *cells, *aims, *remarks):
            assert " ".join(words.split()) in text, words
    pictures = [path for name in results for path in (DOCS / f"{name}.png", DOCS / f"paper/{name}.png")]
    assert html.count("data:image/png;base64,") == sum(path.is_file() for path in pictures) > 10
