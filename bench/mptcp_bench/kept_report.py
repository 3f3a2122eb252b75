# SPDX-License-Identifier: GPL-2.0-or-later
"""One HTML page of all results in docs/results: every verdict and table, with the pictures from docs/.

The pages in docs/ show a few of these tables. This page shows them all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from .doc_tables import DOCS, KEPT, read_kept
from .earlier_rules import earlier_rule
from .paper import scenarios
from .report import explanation, page, position
from .report_model import Chapter, Figure, word
from .result_file import ExperimentResult, JudgedClaim, Judgement, ResultError

PICTURES = (".", "paper")
"""Directories of the pictures within docs/."""


def write_kept_report(target: Path, docs: Path = DOCS) -> None:
    """Write the page of all results kept in *docs* into *target*. Raises ResultError if none is kept, and OSError."""
    kept = read_kept(docs)
    if not kept:
        raise ResultError(f"{docs / KEPT}: no result is kept in it")
    order = sorted(kept, key=lambda name: (position(kept[name].experiment), name))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page([_chapter(name, kept[name], docs) for name in order]))


def _chapter(name: str, found: ExperimentResult, docs: Path) -> Chapter:
    rule = earlier_rule(name, found)
    notes = (*found.notes, f"Judged by an earlier rule: {rule}.") if rule else found.notes
    tables = found.tables
    claims: tuple[JudgedClaim, ...] = ()
    if found.experiment in scenarios.NAMES:
        claims = tuple(_claim(row) for table in tables if table.key == "claims" for row in table.rows)
        tables = tuple(table for table in tables if table.key != "claims")
    return Chapter(
        result=replace(found, notes=notes),
        label=name,
        explanation=explanation(found.experiment),
        claims=claims,
        aims=found.aims,
        figures=tuple(_figures(name, found, docs)),
        tables=tuple(replace(table, caption=table.caption or table.key.capitalize()) for table in tables),
        parameters=tuple((each, word(value)) for each, value in found.parameters.items()),
    )


def _claim(row: tuple[str, ...]) -> JudgedClaim:
    says, measured, verdict = row
    return JudgedClaim("", says, measured, cast("Judgement", verdict))


def _figures(name: str, found: ExperimentResult, docs: Path) -> list[Figure]:
    pictures = [docs / directory / f"{name}.png" for directory in PICTURES]
    return [Figure(each.read_bytes(), f"{name}: {found.title}", "png") for each in pictures if each.is_file()]
