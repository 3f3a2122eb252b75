"""Short figures for tables: ``28.4M``, ``12m``, ``3%``. None is ``-``."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIMES: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))


def amount(value: float | None) -> str:
    """Return a rate (bits/s) or size (bytes) in at most five characters, by powers of 1000."""
    if value is None:
        return "-"
    for factor, unit in _UNITS:
        if value >= factor * 0.9995:
            number = value / factor
            decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
            text = f"{number:.{decimals}f}"
            return (text.rstrip("0").rstrip(".") if "." in text else text) + unit
    return f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """Return a duration in at most four characters."""
    if seconds is None:
        return "-"
    for factor, unit in _TIMES:
        if seconds >= factor:
            return f"{min(999, int(seconds / factor))}{unit}"
    return f"{max(0, int(seconds))}s"


def milliseconds(seconds: float | None) -> str:
    """Return a round-trip time in at most five characters."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    if value >= 9_999.5:
        return f"{min(9999, seconds):.0f}s"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def percent(share: float | None) -> str:
    """Return a share, 0 to 1, in at most four characters."""
    if share is None:
        return "-"
    value = share * 100
    return f"{value:.1f}%" if 0 < value < 9.95 else f"{value:.0f}%"


def cut(text: str, width: int) -> str:
    """Return *text* in at most *width* characters; an ellipsis replaces a cut end."""
    return text if len(text) <= width else text[: width - 1] + "…" if width > 0 else ""


def cut_inside(text: str, width: int) -> str:
    """Return an address with port in at most *width* characters; keep both ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[-tail:]}" if width > 3 else cut(text, width)
