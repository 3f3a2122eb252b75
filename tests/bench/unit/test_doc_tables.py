"""The tables in docs/ are what the results say: generated, compared, and refused where there is nothing behind them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper_examples import PROVENANCE, fig3

from mptcp_bench import doc_tables, result_file
from mptcp_bench.cli import main
from mptcp_bench.doc_tables import DOCS, END, generated, keep, markdown, pages, read_kept, summary, unfit, write_pages
from mptcp_bench.result_file import ExperimentResult, JudgedAim, ResultError, Table

FOUND = ExperimentResult(
    provenance=PROVENANCE,
    experiment="recovery",
    title="",
    parameters={},
    seed=7,
    complete=True,
    aims=(
        JudgedAim("iptables: gap", 0.125, " s", None, 0.25, "met"),
        JudgedAim("nftables: gap", None, " s", None, 0.25, "missed"),
        JudgedAim("nftables: seconds", 0.7, "", None, None, "no aim"),
    ),
    tables=(Table("rates", "Rates", ("path", "Mbit/s"), (("eth0", "5.0"),)),),
    pictures=("drawn",),
    data={"samples": [1, 2, 3]},
)
PAGE = "# Page\n\n<!-- table: recovery.aims -->\nold\n<!-- end -->\nText.\n"
FROM = "`mptcp-bench run fig3 --seed 7`, 2026-01-02, Linux 6.18.44, 2 processors."
AIMS = f"""\
| | measured | wanted | |
| --- | --- | --- | --- |
| iptables: gap | 0.125 s | ≤ 0.25 | met |
| nftables: gap | nothing | ≤ 0.25 | **missed** |
| nftables: seconds | 0.7 | | |

