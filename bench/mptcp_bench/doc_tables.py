# SPDX-License-Identifier: GPL-2.0-or-later
"""Generate the tables in docs/ from results, so that a page has only measured values.

``docs/results/NAME.json`` has a result's provenance, verdicts and tables, but not its individual values. ``mptcp-bench
report --kept`` makes a page of all these results; a page in docs/ shows only the tables that its reader needs.

In a page in docs/, a table is between ``<!-- table: NAME.KEY -->`` and ``<!-- end -->``. *KEY* is ``aims``, ``claims``
or the key of a table. ``<!-- table: NAME.KEY [COLUMN; COLUMN]: WORDS; WORDS -->`` selects the first column and the
named ones, and the rows whose cells, joined by commas, contain one of the WORDS. For this, an empty first cell repeats
the cell above it, and ``…`` in WORDS matches any text. ``brief`` in place of ``table`` omits intervals and the aims'
bounds and verdicts, and names the file in place of the command. ``<!-- verdicts: NAME, NAME -->`` lists the papers'
claims with their verdicts, without figures. If verdicts were made by an earlier rule than today's, the page explains
below them how the rule differed. ``mptcp-bench report --docs`` writes the pages, and a unit test compares them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import get_args

from mptcp_lab.testbed.services import REPOSITORY

from . import result_file
from .result_file import ExperimentResult, Judgement, ResultError, Table, judge

DOCS = REPOSITORY / "docs"
KEPT = "results"
"""Directory of the kept results within docs/."""
BEGIN = re.compile(
    r"<!-- (?:(?P<form>table|brief): (?P<name>[\w-]+)\.(?P<key>[\w-]+)(?: \[(?P<columns>[^]]+)\])?(?:: (?P<words>.+?))?"
    r"|verdicts: (?P<names>[\w-]+(?:, [\w-]+)*)) -->"
)
END = "<!-- end -->"
GENERATED = re.compile(
    rf"^(?P<begin><!-- (?:table|brief|verdicts)\b.*)(?:\n(?!<!-- ).*)*(?P<end>\n{END}$)?", re.MULTILINE
)
INTERVAL = re.compile(r" \([^()]+ to [^()]+\)| ± [^ ]+")
COMMIT = re.compile("[0-9a-f]{40}")
"""The ``commit`` of a run from a working copy without changes."""
VERDICTS = {"met": "met", "missed": "**missed**", "no aim": ""}
"""Texts of the verdicts on aims."""


def reasons_against_keeping(found: ExperimentResult) -> list[str]:
    """Return the reasons why no page may show *found*."""
    reasons = []
    if found.quick:
        reasons.append("it was run with --quick")
    if not COMMIT.fullmatch(found.provenance.commit):
        reasons.append(f"commit {found.provenance.commit} is not clean; commit all changes and run it again")
    for aim in found.aims:
        verdict = judge(inf if aim.value is None else aim.value, aim.least, aim.most)
        if aim.verdict not in (verdict, *get_args(Judgement)):
            reasons.append(f"{aim}: the verdict is {aim.verdict!r}, but the bounds give {verdict!r}")
    return reasons


def keep_result(name: str, results: Path, docs: Path = DOCS) -> None:
    """Keep the result *name* from below *results*. Raises ResultError if it is missing or may not be kept."""
    source = results / name / result_file.FILE
    found = replace(result_file.load(source), data={}, pictures=())
    if reasons := reasons_against_keeping(found):
        raise ResultError("\n".join(f"{source}: {reason}" for reason in reasons))
    result_file.write(found, docs / KEPT / f"{name}.json")


def read_kept(docs: Path = DOCS) -> dict[str, ExperimentResult]:
    """Return all kept results by name. Raises ResultError for a file that is not a result."""
    return {source.stem: result_file.load(source) for source in sorted((docs / KEPT).glob("*.json"))}


def page_texts(docs: Path = DOCS) -> dict[Path, str]:
    """Return each page's text with the kept results. Raises ResultError if a page names a missing result or table."""
    kept = read_kept(docs)
    return {page: with_tables(page.read_text(), kept, page.name) for page in sorted(docs.glob("*.md"))}


def write_pages(docs: Path = DOCS) -> list[Path]:
    """Write the pages whose tables differ from the results. Return their paths. Raises ResultError."""
    stale = {page: text for page, text in page_texts(docs).items() if page.read_text() != text}
    for page, text in stale.items():
        page.write_text(text)
    return list(stale)


def with_tables(text: str, kept: Mapping[str, ExperimentResult], page: str) -> str:
    """Return *text* of *page* with the tables of *kept*. ResultErrors name page and line."""

    def replacement(match: re.Match[str]) -> str:
        line = match["begin"]
        begin, number = BEGIN.fullmatch(line), text.count("\n", 0, match.start()) + 1
        try:
            if begin is None or match["end"] is None:
                forms = "<!-- table: NAME.KEY --> or <!-- verdicts: NAME, NAME -->"
                raise ResultError(f"{line}: expected {forms}, the table, and {END}")
            lines = _verdict_lines(begin["names"], kept) if begin["names"] else _table_lines(begin, kept)
            return "\n".join((line, "", *lines, "", END))
        except ResultError as error:
            raise ResultError(f"{page}:{number}: {error}") from None

    return GENERATED.sub(replacement, text)


