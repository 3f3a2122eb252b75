# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables of an experiment, and means with confidence intervals for them. Pure.

The time of an event that did not happen is infinity. No mean includes it, and it meets no aim.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from rich import box
from rich.table import Table

from ..statistics import mean_interval
from .findings import Aim

SYMBOLS: dict[str, str] = {"met": "[green]✓[/]", "missed": "[red]✗[/]", "no aim": "[dim]no aim[/]"}


def mean(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    """Return the mean with its interval, or how many values are infinite. Raises ValueError for no values."""
    infinite = sum(not math.isfinite(value) for value in values)
    if infinite:
        return "never" if infinite == len(values) else f"never in {infinite} of {len(values)}"
    interval = mean_interval(values)
    half = "" if interval.half is None else f" ± {interval.half * scale:.{digits}f}"
    return f"{interval.mean * scale:.{digits}f}{half}"


def new_table(title: str, columns: Sequence[str], left: Container[str], wrapped: Container[str] = ()) -> Table:
    """Return an empty table. Columns in *left* contain words, those in *wrapped* wrap; the others contain numbers."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=column not in wrapped)
    return table


def aims_table(aims: Sequence[Aim]) -> Table:
    table = new_table("Aims", ("quantity", "measured", "required", ""), ("quantity", ""), ("quantity",))
    for aim in aims:
        table.add_row(aim.what, aim.measured, aim.wanted, SYMBOLS[aim.verdict])
    return table


def coloured(text: str, aim: Aim | None) -> str:
    """Return *text* in the colour of the verdict of *aim*, as rich's markup."""
    if aim is None or not text:
        return text
    return f"[green]{text}[/]" if aim.met else f"[red]{text}[/]"
