# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for tables in docs/, and for the report, a self-contained page. Both are generated from results.

A table in docs/ is refused if it differs from the results, or if there is no result.
"""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_result_file import OURS, PAPERS, PROVENANCE

from mptcp_bench import doc_tables, result_file
from mptcp_bench.cli import main
from mptcp_bench.doc_tables import DOCS, END
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.result_file import ExperimentResult, ResultError

SVG = b"<svg/>"
PAGE = "# Page\n\n<!-- table: recovery.aims -->\nold\n<!-- end -->\nText.\n"
AIMS = """\
| | measured | wanted | |
| --- | --- | --- | --- |
| iptables: gap | 0.125 s | ≤ 0.25 | met |
| nftables: gap | nothing | ≤ 0.25 | **missed** |
| nftables: seconds | 0.7 | | |

`mptcp-bench run fig3 --seed 7`, 2026-01-02, Linux 6.18.44, 2 processors.
"""


def generated_page(page: str, result: ExperimentResult = OURS) -> str:
    return doc_tables.with_tables(page, {"recovery": result}, "p.md")


def test_pages_in_docs_have_the_tables_of_the_stored_results() -> None:
    """The pages have every form of a table: rows, columns, brief tables, claims and lists of verdicts."""
    for page, text in doc_tables.page_texts().items():
        assert page.read_text() == text, f"{page} is out of date; mptcp-bench report --docs updates it"
    assert [
        reason for kept in doc_tables.read_kept().values() for reason in doc_tables.reasons_against_keeping(kept)
    ] == []


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (replace(OURS, quick=True), "it was run with --quick"),
        (
            replace(OURS, provenance=replace(PROVENANCE, commit="0123-dirty")),
            "commit 0123-dirty is not clean; commit all changes and run it again",
        ),
        (
            replace(OURS, aims=(replace(OURS.aims[0], value=0.3), *OURS.aims[1:])),
            "iptables: gap: 0.3 s, wanted ≤ 0.25: the verdict is 'met', but the bounds give 'missed'",
        ),
    ],
)
def test_unfit_result_is_not_stored(bad: ExperimentResult, reason: str, tmp_path: Path) -> None:
    source = tmp_path / "recovery" / result_file.FILE
    result_file.write(bad, source)
    with pytest.raises(ResultError, match=f"^{re.escape(f'{source}: {reason}')}$"):
        doc_tables.keep_result("recovery", tmp_path, tmp_path)
    assert not (tmp_path / "results").exists()


def test_result_is_stored_and_its_tables_replace_the_text_between_the_marks(tmp_path: Path) -> None:
    docs, results = tmp_path / "docs", tmp_path / "results"
    result_file.write(OURS, results / "recovery" / result_file.FILE)
    docs.mkdir()
    page = docs / "p.md"
    page.write_text(PAGE)
    doc_tables.keep_result("recovery", results, docs)
    assert doc_tables.read_kept(docs) == {"recovery": replace(OURS, data={}, pictures=())}
    assert doc_tables.write_pages(docs) == [page]
    text = page.read_text()
    assert text == f"# Page\n\n<!-- table: recovery.aims -->\n\n{AIMS}\n{END}\nText.\n"
    assert doc_tables.write_pages(docs) == []
    page.write_text(text.replace("0.125", "0.120"))
    assert doc_tables.write_pages(docs) == [page]
    text = generated_page(text, replace(OURS, earlier_rule="means were not compared"))
    assert f"processors.\n\nJudged by an earlier rule: means were not compared.\n\n{END}" in text


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (PAGE.replace("recovery", "guard"), "p.md:3: no result 'guard' is kept; there are recovery"),
        (PAGE.replace("aims", "claims"), "p.md:3: recovery has no table 'claims'; there are rates, aims"),
        (PAGE.replace("aims", "aims: bird"), "p.md:3: no row of aims contains 'bird'"),
        (PAGE.replace("aims", "rates [bird]"), "p.md:3: rates has no column 'bird'; there are path; Mbit/s"),
        (PAGE.replace(END, "") + PAGE, "p.md:3: <!-- table: recovery.aims -->: expected "),
        (PAGE.replace("recovery.aims", "recovery"), "p.md:3: <!-- table: recovery -->: expected "),
    ],
)
def test_page_with_an_unknown_name_or_an_invalid_mark_is_refused(page: str, message: str) -> None:
    with pytest.raises(ResultError) as error:
        generated_page(page)
    assert str(error.value).startswith(message)


class Page(HTMLParser):
    """Parses a page. Fails if elements are not closed in the right order, or if the page loads a file."""

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
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            assert "url(" not in data, "a style fetches a file"
        else:
            self.words.append(data)

    def values(self, *names: str) -> list[str]:
        return [value for name, value in self.attributes if name in names]


def test_report_has_all_results_with_escaped_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for each in (OURS, PAPERS):
        result_file.write(each, tmp_path / each.experiment / result_file.FILE)
    (tmp_path / "fig3" / "figure.svg").write_bytes(SVG)
    assert main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'report.html'}\n"
    assert printed.err.startswith("mptcp-bench report: not run yet: fig2, fig4, fig5, fig6, fig7, table1, goodput, ")
    page = Page((tmp_path / "report.html").read_text())
    assert [id.partition("-")[0] for id in page.values("id")] == ["fig3", "recovery"]
    references = page.values("src", "href", "srcset", "action")
    assert {f"#{id}" for id in page.values("id")} <= set(references)
    [picture] = (each for each in references if not each.startswith("#"))
    assert base64.b64decode(picture.removeprefix("data:image/svg+xml;base64,")) == SVG
    for words in (
        "2 claims of the paper: 1 holds 1 differs",
        "3 own aims: 1 met 1 missed 1 no aim",
        "differs The paper: Wi-Fi stays unused. Measured: It carried 20 %. Why: The scheduler fills it.",
        "missed nftables: gap: nothing, wanted ≤ 0.25",
        "The picture drawn.svg is missing.",
        "eth0 <b> 5.0",
        " ".join(EXPERIMENTS["recovery"].explanation.split("\n\n")[0].replace("``", "").split()),
    ):
        assert words in page.text, words


def test_no_report_is_written_if_a_file_is_invalid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "a" / result_file.FILE
    result_file.write(OURS, target)
    target.write_text(target.read_text().replace('"title": "kill -9"', '"title": 7'))
    assert main(["report", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mptcp-bench: {target}: Expected `str`, got `int`")
    assert not (tmp_path / "report.html").exists()


def test_report_of_stored_results_has_all_their_texts_and_pictures(tmp_path: Path) -> None:
    assert main(["report", str(tmp_path), "--kept"]) == 0
    html = (tmp_path / "kept.html").read_text()
    text, results = Page(html).text, doc_tables.read_kept()
    for name, found in results.items():
        cells = [cell for table in found.tables for row in (table.head, *table.rows) for cell in row]
        aims = [text for aim in found.aims for text in (aim.what, aim.measured, aim.wanted)]
        remarks = (found.earlier_rule, found.replacement, *found.notes)
        for words in (name, found.provenance.command, *cells, *aims, *remarks):
            assert " ".join(words.split()) in text, words
    pictures = [path for name in results for path in (DOCS / f"{name}.png", DOCS / f"paper/{name}.png")]
    assert html.count("data:image/png;base64,") == sum(path.is_file() for path in pictures) > 10
