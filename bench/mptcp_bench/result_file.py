# SPDX-License-Identifier: GPL-2.0-or-later
"""``results/NAME/result.json``, of the paper's experiments and of ours: common fields, reading and writing.

No other file is read to report or to judge. Rules: SI units (seconds, bits per second, bytes, shares from 0 to 1)
unless an aim names its unit; the JSON keys are the field names below and of the subclasses; a file is replaced in one
step, so that an interrupted experiment leaves its last complete file.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

FILE = "result.json"
EXACT = 17
"""Digits that represent a float exactly."""

Scalar = str | int | float | bool | None
AimVerdict = Literal["met", "missed", "no aim"]
Judgement = Literal["holds", "fails", "differs", "not judged"]
"""Verdict on a claim of the paper: ``paper.judging`` defines each."""


class ResultError(Exception):
    """A file that is no result, or a result that contradicts itself: a one-line message."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Enough to run the experiment again."""

    command: str
    commit: str
    """With ``-dirty`` if the working copy differed from it, ``-unknown`` if git failed."""
    kernel: str
    processors: int
    squid: str
    python: str
    seed: int | None
    started: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Common fields of every experiment's result."""

    provenance: Provenance
    experiment: str
    """Name of the command and of the directory."""
    title: str
    parameters: dict[str, Scalar]
    """All parameters of the paper's experiments; of ours, those that were set."""
    seed: int
    complete: bool
    """False while it runs, and if it was interrupted."""
    quick: bool = False
    """Reduced run, to see that it works."""
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    """What should have been measured and was not, or was wrong without an aim that says so."""


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim of the paper beside what was measured."""

    id: str
    paper: str
    """The paper's statement, in our words."""
    measured: str
    verdict: Judgement
    why: str = ""
    """For ``differs``: the measured mechanism; for ``fails``: the likely but unmeasured one, if any."""


@dataclass(frozen=True, slots=True)
class JudgedAim:
    """A measured value, the range that it should be in, and whether it is."""

    what: str
    value: float | None
    """None if nothing finite was measured."""
    unit: str
    least: float | None
    most: float | None
    verdict: AimVerdict

    @property
    def wanted(self) -> str:
        return bounds(self.least, self.most)

    @property
    def measured(self) -> str:
        return "nothing" if self.value is None else shown(self.value, self.unit, self.least, self.most)


def judge(value: float, least: float | None, most: float | None) -> AimVerdict:
    """Return whether *value* is within its bounds; a value that is not finite never is."""
    if least is None and most is None:
        return "no aim"
    met = math.isfinite(value) and (least is None or value >= least) and (most is None or value <= most)
    return "met" if met else "missed"


def bounds(least: float | None, most: float | None) -> str:
    """Return the bounds as signs and numbers; empty for none."""
    return " and ".join(f"{sign} {bound:g}" for sign, bound in (("≥", least), ("≤", most)) if bound is not None)


def shown(value: float, unit: str, least: float | None = None, most: float | None = None, *, digits: int = 4) -> str:
    """Return *value* for people, whole or to *digits* digits; to more if rounding would cross one of its bounds."""
    if math.isfinite(value) and value == int(value):
        return f"{value:,.0f}{unit}"
    texts = (f"{value:.{number}g}" for number in range(digits, EXACT))
    verdict = judge(value, least, most)
    text = next((each for each in texts if judge(float(each), least, most) == verdict), f"{value:.{EXACT}g}")
    return text + unit


@dataclass(frozen=True, slots=True)
class Table:
    """Words in rows and columns."""

    key: str
    """Name by which a documentation page includes the table."""
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult(Result):
    """One of our experiments."""

    aims: tuple[JudgedAim, ...] = ()
    tables: tuple[Table, ...] = ()
    """Besides the aims."""
    pictures: tuple[str, ...] = ()
    """Names of the files beside this one, without suffixes."""
    data: dict[str, Any] = field(default_factory=dict)
    """All that was measured, in the experiment's own form."""


D = TypeVar("D", bound=Result)


def finite(value: Any) -> Any:
    """Return *value* as JSON can represent it and read it back: lists for tuples, null for infinity and NaN."""
    if isinstance(value, dict):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(result: Result) -> str:
    """Return *result* as JSON text. Raises ResultError for NaN or infinity, which JSON lacks and nothing measures."""
    try:
        return json.dumps(asdict(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError as error:
        raise ResultError(f"{result.experiment}: a number that is not finite cannot be written ({error})") from None


def from_json(text: str | bytes, name: str, kind: type[D]) -> D:
    """Return the result of *kind* in *text*. Raises ResultError, one line: *name*, key, value, what is allowed."""
    from pydantic import TypeAdapter, ValidationError

    def refuse(constant: str) -> None:
        raise ResultError(f"{name}: {constant} is no number that was measured")

    # Python's JSON and pydantic accept NaN and infinity; everything after this counts on finite numbers.
    with suppress(ValueError):
        json.loads(text, parse_constant=refuse)
    try:
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        key = ".".join(map(str, first["loc"]))
        given = repr(first["input"])
        value = f" {given}" if key and first["type"] != "missing" and len(given) < 60 else ""
        more = f" (and {len(others)} more)" if others else ""
        message = first["msg"].removeprefix("Value error, ")
        raise ResultError(f"{name}: {key + value + ': ' if key else ''}{message}{more}") from None


def prepare(directory: Path) -> None:
    """Make *directory*; raise OSError if it cannot be written, before anything is measured."""
    directory.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=directory).close()


def write(result: Result, target: Path) -> None:
    """Replace *target* by *result* in one step. Raises ResultError if a number is not finite, OSError."""
    text = to_json(result)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(handle, "w") as file:
            # mkstemp's 0600 would hide the result of a run as root from the user.
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_bytes(source: Path) -> bytes:
    """Return the content of *source*. Raises ResultError, one line, if it cannot be read."""
    try:
        return source.read_bytes()
    except OSError as error:
        raise ResultError(f"{source}: {error.strerror}") from None


def load(source: Path, kind: type[D]) -> D:
    """Read a result of *kind*. Raises ResultError with one line for people: file, key, value."""
    return from_json(read_bytes(source), str(source), kind)


def find(directory: Path) -> Iterator[Path]:
    """Yield the result files below *directory* (``NAME/result.json``) in order of name."""
    yield from sorted(directory.glob(f"*/{FILE}"))