{FROM}
"""


def test_the_pages_say_what_the_results_say() -> None:
    message = "mptcp-bench report --docs writes it anew"
    for page, text in pages().items():
        assert page.read_text() == text, f"{page}: {message}"
    assert read_kept(), "no result is kept in docs/results"


BY_HAND = "Taken once by hand; no result is kept."
FIGURE = re.compile(r"^\**[-+≤≥]?\d|\d ?(?:[kKMG]?B|[kMG]?bit/s|%|×|s|ms|µs|ns|hours?|minutes?|seconds?)(?![\w/])")
"""What was measured: a number that a cell begins with, or one with a unit."""
CODE = re.compile(r"`[^`]*`")


def unsourced(text: str) -> Iterator[int]:
    """Yield the line of each table of *text* that has figures in half of its cells and does not say where from."""
    lines = text.split("\n")
    table: list[str] = []
    is_generated = False
    for number, line in enumerate([*lines, ""], 1):
        if line.startswith("|"):
            table.append(line)
            continue
        if table and not is_generated:
            # What is written as code is an example, or a setting.
            rows = [CODE.sub("", row) for row in table[2:]]
            cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")[1:] if cell.strip()]
            figures = sum(1 for cell in cells if FIGURE.search(cell))
            if figures >= 0.5 * len(cells) > 0 and lines[number : number + 1] != [BY_HAND]:
                yield number - len(table)
        table = []
        is_generated = is_generated != (line == END or doc_tables.BEGIN.fullmatch(line) is not None)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_a_table_of_figures_is_generated_or_says_that_it_was_taken_by_hand(page: Path) -> None:
    assert list(unsourced(page.read_text())) == []


def test_a_table_of_figures_without_a_source_is_found() -> None:
    table = "| | s |\n|---|---|\n| ours | 5 |\n| **theirs** | **7** |\n"
    assert list(unsourced(f"Text\n\n{table}\nText\n")) == [3]
    assert list(unsourced(table)) == [1]
    assert list(unsourced("| | costs | lacks |\n|---|---|---|\n| a dump | in all 5 µs a socket | nothing |\n")) == [1]
    assert list(unsourced(f"{table}\n{BY_HAND}\n")) == []
    assert list(unsourced(f"<!-- table: a.b -->\n\n{table}\n{END}\n")) == []
    assert list(unsourced(f"<!-- table: a.b -->\n{END}\n{table}\n")) == [3]
    assert list(unsourced("| key | meaning |\n|---|---|\n| rate | Mbit/s |\n")) == []


@pytest.mark.parametrize("name", sorted(read_kept()))
def test_what_is_kept_is_fit(name: str) -> None:
    assert unfit(read_kept()[name]) == []


def changed(number: int, **values: Any) -> tuple[JudgedAim, ...]:
    aims = list(FOUND.aims)
    aims[number] = replace(aims[number], **values)
    return tuple(aims)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (replace(FOUND, complete=False), "it was interrupted"),
        (replace(FOUND, quick=True), "it was run with --quick"),
        *(
            (
                replace(FOUND, provenance=replace(PROVENANCE, commit=commit)),
                f"commit {commit}: the working copy was no commit; commit, then run it again",
            )
            for commit in (f"{PROVENANCE.commit}-dirty", f"{PROVENANCE.commit}-unknown", "unknown")
        ),
        (replace(FOUND, aims=changed(0, value=0.3)), "iptables: gap: 0.3 s, wanted ≤ 0.25, is 'missed' and not 'met'"),
        (replace(FOUND, aims=changed(0, most=0.1)), "iptables: gap: 0.125 s, wanted ≤ 0.1, is 'missed' and not 'met'"),
        (
            replace(FOUND, aims=changed(1, verdict="met")),
            "nftables: gap: nothing, wanted ≤ 0.25, is 'missed' and not 'met'",
        ),
        (
            replace(FOUND, aims=changed(2, verdict="met")),
            "nftables: seconds: 0.7, wanted nothing, is 'no aim' and not 'met'",
        ),
    ],
)
def test_what_is_unfit_is_not_kept(
    bad: ExperimentResult, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "recovery" / result_file.FILE
    result_file.write(bad, source)
    with pytest.raises(ResultError) as error:
        keep("recovery", tmp_path, tmp_path / "docs")
    assert str(error.value) == f"{source}: {reason}"
    assert main(["report", str(tmp_path), "--docs", "recovery"]) == 1
    assert capsys.readouterr().err == f"mptcp-bench: {source}: {reason}\n"
    assert not (tmp_path / "docs").exists()


def test_what_is_kept_is_small() -> None:
    for source in (DOCS / doc_tables.KEPT).iterdir():
        assert source.stat().st_size < 60_000, f"{source}: summaries alone"


def test_a_table_is_written_where_the_page_wants_it() -> None:
    text = generated(PAGE, {"recovery": FOUND}, "p.md")
    assert text == f"# Page\n\n<!-- table: recovery.aims -->\n\n{AIMS}\n{END}\nText.\n"
    assert generated(text, {"recovery": FOUND}, "p.md") == text


def test_rows_are_chosen_by_words() -> None:
    text = generated(PAGE.replace("aims", "aims: iptables"), {"recovery": FOUND}, "p.md")
    assert "| iptables: gap | 0.125 s | ≤ 0.25 | met |" in text
    assert "nftables" not in text


def test_a_row_without_a_label_has_that_of_the_row_above() -> None:
    rows = (("2 ms", "soft", "1.0"), ("", "at once", "0.6"), ("20 ms", "soft", "0.9"), ("", "at once", "0.5"))
    found = replace(FOUND, tables=(Table("rates", "Rates", ("path", "cap", "kept"), rows),))
    text = generated(PAGE.replace("aims", "rates: at once"), {"recovery": found}, "p.md")
    assert "| 2 ms | at once | 0.6 |\n| 20 ms | at once | 0.5 |\n" in text
    assert "soft" not in text
    assert "| | at once | 0.6 |" in generated(PAGE.replace("aims", "rates"), {"recovery": found}, "p.md")


def test_a_table_of_the_experiments_own() -> None:
    text = generated(PAGE.replace("aims", "rates"), {"recovery": FOUND}, "p.md")
    assert "| path | Mbit/s |\n| --- | --- |\n| eth0 | 5.0 |\n" in text


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (PAGE.replace("recovery", "guard"), "p.md:3: no result 'guard' is kept; there are recovery"),
        (PAGE.replace("aims", "claims"), "p.md:3: recovery has no table 'claims'; there are rates, aims"),
        (PAGE.replace("aims", "aims: bird"), "p.md:3: no row of recovery.aims has 'bird' in it"),
        (PAGE.replace(END, ""), "p.md:3: <!-- table: recovery.aims -->: no <!-- end --> behind it"),
        (PAGE.replace(END, "") + PAGE, "p.md:3: <!-- table: recovery.aims -->: no <!-- end --> before the next table"),
        (PAGE.replace("recovery.aims", "recovery"), "p.md:3: <!-- table: recovery -->: there should be "),
        (END, "p.md:1: <!-- end -->: there should be "),
    ],
)
def test_a_page_that_names_what_there_is_not_is_refused(page: str, message: str) -> None:
    with pytest.raises(ResultError) as error:
        generated(page, {"recovery": FOUND}, "p.md")
    assert str(error.value).startswith(message)


@given(st.text())
def test_a_page_without_tables_stays_as_it_is(text: str) -> None:
    page = text.replace("<!--", "")
    assert generated(page, {}, "p.md") == page


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2).map(tuple), min_size=1))
def test_any_cell_stays_in_its_column(rows: list[tuple[str, ...]]) -> None:
    lines = list(markdown(Table("k", "", ("a", "b"), tuple(rows))))
    assert len(lines) == len(rows) + 2
    for line in lines:
        assert line.replace(r"\|", "").count("|") == 3


def test_results_are_kept_and_pages_written(tmp_path: Path) -> None:
    docs, results = tmp_path / "docs", tmp_path / "results"
    result_file.write(FOUND, results / "recovery" / result_file.FILE)
    docs.mkdir()
    (docs / "p.md").write_text(PAGE)
    keep("recovery", results, docs)
    assert read_kept(docs) == {"recovery": replace(FOUND, data={}, pictures=())}
    assert write_pages(docs) == [docs / "p.md"]
    assert AIMS in (docs / "p.md").read_text()
    assert write_pages(docs) == []
    # A figure that somebody types is not what was measured.
    (docs / "p.md").write_text((docs / "p.md").read_text().replace("0.125", "0.120"))
    assert write_pages(docs) == [docs / "p.md"]


def test_a_result_that_no_page_shows_is_reported(tmp_path: Path) -> None:
    result_file.write(FOUND, tmp_path / doc_tables.KEPT / "recovery.json")
    with pytest.raises(ResultError, match=r"results: no page shows recovery$"):
        pages(tmp_path)


def test_of_the_papers_results_claims_and_statistics_are_kept() -> None:
    kept = summary(fig3())
    assert [table.key for table in kept.tables] == ["claims", "statistics"]
    assert [row[2] for row in kept.tables[0].rows] == ["holds", "differs"]
    assert len(result_file.to_json(kept)) < 10_000
    assert result_file.from_json(result_file.to_json(kept), "f", ExperimentResult) == kept


def test_the_command_keeps_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[str, Path]] = []
    monkeypatch.setattr(doc_tables, "keep", lambda name, results: kept.append((name, results)))
    monkeypatch.setattr(doc_tables, "write_pages", lambda: [tmp_path / "p.md"])
    assert main(["report", str(tmp_path), "--docs", "recovery"]) == 0
    assert kept == [("recovery", tmp_path)]
    assert capsys.readouterr().out == f"{tmp_path / 'p.md'}\n"
    assert not (tmp_path / "report.html").exists()


def test_a_result_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--docs", "recovery"]) == 1
    message = f"mptcp-bench: {tmp_path}/recovery/result.json: No such file or directory\n"
    assert capsys.readouterr().err == message


def verdicts_of(*, mimbox: bool) -> Counter[str]:
    kept = (each for name, each in read_kept().items() if name.startswith("mimbox") is mimbox)
    tables = (table for each in kept for table in each.tables if table.key == "claims")
    return Counter(row[-1] for table in tables for row in table.rows)


def test_the_page_on_mimbox_counts_claims_as_the_results_do() -> None:
    verdicts = verdicts_of(mimbox=True)
    said = (
        f"Of the paper's {verdicts.total()} claims, as far as these runs say, {verdicts['holds']} hold, "
        f"{verdicts['fails']} fail; not judged: {verdicts['not judged']}."
    )
    assert said in (DOCS / "mimbox.md").read_text()


def test_the_front_page_counts_claims_as_the_results_do() -> None:
    verdicts = verdicts_of(mimbox=False)
    said = (
        f"of {verdicts.total()} claims {verdicts['holds']} hold, {verdicts['differs']} differ on a kernel of today, "
        f"{verdicts['fails']} fail, not judged: {verdicts['not judged']}."
    )
    assert said in (DOCS.parent / "README.md").read_text()
    assert set(verdicts) <= {"holds", "differs", "fails", "not judged"}
