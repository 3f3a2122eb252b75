"""Prints the findings: a table on a terminal, aligned lines elsewhere, or JSON. The exit status sums them up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from ..places import Places, Role
from .model import Finding, Status

_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


def examine(
    configuration: Path, places: Places, role: Role, throttler_settings: Path, *, as_json: bool, allow_open: bool
) -> int:
    """Look at the host and print what was found. Return 1 if anything fails, else 0."""
    from .gather import examine_host
    from .gather_relay import examine_relay

    if role is Role.RELAY:
        findings = tuple(examine_relay(configuration, places, allow_open))
    else:
        findings = tuple(examine_host(configuration, places, allow_open, throttler_settings))
    if as_json:
        print(as_text_json(findings))
    elif sys.stdout.isatty():
        _print_table(findings)
    else:
        print("\n".join(lines(findings)))
    return exit_status(findings)


def exit_status(findings: Sequence[Finding]) -> int:
    return int(any(finding.status is Status.FAIL for finding in findings))


def as_text_json(findings: Sequence[Finding]) -> str:
    return json.dumps([{**asdict(finding), "status": finding.status.value} for finding in findings], indent=2)


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield plain text, aligned; reason and remedy below what is not OK."""
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        yield f"{finding.status.value:<4}  {finding.check:<{width}}  {finding.text}"
        indent = " " * (width + 8)
        if finding.why:
            yield f"{indent}why: {finding.why}"
        if finding.remedy:
            yield f"{indent}do:  {finding.remedy}"
    yield summary(findings)


def summary(findings: Sequence[Finding]) -> str:
    count = {status: sum(finding.status is status for finding in findings) for status in Status}
    if count[Status.FAIL]:
        verdict = "this host is not ready"
    elif count[Status.WARN]:
        verdict = "this host is ready, with reservations"
    else:
        verdict = "this host is ready"
    return f"{verdict}: {count[Status.OK]} ok, {count[Status.WARN]} warn, {count[Status.FAIL]} fail"


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
