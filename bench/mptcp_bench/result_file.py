"""``results/NAME/result.json``, of the paper's experiments and of ours: what all say, reading and writing.

No other file is read to report or to judge. Rules: SI units (seconds, bits per second, bytes, shares from 0 to 1) but
where an aim says its unit; the JSON keys are the field names below and of what extends them; a file is replaced in one
step, so that an interrupted experiment leaves what was complete.
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
"""Digits that say a float exactly."""

Scalar = str | int | float | bool | None
AimVerdict = Literal["met", "missed", "no aim"]
Judgement = Literal["holds", "fails", "differs", "not judged"]
"""Of a claim of the paper: ``paper.judging`` says what each means."""


class ResultError(Exception):
    """A file that is no result, or a result that contradicts itself: one line for people."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Enough to run the same thing again."""

    command: str
    commit: str
    """With ``-dirty`` where the working copy differed from it, ``-unknown`` where git failed."""
    kernel: str
    processors: int
    squid: str
    python: str
    seed: int | None
    started: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What every experiment says of itself."""

    provenance: Provenance
    experiment: str
    """Name of the command, and of the directory."""
    title: str
    """What it shows, in a line."""
    parameters: dict[str, Scalar]
    """Of the paper's experiments all, of ours those that were set."""
    seed: int
    complete: bool
    """False while it runs and where it was interrupted."""
    quick: bool = False
    """Less of everything, to see that it works."""
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    """What was to be measured and was not, or was wrong without an aim that says so."""


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim of the paper beside what was measured."""

    id: str
    paper: str
    """What the paper says, in our words."""
    measured: str
    """A sentence with figures."""
    verdict: Judgement
    why: str = ""
    """For ``differs``: the mechanism, which was measured; for ``fails``: what is likely and was not, if anything."""


@dataclass(frozen=True, slots=True)
class JudgedAim:
    """A measured value, the range that it should be in, and whether it is."""

    what: str
    value: float | None
    """None where nothing finite was measured."""
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
    """Return whether *value* is within its bounds; what is not finite is not."""
    if least is None and most is None:
        return "no aim"
    met = math.isfinite(value) and (least is None or value >= least) and (most is None or value <= most)
    return "met" if met else "missed"


def bounds(least: float | None, most: float | None) -> str:
    """Return what is wanted, in signs; empty where nothing is."""
    return " and ".join(f"{sign} {bound:g}" for sign, bound in (("≥", least), ("≤", most)) if bound is not None)


def shown(value: float, unit: str, least: float | None = None, most: float | None = None, *, digits: int = 4) -> str:
    """Return *value* for people: whole numbers whole, others to so many *digits*.

    There are more where fewer would have it on the other side of one of its bounds.
    """
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
    """By which a page of the documentation names it."""
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
    """Names of the files beside this one, without their endings."""
    data: dict[str, Any] = field(default_factory=dict)
    """All that was measured, in a form of the experiment's own."""


D = TypeVar("D", bound=Result)


def finite(value: Any) -> Any:
    """Return *value* as JSON can say it and give it back: lists for tuples, null for infinity and what is no number."""
    if isinstance(value, dict):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(result: Result) -> str:
    """Return *result* as JSON text.

    :raises ResultError: where a number is not finite: JSON has no word for it, and no measurement gives one
    """
    try:
        return json.dumps(asdict(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError as error:
        raise ResultError(f"{result.experiment}: a number that is not finite cannot be written ({error})") from None


def from_json(text: str | bytes, name: str, kind: type[D]) -> D:
    """Return the result of *kind* in *text*, which is called *name* in errors.

    :raises ResultError: one line: name, key, value, what is allowed
    """
    from pydantic import TypeAdapter, ValidationError

    def refuse(constant: str) -> None:
        raise ResultError(f"{name}: {constant} is no number that was measured")

    # Python's JSON, and pydantic's, have words for what is not finite; everything after this counts on numbers.
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
    """Make *directory*, so that what cannot be written raises OSError before anything is measured."""
    directory.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=directory).close()


def write(result: Result, target: Path) -> None:
    """Replace *target* by *result* in one step; the directory is made where it is missing.

    :raises ResultError: a number is not finite
    :raises OSError: as the file system says
    """
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
    """Return what is in *source*. ResultError, one line, where it cannot be read."""
    try:
        return source.read_bytes()
    except OSError as error:
        raise ResultError(f"{source}: {error.strerror}") from None


def load(source: Path, kind: type[D]) -> D:
    """Read a result of *kind*.

    :raises ResultError: one line for people: file, key, value
    """
    return from_json(read_bytes(source), str(source), kind)


def find(directory: Path) -> Iterator[Path]:
    """Yield the result files below *directory* (``NAME/result.json``) in order of name."""
    yield from sorted(directory.glob(f"*/{FILE}"))
