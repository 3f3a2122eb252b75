# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the report of docs/results contains each verdict, aim, table and picture of the kept results."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from paper_examples import PROVENANCE

from mptcp_bench import kept_report, result_file
from mptcp_bench.cli import main
from mptcp_bench.doc_tables import DOCS, KEPT, read_kept
from mptcp_bench.earlier_rules import earlier_rule
from mptcp_bench.kept_report import write_kept_report
from mptcp_bench.result_file import ExperimentResult, Table, Verdict

FOUND = ExperimentResult(
    provenance=PROVENANCE,
    experiment="fig3",
    title="Shares",
    parameters={"runs": 3},
    seed=7,
    complete=True,
    notes=("slow <host>",),
    tables=(
        Table("claims", "", ("the paper says", "measured", "verdict"), (("It is more.", "1.2 times", "differs"),)),
        Table("statistics", "Means", ("", "TCP"), (("goodput", "95 & more"),)),
    ),
)
RESULTS = read_kept()
PNG = b"\x89PNG"


def words(target: Path) -> str:
    """Return the text of the page *target*, with single spaces between words."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", target.read_text())).split())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of the kept results, as the command writes it."""
    target = tmp_path_factory.mktemp("kept") / "kept.html"
    assert main(["report", str(target.parent), "--kept"]) == 0
    return target


@pytest.fixture(scope="module")
def page(kept: Path) -> str:
    return words(kept)


@pytest.mark.parametrize("name", RESULTS)
def test_all_that_is_kept_is_on_the_page(name: str, page: str) -> None:
    found = RESULTS[name]
    cells = [cell for table in found.tables for row in (table.head, *table.rows) for cell in row]
    aims = [text for aim in found.aims for text in (aim.what, aim.measured, aim.wanted)]
    rule = earlier_rule(name, found)
    for text in (name, found.provenance.command, *cells, *aims, *found.notes, *([rule] if rule else [])):
        assert " ".join(text.split()) in page, text


def test_every_picture_of_a_kept_result_is_on_the_page(kept: Path) -> None:
    pictures = [path for name in RESULTS for path in (DOCS / f"{name}.png", DOCS / f"paper/{name}.png")]
    assert kept.read_text().count("data:image/png;base64,") == sum(path.is_file() for path in pictures) > 10


def test_a_paper_has_its_claims_and_verdicts(tmp_path: Path) -> None:
    result_file.write(FOUND, tmp_path / KEPT / "fig3-again.json")
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "fig3-again.png").write_bytes(PNG)
    target = tmp_path / "there" / "kept.html"
    write_kept_report(target, tmp_path)
    said = words(target)
    assert "1 claims of the paper: 1 differs" in said
    assert "fig3-again: Shares" in said
    assert "The paper: It is more. Measured: 1.2 times" in said
    assert "goodput 95 & more" in said
    assert "slow <host>" in said
    assert target.read_text().count("data:image/png;base64,iVBORw==") == 1


def test_one_of_ours_says_how_it_was_measured(tmp_path: Path) -> None:
    aim = Verdict("gap", 0.5, " s", None, 0.25, "missed")
    result_file.write(replace(FOUND, experiment="pages", aims=(aim,)), tmp_path / KEPT / "pages.json")
    target = tmp_path / "kept.html"
    write_kept_report(target, tmp_path)
    said = words(target)
    assert "A page of small files under a cap" in said
    assert "its worst 2 s" in said
    assert "0 of 1 met missed gap: 0.5 s, wanted ≤ 0.25" in said
    assert "Claims the paper says measured verdict" in said


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_report.write_kept_report, "__defaults__", (tmp_path,))
    assert main(["report", "--kept"]) == 1
    assert capsys.readouterr().err == f"mptcp-bench: {tmp_path / KEPT}: no result is kept in it\n"
    result_file.write(FOUND, tmp_path / KEPT / "fig3.json")
    target = tmp_path / "there" / "mine.html"
    assert main(["report", "--kept", "--output", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert target.is_file()
