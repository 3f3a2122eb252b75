# SPDX-License-Identifier: GPL-2.0-or-later
"""Generate the tables in docs/ from results, so that a page has only measured values.

``docs/results/NAME.json`` keeps a result's provenance, verdicts and tables, but not its single values. ``mptcp-bench
report --kept`` makes a page of all kept results; a page in docs/ shows only the tables that its reader needs.

In a page in docs/, a table is between ``<!-- table: NAME.KEY -->`` and ``<!-- end -->``. *KEY* is ``aims``, ``claims``
or the key of a table. ``<!-- table: NAME.KEY [COLUMN; COLUMN]: WORDS; WORDS -->`` selects the first column and the
named ones, and the rows whose cells, joined by commas, contain one of the WORDS. For this, an empty first cell repeats
the cell above it, and ``…`` in WORDS matches any text. ``brief`` in place of ``table`` omits intervals and the aims'
bounds and verdicts, and names the file in place of the command. ``<!-- verdicts: NAME, NAME -->`` lists the papers'
claims with their verdicts, without figures. If verdicts were made by an earlier rule than today's, the page explains
below them how the rule differed (``earlier_rules``). ``mptcp-bench report --docs`` writes the pages, and a unit test
compares them.
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
from .earlier_rules import earlier_rule
from .result_file import ExperimentResult, Judgement, ResultError, Table, judge

DOCS = REPOSITORY / "docs"
KEPT = "results"
"""Directory of the kept results within docs/."""
BEGIN = re.compile(
    r"<!-- (?:(?P<form>table|brief): (?P<name>[\w-]+)\.(?P<key>[\w-]+)(?: \[(?P<columns>[^]]+)\])?(?:: (?P<words>.+?))?"
    r"|verdicts: (?P<names>[\w-]+(?:, [\w-]+)*)) -->"
)
END = "<!-- end -->"
OTHERS = ("<!-- keys", "<!-- metrics")
"""First words of tables that are generated from the code, not from results."""
MARK = ("<!-- table", "<!-- brief", "<!-- verdicts", END)
INTERVAL = re.compile(r" \([^()]+ to [^()]+\)| ± [^ ]+")
COMMIT = re.compile("[0-9a-f]{40}")
"""``provenance`` of a run from a clean working copy."""
VERDICTS = ("aims", "claims")
SIGNS = {"met": "met", "missed": "**missed**", "no aim": ""}


def unfit(found: ExperimentResult) -> list[str]:
    """Return the reasons why no page may show *found*; empty if a page may show it."""
    reasons = []
    if not found.complete:
        reasons.append("it was interrupted")
    if found.quick:
        reasons.append("it was run with --quick")
    if not COMMIT.fullmatch(found.provenance.commit):
        reasons.append(f"commit {found.provenance.commit}: the working copy was no commit; commit, then run it again")
    for aim in found.aims:
        if aim.verdict in get_args(Judgement):
            continue
        verdict = judge(inf if aim.value is None else aim.value, aim.least, aim.most)
        if aim.verdict != verdict:
            wanted = aim.wanted or "nothing"
            reasons.append(f"{aim.what}: {aim.measured}, wanted {wanted}, is {verdict!r} and not {aim.verdict!r}")
    return reasons


def keep(name: str, results: Path, docs: Path = DOCS) -> None:
    """Keep the result *name* from below *results*. Raises ResultError if it is missing or :func:`unfit`."""
    source = results / name / result_file.FILE
    found = replace(result_file.load(source), data={}, pictures=())
    if reasons := unfit(found):
        raise ResultError("\n".join(f"{source}: {reason}" for reason in reasons))
    result_file.write(found, docs / KEPT / f"{name}.json")


def read_kept(docs: Path = DOCS) -> dict[str, ExperimentResult]:
    """Return all kept results by name. Raises ResultError for a file that is not a result."""
    return {source.stem: result_file.load(source) for source in sorted((docs / KEPT).glob("*.json"))}


def pages(docs: Path = DOCS) -> dict[Path, str]:
    """Return each page's text with the kept results. Raises ResultError if a page names a missing result or table."""
    kept = read_kept(docs)
    return {page: generated(page.read_text(), kept, page.name) for page in sorted(docs.glob("*.md"))}


def write_pages(docs: Path = DOCS) -> list[Path]:
    """Write the pages that differ from the results, and return their paths; raises ResultError as :func:`pages`."""
    stale = [(page, text) for page, text in pages(docs).items() if page.read_text() != text]
    for page, text in stale:
        page.write_text(text)
    return [page for page, _ in stale]


def generated(text: str, kept: Mapping[str, ExperimentResult], page: str) -> str:
    """Return *text* of *page* with each table as in *kept*. Raises ResultError: page, line, and the known names."""
    return "\n".join(_lines(text, kept, page))


def _lines(text: str, kept: Mapping[str, ExperimentResult], page: str) -> Iterator[str]:
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        yield line
        if line.startswith(OTHERS):
            for _, kept_line in lines:
                yield kept_line
                if kept_line == END:
                    break
            continue
        begin = BEGIN.fullmatch(line)
        if begin is None:
            if line.startswith(MARK):
                forms = "<!-- table: NAME.KEY -->, <!-- verdicts: NAME, NAME -->"
                raise ResultError(f"{page}:{number}: {line}: there should be {forms} and {END} alone")
            continue
        where = f"{page}:{number}"
        yield ""
        yield from _verdicts(begin, kept, where) if begin["names"] else _shown(begin, kept, where)
        yield ""
        for _, old in lines:
            if BEGIN.fullmatch(old):
                raise ResultError(f"{where}: {line}: no {END} before the next table")
            if old == END:
                yield END
                break
        else:
            raise ResultError(f"{where}: {line}: no {END} behind it")


