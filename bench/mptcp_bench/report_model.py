# SPDX-License-Identifier: GPL-2.0-or-later
"""The report's chapter about one experiment, the paper's or ours. Pure."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import asdict, dataclass
from typing import Literal

from .result_file import JudgedClaim, Result, Scalar, Table, Verdict


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture and its text alternative."""

    image: bytes
    alternative: str
    form: Literal["svg+xml", "png"] = "svg+xml"

    @property
    def url(self) -> str:
        """The picture as a data URL, so that the page fetches nothing."""
        return f"data:image/{self.form};base64," + b64encode(self.image).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """The texts, tables and figures about one experiment."""

    result: Result
    label: str
    """``Figure 3``, or the experiment's name on the command line."""
    done: str = ""
    """Text about how many of the planned runs are done."""
    explanation: tuple[str, ...] = ()
    """How the experiment measures, in paragraphs."""
    claims: tuple[JudgedClaim, ...] = ()
    aims: tuple[Verdict, ...] = ()
    figures: tuple[Figure, ...] = ()
    warnings: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    failed: tuple[str, ...] = ()
    """Texts about the runs that are not data points."""
    parameters: tuple[tuple[str, str], ...] = ()

    @property
    def provenance(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, word(value)) for name, value in asdict(self.result.provenance).items())


def word(value: Scalar) -> str:
    """Return a parameter's value as text for people."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else str(value)
