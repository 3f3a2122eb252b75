# SPDX-License-Identifier: GPL-2.0-or-later
"""Aims of our experiments: a measured value, its accepted range and the verdict, and a table of aims. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from rich import box
from rich.table import Table

from ..result_file import Verdict
from ..statistics import fmean, no_less_than

Aim = Verdict
"""Our experiments' name for a verdict that is decided by bounds."""


def no_less(what: str, sample: Sequence[float], reference: Sequence[float] | float, margin: float) -> Aim:
    """Return the aim that *sample* is no less than *reference*, as :func:`statistics.no_less_than` defines it.

    The aim's value is the lower confidence bound of the mean of *sample*, divided by the reference's mean. This value
    must be at least 1 - *margin*. It is NaN, so that the aim is missed, if there are too few values or the reference
    is 0.
    """
    value = nan
    if sample and reference:
        whole = reference if isinstance(reference, int | float) else fmean(reference)
        low = no_less_than(sample, reference, margin).low
        value = nan if low is None or not whole else 1 - margin + low / whole
    return Aim(f"{what}, lower bound", value, least=1 - margin)


def coloured(text: str, aim: Aim | None) -> str:
    """Return *text* in the colour of the verdict of *aim*, as rich's markup."""
    if aim is None or not text:
        return text
    return f"[green]{text}[/]" if aim.met else f"[red]{text}[/]"


class AimsTable(Table):
    """A table that shows only aims. The result file excludes this table, because the file contains the aims anyway."""


SIGNS: dict[str, str] = {"met": "[green]✓[/]", "missed": "[red]✗[/]", "no aim": "[dim]no aim[/]"}


def aims_table(title: str, aims: Sequence[Aim]) -> AimsTable:
    table = AimsTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("wanted", justify="right", no_wrap=True)
    table.add_column("")
    for aim in aims:
        table.add_row(aim.what, aim.measured, aim.wanted, SIGNS[aim.verdict])
    return table


def missed(aims: Sequence[Aim]) -> tuple[str, ...]:
    """Return the missed aims as text. An experiment fails if it misses an aim."""
    return tuple(str(aim) for aim in aims if aim.verdict == "missed")