def _of(name: str, kept: Mapping[str, ExperimentResult], where: str) -> ExperimentResult:
    if name not in kept:
        raise ResultError(f"{where}: no result {name!r} is kept; there are {', '.join(kept) or 'none'}")
    return kept[name]


def _shown(begin: re.Match[str], kept: Mapping[str, ExperimentResult], where: str) -> Iterator[str]:
    name = begin["name"]
    found = _of(name, kept, where)
    table = _rows(_table(found, begin["key"], where), begin["words"], where)
    table = _columns(table, begin["columns"], where)
    brief = begin["form"] == "brief"
    yield from markdown(_brief(table, begin["key"]) if brief else table)
    yield ""
    yield f"`docs/{KEPT}/{name}.json`, {found.provenance.started[:10]}." if brief else origin(found)
    if begin["key"] in VERDICTS and (rule := earlier_rule(name, found)):
        yield ""
        yield f"Judged by an earlier rule: {rule}."


def _verdicts(begin: re.Match[str], kept: Mapping[str, ExperimentResult], where: str) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    days = set()
    for name in begin["names"].split(", "):
        found = _of(name, kept, where)
        days.add(found.provenance.started[:10])
        claims = _table(found, "claims", where).rows
        rows += ((f"`{name}`" * (number == 0), says, verdict) for number, (says, _, verdict) in enumerate(claims))
    yield from markdown(Table("verdicts", "", ("", "the paper says", "verdict"), tuple(rows)))
    yield ""
    of = Counter(verdict for *_, verdict in rows)
    counts = ", ".join(f"{of[verdict]} × {verdict}" for verdict in get_args(Judgement) if of[verdict])
    yield f"{len(rows)} claims: {counts}. Measured {' to '.join(sorted({min(days), max(days)}))}."


def _table(found: ExperimentResult, key: str, where: str) -> Table:
    tables = {table.key: table for table in found.tables}
    claims = [each for each in found.aims if each.verdict in get_args(Judgement)]
    if claims:
        said = tuple((each.what, each.said, each.verdict) for each in claims)
        tables["claims"] = Table("claims", "", ("the paper says", "measured", "verdict"), said)
    if aims := [each for each in found.aims if each not in claims]:
        rows = tuple((each.what, each.measured, each.wanted, SIGNS[each.verdict]) for each in aims)
        tables["aims"] = Table("aims", "", ("", "measured", "wanted", ""), rows)
    if key not in tables:
        raise ResultError(f"{where}: {found.experiment} has no table {key!r}; there are {', '.join(tables) or 'none'}")
    return tables[key]


def _rows(table: Table, words: str | None, where: str) -> Table:
    """Return the rows of *table* that contain one of the *words*. Raises ResultError if a word matches no row."""
    if not words:
        return table
    rows = tuple(_labelled(table.rows))
    wanted = {row for each in words.split("; ") for row in _with(each, rows, f"{where}: no row of {table.key}")}
    return replace(table, rows=tuple(row for row in rows if row in wanted))


def _with(words: str, rows: Iterable[tuple[str, ...]], complaint: str) -> list[tuple[str, ...]]:
    wanted = re.compile(".*".join(map(re.escape, words.split("…"))))
    if found := [row for row in rows if wanted.search(", ".join(row))]:
        return found
    raise ResultError(f"{complaint} has {words!r} in it")


def _columns(table: Table, columns: str | None, where: str) -> Table:
    if not columns:
        return table
    wanted = columns.split("; ")
    if unknown := [each for each in wanted if each not in table.head]:
        raise ResultError(f"{where}: {table.key} has no column {unknown[0]!r}; there are {'; '.join(table.head)}")
    places = [0, *map(table.head.index, wanted)]
    head, *rows = (tuple(row[place] for place in places) for row in (table.head, *table.rows))
    return replace(table, head=head, rows=tuple(rows))


def _brief(table: Table, key: str) -> Table:
    """Return *table* without intervals; a table of aims also without bounds and verdicts."""
    head, *rows = (row[:2] if key == "aims" else row for row in (table.head, *table.rows))
    rows = [(row[0], *(INTERVAL.sub("", cell) for cell in row[1:])) for row in rows]
    return replace(table, head=head, rows=tuple(rows))


def _labelled(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    above: tuple[str, ...] = ()
    for row in rows:
        empty = next((place for place, cell in enumerate(row) if cell), len(row))
        above = (*above[:empty], *row[empty:])
        yield above


def markdown(table: Table) -> Iterator[str]:
    """Yield the lines of *table* in Markdown."""
    for row in (table.head, ("---",) * len(table.head), *table.rows):
        yield "|" + "|".join(f" {_cell(cell)} " if cell else " " for cell in row) + "|"


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")


def origin(found: ExperimentResult) -> str:
    """Return a line with the origin of a table's figures: command, date, kernel, processors."""
    here = found.provenance
    processors = "1 processor" if here.processors == 1 else f"{here.processors} processors"
    return f"`{here.command}`, {here.started[:10]}, Linux {here.kernel.partition('-')[0]}, {processors}."
