# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for tables in docs/: generated from results, compared with them, and refused without a result."""

from __future__ import annotations

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
from mptcp_bench.result_file import ExperimentResult, ResultError, Table, Verdict

FOUND = ExperimentResult(
    provenance=PROVENANCE,
    experiment="recovery",
    title="",
    parameters={},
    seed=7,
    complete=True,
    aims=(
        Verdict("iptables: gap", 0.125, " s", None, 0.25, "met"),
        Verdict("nftables: gap", None, " s", None, 0.25, "missed"),
        Verdict("nftables: seconds", 0.7, "", None, None, "no aim"),
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


def test_what_is_kept_is_fit() -> None:
    assert {name: reasons for name, kept in read_kept().items() if (reasons := unfit(kept))} == {}


def changed(number: int, **values: Any) -> tuple[Verdict, ...]:
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


def test_all_first_cells_that_are_empty_are_those_of_the_row_above() -> None:
    rows = (("20", "standby", "after s", "0.3"), ("", "", "before", "0"), ("", "balanced", "share", "0.7"))
    found = replace(FOUND, tables=(Table("modes", "", ("RTT", "mode", "what", "mean"), rows),))
    text = generated(PAGE.replace("aims", "modes: standby, before; share"), {"recovery": found}, "p.md")
    assert "| 20 | standby | before | 0 |\n| 20 | balanced | share | 0.7 |\n" in text
    assert "after s" not in text


def test_words_may_leave_out_what_stands_between_them() -> None:
    text = generated(PAGE.replace("aims", "aims: nftables…0.7"), {"recovery": FOUND}, "p.md")
    assert "seconds" in text
    assert "gap" not in text


def test_columns_are_chosen_by_name() -> None:
    rows = (("a", "b", "c, d"), ("e", "f", "g"))
    found = replace(FOUND, tables=(Table("rates", "", ("path", "up", "down, kB"), rows),))
    text = generated(PAGE.replace("aims", "rates [down, kB; up]: e"), {"recovery": found}, "p.md")
    assert "| path | down, kB | up |\n| --- | --- | --- |\n| e | g | f |\n\n" in text


def test_a_brief_table_has_neither_intervals_nor_bounds() -> None:
    rows = (("8 ± 2 ms", "4.7 (4.1 to 5.4)", "1.5 ± 0.2", "6 ms (≤ 8)"),)
    found = replace(FOUND, tables=(Table("rates", "", ("path", "GET", "gap", "reaction"), rows),))
    text = generated(PAGE.replace("table: recovery.aims", "brief: recovery.rates"), {"recovery": found}, "p.md")
    assert "| 8 ± 2 ms | 4.7 | 1.5 | 6 ms (≤ 8) |\n\n`docs/results/recovery.json`, 2026-01-02.\n" in text
    text = generated(PAGE.replace("table", "brief"), {"recovery": FOUND}, "p.md")
    assert "| | measured |\n| --- | --- |\n| iptables: gap | 0.125 s |\n" in text
    assert "missed" not in text


def test_verdicts_are_shown_and_counted() -> None:
    def claimed(*verdicts: str, day: str) -> ExperimentResult:
        rows = tuple((f"claim {number}", "a figure", verdict) for number, verdict in enumerate(verdicts))
        provenance = replace(PROVENANCE, started=f"{day}T00:00:00+00:00")
        return replace(FOUND, tables=(Table("claims", "", ("", "", ""), rows),), provenance=provenance)

    kept = {"a": claimed("holds", "fails", day="2026-01-03"), "b": claimed("holds", day="2026-01-02")}
    text = generated(f"<!-- verdicts: a, b -->\n{END}\n", kept, "p.md")
    assert "| `a` | claim 0 | holds |\n| | claim 1 | fails |\n| `b` | claim 0 | holds |\n" in text
    assert "\n3 claims: 2 × holds, 1 × fails. Measured 2026-01-02 to 2026-01-03.\n" in text
    assert "a figure" not in text
    assert "Measured 2026-01-02.\n" in generated(f"<!-- verdicts: b -->\n{END}\n", kept, "p.md")


def test_a_table_of_the_experiments_own() -> None:
    text = generated(PAGE.replace("aims", "rates"), {"recovery": FOUND}, "p.md")
    assert "| path | Mbit/s |\n| --- | --- |\n| eth0 | 5.0 |\n" in text


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (PAGE.replace("recovery", "guard"), "p.md:3: no result 'guard' is kept; there are recovery"),
        (PAGE.replace("aims", "claims"), "p.md:3: recovery has no table 'claims'; there are rates, aims"),
        (PAGE.replace("aims", "aims: bird"), "p.md:3: no row of aims has 'bird' in it"),
        (PAGE.replace("aims", "aims: gap; bird"), "p.md:3: no row of aims has 'bird' in it"),
        (PAGE.replace("aims", "rates [bird]"), "p.md:3: rates has no column 'bird'; there are path; Mbit/s"),
        (f"<!-- verdicts: bird -->\n{END}", "p.md:1: no result 'bird' is kept; there are recovery"),
        (f"<!-- verdicts: recovery -->\n{END}", "p.md:1: recovery has no table 'claims'; there are rates, aims"),
        (f"<!-- verdicts -->\n{END}", "p.md:1: <!-- verdicts -->: there should be "),
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
    # A figure that was typed by hand differs from the measured one.
    (docs / "p.md").write_text((docs / "p.md").read_text().replace("0.125", "0.120"))
    assert write_pages(docs) == [docs / "p.md"]


def test_a_result_need_not_be_on_a_page(tmp_path: Path) -> None:
    """The report contains it instead, see ``test_kept_report.py``."""
    result_file.write(FOUND, tmp_path / doc_tables.KEPT / "recovery.json")
    assert pages(tmp_path) == {}


@pytest.mark.usefixtures("undrawn")
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