def _result_of(name: str, kept: Mapping[str, ExperimentResult]) -> ExperimentResult:
    if name not in kept:
        raise ResultError(f"no result {name!r} is kept; there are {', '.join(kept) or 'none'}")
    return kept[name]


def _table_lines(begin: re.Match[str], kept: Mapping[str, ExperimentResult]) -> Iterator[str]:
    name, key, brief = begin["name"], begin["key"], begin["form"] == "brief"
    found = _result_of(name, kept)
    table = _select_columns(_select_rows(_table_of(found, key), begin["words"]), begin["columns"])
    yield from markdown(_shorten(table) if brief else table)
    yield ""
    yield f"`docs/{KEPT}/{name}.json`, {found.provenance.started[:10]}." if brief else origin(found)
    if key in ("aims", "claims") and found.earlier_rule:
        yield ""
        yield f"Judged by an earlier rule: {found.earlier_rule}."


def _verdict_lines(names: str, kept: Mapping[str, ExperimentResult]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    days = set()
    for name in names.split(", "):
        found = _result_of(name, kept)
        days.add(found.provenance.started[:10])
        claims = _table_of(found, "claims").rows
        rows += ((f"`{name}`" * (number == 0), says, verdict) for number, (says, _, verdict) in enumerate(claims))
    yield from markdown(Table("verdicts", "", ("", "the paper says", "verdict"), tuple(rows)))
    yield ""
    counts = Counter(verdict for *_, verdict in rows)
    summary = ", ".join(f"{counts[verdict]} × {verdict}" for verdict in get_args(Judgement) if counts[verdict])
    yield f"{len(rows)} claims: {summary}. Measured {' to '.join(sorted({min(days), max(days)}))}."


def _table_of(found: ExperimentResult, key: str) -> Table:
    tables = {table.key: table for table in found.tables}
    if claims := [each for each in found.aims if each.verdict in get_args(Judgement)]:
        rows = tuple((each.what, each.measured_text, str(each.verdict)) for each in claims)
        tables["claims"] = Table("claims", "", ("the paper says", "measured", "verdict"), rows)
    if aims := [each for each in found.aims if each.verdict in VERDICTS]:
        cells = tuple((each.what, each.measured, each.wanted, VERDICTS[each.verdict]) for each in aims)
        tables["aims"] = Table("aims", "", ("", "measured", "wanted", ""), cells)
    if key not in tables:
        raise ResultError(f"{found.experiment} has no table {key!r}; there are {', '.join(tables) or 'none'}")
    return tables[key]


def _select_rows(table: Table, words: str | None) -> Table:
    """Return the rows of *table* that contain one of the *words*. Raises ResultError if a word matches no row."""
    if not words:
        return table
    rows, selected = list(_repeat_labels(table.rows)), set()
    for each in words.split("; "):
        pattern = re.compile(".*".join(map(re.escape, each.split("…"))))
        matches = {row for row in rows if pattern.search(", ".join(row))}
        if not matches:
            raise ResultError(f"no row of {table.key} contains {each!r}")
        selected |= matches
    return replace(table, rows=tuple(row for row in rows if row in selected))


def _repeat_labels(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield *rows*; their empty first cells repeat the cells above."""
    above: tuple[str, ...] = ()
    for row in rows:
        empty = next((index for index, cell in enumerate(row) if cell), len(row))
        above = (*above[:empty], *row[empty:])
        yield above


def _select_columns(table: Table, columns: str | None) -> Table:
    if not columns:
        return table
    names = columns.split("; ")
    if unknown := [each for each in names if each not in table.head]:
        raise ResultError(f"{table.key} has no column {unknown[0]!r}; there are {'; '.join(table.head)}")
    indexes = [0, *map(table.head.index, names)]
    head, *rows = (tuple(row[index] for index in indexes) for row in (table.head, *table.rows))
    return replace(table, head=head, rows=tuple(rows))


def _shorten(table: Table) -> Table:
    """Return *table* without intervals; a table of aims also without bounds and verdicts."""
    head, *rows = (row[:2] if table.key == "aims" else row for row in (table.head, *table.rows))
    rows = [(row[0], *(INTERVAL.sub("", cell) for cell in row[1:])) for row in rows]
    return replace(table, head=head, rows=tuple(rows))


def markdown(table: Table) -> Iterator[str]:
    """Yield the lines of *table* in Markdown."""
    for row in (table.head, ("---",) * len(table.head), *table.rows):
        yield "|" + "|".join(f" {_cell(cell)} " if cell else " " for cell in row) + "|"


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")


def origin(found: ExperimentResult) -> str:
    """Return a line with the origin of a table's figures: command, date, kernel, processors."""
    run = found.provenance
    processors = "1 processor" if run.processors == 1 else f"{run.processors} processors"
    return f"`{run.command}`, {run.started[:10]}, Linux {run.kernel.partition('-')[0]}, {processors}."
