"""The tables in docs/ that are generated from results, so that a page cannot say what was not measured.

``docs/results/NAME.json`` keeps of a result what pages show: provenance, verdicts and tables, without the single
values. In a page a table stands between ``<!-- table: NAME.KEY -->`` and ``<!-- end -->``; *KEY* is ``aims``,
``claims`` or the key of a table. ``<!-- table: NAME.KEY: WORDS -->`` has only the rows with these words in them; a row
whose first cell is empty has that of the row above. Beneath verdicts that today's judge would not make all of, the page
says in what they differ (``earlier_rules``).
``mptcp-bench report --docs`` writes the pages, and a unit test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from math import inf
from pathlib import Path

from mptcp_lab.testbed.services import REPOSITORY

from . import result_file
from .earlier_rules import earlier_rule
from .paper import chapter as paper_chapter
from .paper.results import PaperResult
from .report import load
from .result_file import ExperimentResult, JudgedAim, Result, ResultError, Table, judge

DOCS = REPOSITORY / "docs"
KEPT = "results"
"""Directory within."""
BEGIN = re.compile(r"<!-- table: (?P<name>[\w-]+)\.(?P<key>[\w-]+)(?:: (?P<words>.+?))? -->")
END = "<!-- end -->"
COMMIT = re.compile("[0-9a-f]{40}")
"""What ``provenance`` says of a working copy that is as it was committed."""
VERDICTS = ("aims", "claims")
"""Keys of the tables that say more than what was measured."""
SIGNS = {"met": "met", "missed": "**missed**", "no aim": ""}


def summary(found: Result) -> ExperimentResult:
    """Return what the documentation keeps of *found*."""
    if isinstance(found, ExperimentResult):
        return replace(found, data={}, pictures=())
    assert isinstance(found, PaperResult)
    rows = tuple((each.paper, each.measured, each.verdict) for each in found.claims)
    claims = Table("claims", "", ("the paper says", "measured", "verdict"), rows)
    common = {each.name: getattr(found, each.name) for each in fields(Result)}
    return ExperimentResult(**common, tables=(claims, *paper_chapter.chapter(found).tables))


def unfit(found: ExperimentResult) -> list[str]:
    """Return why no page may show *found*, one reason each; nothing where one may."""
    reasons = []
    if not found.complete:
        reasons.append("it was interrupted")
    if found.quick:
        reasons.append("it was run with --quick")
    if not COMMIT.fullmatch(found.provenance.commit):
        reasons.append(f"commit {found.provenance.commit}: the working copy was no commit; commit, then run it again")
    for aim in found.aims:
        verdict = judge(inf if aim.value is None else aim.value, aim.least, aim.most)
        if aim.verdict != verdict:
            wanted = aim.wanted or "nothing"
            reasons.append(f"{aim.what}: {aim.measured}, wanted {wanted}, is {verdict!r} and not {aim.verdict!r}")
    return reasons


def keep(name: str, results: Path, docs: Path = DOCS) -> None:
    """Keep the result *name* below *results* for the documentation.

    :raises ResultError: it is not there, is no result, or is :func:`unfit`, with each reason in a line
    """
    source = results / name / result_file.FILE
    found = summary(load(source))
    if reasons := unfit(found):
        raise ResultError("\n".join(f"{source}: {reason}" for reason in reasons))
    result_file.write(found, docs / KEPT / f"{name}.json")


def read_kept(docs: Path = DOCS) -> dict[str, ExperimentResult]:
    """Return all results that are kept, by name. Raises ResultError for a file that is none."""
    return {source.stem: result_file.load(source, ExperimentResult) for source in sorted((docs / KEPT).glob("*.json"))}


def pages(docs: Path = DOCS) -> dict[Path, str]:
    """Return every page as the results that are kept have it.

    :raises ResultError: a page names a result or a table that there is not, or no page shows a result that is kept
    """
    kept = read_kept(docs)
    found, shown = {}, set()
    for page in sorted(docs.glob("*.md")):
        text = page.read_text()
        shown |= {begin["name"] for begin in BEGIN.finditer(text)}
        found[page] = generated(text, kept, page.name)
    unused = ", ".join(sorted(kept.keys() - shown))
    if unused:
        raise ResultError(f"{docs / KEPT}: no page shows {unused}")
    return found


def write_pages(docs: Path = DOCS) -> list[Path]:
    """Write the pages that are not as the results have it, and return them; ResultError as :func:`pages`."""
    stale = [(page, text) for page, text in pages(docs).items() if page.read_text() != text]
    for page, text in stale:
        page.write_text(text)
    return [page for page, _ in stale]


def generated(text: str, kept: Mapping[str, ExperimentResult], page: str) -> str:
    """Return *text*, of the *page* of that name, with every table as *kept* has it.

    :raises ResultError: page, line, and what there is
    """
    return "\n".join(_lines(text, kept, page))


def _lines(text: str, kept: Mapping[str, ExperimentResult], page: str) -> Iterator[str]:
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        yield line
        begin = BEGIN.fullmatch(line)
        if begin is None:
            if line.startswith("<!-- table") or line == END:
                raise ResultError(f"{page}:{number}: {line}: there should be <!-- table: NAME.KEY --> and {END} alone")
            continue
        name = begin["name"]
        if name not in kept:
            raise ResultError(f"{page}:{number}: no result {name!r} is kept; there are {', '.join(kept) or 'none'}")
        yield ""
        yield from markdown(_table(kept[name], begin["key"], begin["words"] or "", f"{page}:{number}"))
        yield ""
        yield origin(kept[name])
        if begin["key"] in VERDICTS and (rule := earlier_rule(name, kept[name])):
            yield ""
            yield f"Judged by an earlier rule: {rule}."
        yield ""
        for _, old in lines:
            if BEGIN.fullmatch(old):
                raise ResultError(f"{page}:{number}: {line}: no {END} before the next table")
            if old == END:
                yield END
                break
        else:
            raise ResultError(f"{page}:{number}: {line}: no {END} behind it")


def _table(found: ExperimentResult, key: str, words: str, where: str) -> Table:
    tables = {table.key: table for table in found.tables}
    if found.aims:
        tables["aims"] = Table("aims", "", ("", "measured", "wanted", ""), tuple(map(_row, found.aims)))
    if key not in tables:
        raise ResultError(f"{where}: {found.experiment} has no table {key!r}; there are {', '.join(tables) or 'none'}")
    rows = tables[key].rows
    if words:
        rows = tuple(row for row in _labelled(rows) if any(words in cell for cell in row))
    if not rows:
        raise ResultError(f"{where}: no row of {found.experiment}.{key} has {words!r} in it")
    return replace(tables[key], rows=rows)


def _labelled(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    label = ""
    for first, *others in rows:
        label = first or label
        yield (label, *others)


def _row(aim: JudgedAim) -> tuple[str, ...]:
    return aim.what, aim.measured, aim.wanted, SIGNS[aim.verdict]


def markdown(table: Table) -> Iterator[str]:
    """Yield the lines of *table*."""
    for row in (table.head, ("---",) * len(table.head), *table.rows):
        yield "|" + "|".join(f" {_cell(cell)} " if cell else " " for cell in row) + "|"


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")


def origin(found: Result) -> str:
    """Return where a table comes from, in a line."""
    here = found.provenance
    processors = "1 processor" if here.processors == 1 else f"{here.processors} processors"
    return f"`{here.command}`, {here.started[:10]}, Linux {here.kernel.partition('-')[0]}, {processors}."
