# SPDX-License-Identifier: GPL-2.0-or-later
"""Defines, reads and writes ``results/NAME/result.json``, for the paper's experiments and our own.

Values are in SI units (seconds, bits per second, bytes, shares from 0 to 1), unless an aim names its unit. The JSON
keys are the field names below.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

FILE = "result.json"
EXACT_DIGITS = 17
"""Number of digits that represent a float exactly."""

Scalar = str | int | float | bool | None
AimVerdict = Literal["met", "missed", "no aim"]
Judgement = Literal["holds", "fails", "differs", "not judged"]
"""Verdict on a claim of the paper. ``experiments.claims`` defines each."""


class ResultError(Exception):
    """A result is missing or invalid, or a page in docs/ cannot show it."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The data that are needed to run the experiment again."""

    command: str
    commit: str
    """The commit's hash, with ``-dirty`` if a file differed from it, or ``-broken`` if git cannot tell."""
    kernel: str
    processors: int
    squid: str
    python: str
    seed: int | None
    started: str


_BY_BOUNDS: Any = None
"""Marks a verdict that is computed from the bounds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A measured value, and whether it confirms an aim of ours or a claim of a paper.

    An aim is met if its value is within the bounds; a value without bounds is only shown. ``experiments.claims`` judges
    claims, and describes their measurements in words.
    """

    what: str
    """The aim's name, or the paper's statement in our words."""
    value: float | None
    """The measured value; None, in a file, if no finite value was measured."""
    unit: str = ""
    least: float | None = None
    most: float | None = None
    verdict: AimVerdict | Judgement = _BY_BOUNDS
    """Computed from the bounds, unless it is given: by a result file, or by the function that judges a claim."""
    measured_text: str = ""
    """The measurement in words. Only claims have it."""
    explanation: str = ""
    """If the verdict is ``differs``: the mechanism, as measured. In older result files also, for ``fails``, a likely
    reason."""

    def __post_init__(self) -> None:
        if self.verdict is _BY_BOUNDS:
            object.__setattr__(self, "verdict", judge(self.value, self.least, self.most))

    @property
    def met(self) -> bool:
        """False only if an aim is missed."""
        return self.verdict != "missed"

    @property
    def wanted(self) -> str:
        """The bounds as text; empty if there are none."""
        bounds = (("≥", self.least), ("≤", self.most))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)

    @property
    def measured(self) -> str:
        """The measurement in words, or the value as text."""
        if self.measured_text or self.value is None:
            return self.measured_text or "nothing"
        return number_text(self.value, self.unit, self.least, self.most)

    def __str__(self) -> str:
        return f"{self.what}: {self.measured}, wanted {self.wanted}"


def judge(value: float | None, least: float | None, most: float | None) -> AimVerdict:
    """Return whether *value* is within its bounds. A value that is None or not finite is never within bounds."""
    if least is None and most is None:
        return "no aim"
    if value is None or not math.isfinite(value):
        return "missed"
    return "met" if (least is None or value >= least) and (most is None or value <= most) else "missed"


def number_text(value: float, unit: str, least: float | None = None, most: float | None = None) -> str:
    """Return *value* as text with four digits; with more if rounding would cross one of its bounds."""
    if math.isfinite(value) and value == int(value):
        return f"{value:,.0f}{unit}"
    texts = [f"{value:.{digits}g}" for digits in range(4, EXACT_DIGITS + 1)]
    verdict = judge(value, least, most)
    return next((text for text in texts if judge(float(text), least, most) == verdict), texts[-1]) + unit


@dataclass(frozen=True, slots=True)
class Table:
    """A table with texts in its cells."""

    key: str
    """The name by which a documentation page includes the table."""
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """The result of an experiment, the paper's or ours."""

    provenance: Provenance
    experiment: str
    """The experiment's name on the command line, which is also the name of the result's directory."""
    title: str
    parameters: dict[str, Scalar]
    """The options that were set. Earlier results of the paper's experiments have all of them."""
    seed: int
    quick: bool = False
    """Whether this was a reduced run, which only shows that the experiment works."""
    earlier_rule: str = ""
    """Only in stored results that cannot be judged again because their individual values are lost: how the rule at that
    time differs from the current rule."""
    replacement: str = ""
    """Only in stored results of removed experiments: which experiment measures this now."""
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    """Measurements that failed, and errors that no aim covers."""
    aims: tuple[Verdict, ...] = ()
    """The verdicts on aims, or on the paper's claims."""
    tables: tuple[Table, ...] = ()
    """All tables except the table of the aims."""
    pictures: tuple[str, ...] = ()
    """Names of the picture files in the same directory, without suffixes."""
    data: dict[str, Any] = field(default_factory=dict)
    """All measurements, in the experiment's own form."""


def to_json(result: object) -> str:
    """Return JSON text. NaN and infinity become null, because JSON cannot represent them."""
    # The hook converts numpy's numbers.
    return msgspec.json.format(msgspec.json.encode(result, enc_hook=float), indent=1).decode() + "\n"


def load(source: Path) -> ExperimentResult:
    """Read a result. Raises ResultError, whose text is one line with the file and the mistake."""
    try:
        return msgspec.json.decode(source.read_bytes(), type=ExperimentResult)
    except OSError as error:
        raise ResultError(f"{source}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ResultError(f"{source}: {error}") from None


def prepare(directory: Path) -> None:
    """Create *directory*. Raises OSError if it cannot be written, so that a run fails before it measures anything."""
    directory.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=directory).close()


def write(result: ExperimentResult, target: Path) -> None:
    """Write *result* into *target*. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(to_json(result))
