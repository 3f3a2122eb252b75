# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for tables in docs/: generated from results, compared with them, and refused without a result."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from found_results import OURS, PROVENANCE

from mptcp_bench import result_file
from mptcp_bench.doc_tables import (
    END,
    keep_result,
    page_texts,
    read_kept,
    reasons_against_keeping,
    with_tables,
    write_pages,
)
from mptcp_bench.result_file import ExperimentResult, ResultError

PAGE = "# Page\n\n<!-- table: recovery.aims -->\nold\n<!-- end -->\nText.\n"
AIMS = """\
| | measured | wanted | |
| --- | --- | --- | --- |
| iptables: gap | 0.125 s | ≤ 0.25 | met |
| nftables: gap | nothing | ≤ 0.25 | **missed** |
| nftables: seconds | 0.7 | | |

`mptcp-bench run fig3 --seed 7`, 2026-01-02, Linux 6.18.44, 2 processors.
"""


def shown(page: str, found: ExperimentResult = OURS) -> str:
    return with_tables(page, {"recovery": found}, "p.md")


def test_pages_in_docs_have_the_tables_of_the_results_which_are_fit() -> None:
    """The pages use each form of a table: rows, columns, brief tables, claims and lists of verdicts."""
    for page, text in page_texts().items():
        assert page.read_text() == text, f"{page}: mptcp-bench report --docs updates it"
    assert [reason for kept in read_kept().values() for reason in reasons_against_keeping(kept)] == []


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
def test_unfit_result_is_not_kept(bad: ExperimentResult, reason: str, tmp_path: Path) -> None:
    source = tmp_path / "recovery" / result_file.FILE
    result_file.write(bad, source)
    with pytest.raises(ResultError, match=f"^{re.escape(f'{source}: {reason}')}$"):
        keep_result("recovery", tmp_path, tmp_path)
    assert not (tmp_path / "results").exists()


def test_results_are_kept_and_tables_replace_the_text_between_the_marks(tmp_path: Path) -> None:
    docs, results = tmp_path / "docs", tmp_path / "results"
    result_file.write(OURS, results / "recovery" / result_file.FILE)
    docs.mkdir()
    page = docs / "p.md"
    page.write_text(PAGE)
    keep_result("recovery", results, docs)
    assert read_kept(docs) == {"recovery": replace(OURS, data={}, pictures=())}
    assert write_pages(docs) == [page]
    text = page.read_text()
    assert text == f"# Page\n\n<!-- table: recovery.aims -->\n\n{AIMS}\n{END}\nText.\n"
    assert write_pages(docs) == []
    page.write_text(text.replace("0.125", "0.120"))
    assert write_pages(docs) == [page]
    text = shown(text, replace(OURS, earlier_rule="means were not compared"))
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
def test_page_with_an_unknown_name_or_a_wrong_mark_is_refused(page: str, message: str) -> None:
    with pytest.raises(ResultError) as error:
        shown(page)
    assert str(error.value).startswith(message)
