# SPDX-License-Identifier: GPL-2.0-or-later
"""Quantities as text for people: ``94.3 Mbit/s``, ``8.51 ms``, ``0.48 MB``, with decimal prefixes and three digits."""

from __future__ import annotations

from math import floor, log10

_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "bit/s": ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1, "bit/s")),
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "B": ((1e6, "MB"), (1e3, "kB"), (1, "B")),
    "ratio": ((1e-9, "%"),),
}
"""By SI unit, the units to show, each with the minimum value for which it is used."""
_OF_NOTHING = {"bit/s": "Mbit/s", "s": "s", "B": "kB", "ratio": "%"}
FACTORS = {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3, "ms": 1e-3, "µs": 1e-6, "MB": 1e6, "kB": 1e3, "%": 0.01}
"""Value of each shown unit in SI units, if it is not 1."""


def scale(value: float, unit: str) -> tuple[float, str]:
    """Return a unit in which *value* is easy to read, after the divisor that converts to it."""
    steps = _SCALES.get(unit)
    if steps is None:
        return 1.0, "" if unit == "count" else unit
    name = next((name for least, name in steps if abs(value) >= least), steps[-1][1]) if value else _OF_NOTHING[unit]
    return FACTORS.get(name, 1.0), name


def decimals(value: float, digits: int = 3) -> int:
    """Return the number of decimals that show *value* with *digits* digits, but at most three."""
    return 0 if value == 0 else max(0, min(3, digits - 1 - floor(log10(abs(value)))))


def number(value: float, unit: str, half: float | None = None) -> tuple[str, str]:
    """Return *value* as text, with ± *half* if given, and its unit."""
    factor, name = scale(value, unit)
    whole = unit == "count" and value == round(value) and half is None
    places = 0 if whole else decimals(value / factor)
    text = f"{value / factor:.{places}f}"
    if half is not None:
        # Show more decimals if needed, because a narrow interval rounded to 0 would look like none.
        places = max(places, decimals(half / factor, 1))
        text = f"{value / factor:.{places}f} ± {half / factor:.{places}f}"
    return text, name


def show(value: float, unit: str, half: float | None = None) -> str:
    """Return number and unit of :func:`number` as one string."""
    text, name = number(value, unit, half)
    return f"{text} {name}".rstrip()
