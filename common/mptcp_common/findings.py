# SPDX-License-Identifier: GPL-2.0-or-later
"""The findings of a ``doctor``, and their printing: a table on a terminal, aligned lines elsewhere, or JSON."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass


class Status(enum.Enum):
    OK = "ok"
    WARN = "warn"
    """The checked function works, but less well, or not in every case."""
    FAIL = "fail"
    """The checked function does not work."""
    UNSEEN = "unseen"
    """The user has no permission to check this."""


_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red", Status.UNSEEN: "dim"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. With WARN or FAIL, it also has the reason why it matters (``why``), and a command that corrects it
    (``remedy``)."""

    check: str
    status: Status
    text: str
    why: str = ""
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Status.OK, text)


def warn(check: str, text: str, why: str, remedy: str) -> Finding:
    return Finding(check, Status.WARN, text, why, remedy)


def fail(check: str, text: str, why: str, remedy: str) -> Finding:
    return Finding(check, Status.FAIL, text, why, remedy)


def unseen(check: str, subject: str) -> Finding:
    """Return the finding that *subject* was not checked, because only root can check it."""
    return Finding(check, Status.UNSEEN, f"unknown without root: {subject}")


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> int:
    """Print the findings; return the exit status."""
    if as_json:
        print(json_text(findings))
    elif sys.stdout.isatty():
        _print_table(findings)
    else:
        print("\n".join(lines(findings)))
    return exit_status(findings)


def exit_status(findings: Sequence[Finding]) -> int:
    return int(any(finding.status is Status.FAIL for finding in findings))


def json_text(findings: Sequence[Finding]) -> str:
    return json.dumps([{**asdict(finding), "status": finding.status.value} for finding in findings], indent=2)


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield aligned plain text, with reason and remedy below each finding that is not OK."""
    status_width = max((len(finding.status.value) for finding in findings), default=0)
    status_width = max(status_width, len(Status.FAIL.value))
    check_width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        yield f"{finding.status.value:<{status_width}}  {finding.check:<{check_width}}  {finding.text}"
        indent = " " * (status_width + check_width + 4)
        if finding.why:
            yield f"{indent}why: {finding.why}"
        if finding.remedy:
            yield f"{indent}do:  {finding.remedy}"
    yield summary(findings)


def summary(findings: Sequence[Finding]) -> str:
    counts = {status: sum(finding.status is status for finding in findings) for status in Status}
    if counts[Status.FAIL]:
        verdict = "this host is not ready"
    elif counts[Status.WARN]:
        verdict = "this host is ready, with reservations"
    else:
        verdict = "this host is ready"
    counts_text = f"{counts[Status.OK]} ok, {counts[Status.WARN]} warn, {counts[Status.FAIL]} fail"
    if not counts[Status.UNSEEN]:
        return f"{verdict}: {counts_text}"
    return f"{verdict}, as far as it can be checked without root: {counts_text}, {counts[Status.UNSEEN]} unseen"


def _print_table(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        text = Text(finding.text)
        if finding.why:
            text.append(f"\n{finding.why}", style="dim")
        if finding.remedy:
            text.append(f"\n{finding.remedy}", style="cyan")
        table.add_row(Text(finding.status.value, style=_COLOURS[finding.status]), finding.check, text)
    console = Console()
    console.print(table)
    console.print(summary(findings))
