"""Reads squid.conf with all its includes into one sequence of lines, each of which knows where it came from.

Rules (as Squid reads a file, src/cache_cf.cc; directive reference, "include"):

* a line whose first character is '#' and an empty line say nothing, also in the middle of a continued line;
* a line that ends in a backslash goes on in the next one, whose leading blanks are dropped;
* ``${service_name}`` is replaced; ``${process_name}`` and ``${process_number}`` differ from process to process and
  are left to Squid, as are ``if``, ``else`` and ``endif``;
* ``include`` takes names and wildcards, at most 16 deep, and stands for the lines of these files.

Why one sequence: Squid is given a copy in which the includes are resolved. What was checked is then what is in
force, whatever happens to the files meanwhile, and a worker that Squid has to start again reads the same.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..problem import Problem

MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class PhysicalLine:
    """One line of a file."""

    file: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Statement:
    """A whole statement: what Squid acts on. It may have been written on several lines."""

    text: str
    file: str
    number: int
    """Of its last line, as in Squid's own messages."""
    first: int
    last: int
    """Where it stands in the sequence of physical lines, both ends included."""
    applies: bool | None = True
    """False: never, None: that depends on the process, by the ``if`` that it stands in."""

    @property
    def conditional(self) -> bool:
        """Whether it stands in an ``if`` that leaves it out, at least in some processes."""
        return self.applies is not True

    @property
    def words(self) -> tuple[str, ...]:
        """Its words; a word that begins with '#' begins a comment."""
        words: list[str] = []
        for word in self.text.split():
            if word.startswith("#"):
                break
            words.append(word)
        return tuple(words)

    @property
    def directive(self) -> str:
        return self.words[0] if self.words else ""


def statements(lines: Sequence[PhysicalLine], service_name: str) -> Iterator[Statement]:
    """Yield what Squid may act on: all that is written, less the branches of an ``if`` that it never takes."""
    return (statement for statement in written(lines, service_name) if statement.applies is not False)


def last(said: Sequence[Statement], directive: str) -> Statement | None:
    """Return the statement of *directive* that counts where each replaces the one before. One without a value is left
    to Squid's own check."""
    return next((each for each in reversed(said) if each.directive == directive and len(each.words) > 1), None)


def written(lines: Sequence[PhysicalLine], service_name: str) -> Iterator[Statement]:
    """Join continued lines and replace what can be replaced."""
    text, first = "", 0
    branches: list[bool | None] = []
    for index, line in enumerate(lines):
        stripped = line.text.lstrip()
        if not stripped or stripped.startswith("#"):
            continue
        if not text:
            first = index
        text += stripped
        if text.endswith("\\"):
            text = text[:-1]
            continue
        whole = text.rstrip().replace("${service_name}", service_name)
        text = ""
        if not whole:
            continue
        yield Statement(whole, line.file, line.number, first, index, _all_of(branches))
        keyword, *condition = whole.split(maxsplit=1)
        if keyword == "if":
            branches.append(_truth(condition[0] if condition else ""))
        elif keyword == "else" and branches:
            branches[-1] = None if branches[-1] is None else not branches[-1]
        elif keyword == "endif" and branches:
            branches.pop()


def _all_of(branches: Sequence[bool | None]) -> bool | None:
    return False if False in branches else None if None in branches else True


def _truth(condition: str) -> bool | None:
    """Return what an ``if`` says: ``true``, ``false`` or two integers; None where Squid alone knows."""
    if condition in ("true", "false"):
        return condition == "true"
    left, equals, right = condition.partition("=")
    try:
        return int(left) == int(right) if equals else None
    except ValueError:
        return None


def read(path: Path, service_name: str) -> tuple[tuple[PhysicalLine, ...], tuple[Problem, ...]]:
    """Return the lines of *path* with its includes in their places, and what could not be read."""
    problems: list[Problem] = []
    lines = tuple(_resolve(str(path), service_name, (), None, problems))
    return lines, tuple(problems)


def _resolve(
    path: str, service_name: str, within: tuple[str, ...], place: PhysicalLine | None, problems: list[Problem]
) -> Iterator[PhysicalLine]:
    """Yield the lines of *path*, which the include at *place* (None: the command line) named.

    *within*: the files that are being read, each by what the one before includes.
    """
    within = (*within, os.path.realpath(path))
    try:
        text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        problems.append(_unreadable(path, error, place))
        return
    lines = [PhysicalLine(path, number, _seen(line)) for number, line in enumerate(text.split("\n"), 1)]
    nulls = (number for number, line in enumerate(text.split("\n"), 1) if "\0" in line)
    problems.extend(Problem("a NUL byte: Squid would not see what follows it", path, number) for number in nulls)
    if lines and not lines[-1].text:
        lines.pop()
    position = 0
    for statement in written(lines, service_name):
        if statement.directive != "include" or len(statement.words) < 2:
            continue
        include = lines[statement.last]
        included: list[PhysicalLine] = []
        found: list[Problem] = []
        if len(within) > MAX_DEPTH:
            found.append(Problem(f"includes more than {MAX_DEPTH} deep", include.file, include.number))
        else:
            for name in _included_files(statement, found):
                # Read all the same, one that does so twice would be read 2 to the 16th time.
                if os.path.realpath(name) in within:
                    found.append(
                        Problem(f"include {name}: the file would include itself", include.file, include.number)
                    )
                else:
                    included.extend(_resolve(name, service_name, within, include, found))
        # In an "if" Squid itself decides whether the file is needed at all.
        if (found and statement.conditional) or is_command(statement):
            continue
        problems.extend(found)
        yield from lines[position : statement.first]
        yield PhysicalLine(include.file, include.number, "")
        yield from included
        position = statement.last + 1
    yield from lines[position:]
    if _ends_unfinished(lines):
        problems.append(Problem("the file ends in the middle of a continued line", path, len(lines)))


def _seen(line: str) -> str:
    """Return what Squid sees of a line."""
    return line.partition("\0")[0].rstrip("\r")


def is_command(statement: Statement) -> bool:
    """Say whether an ``include`` takes what a program prints."""
    return statement.directive == "include" and len(statement.words) > 1 and statement.words[1][0] in "!|"


def _included_files(statement: Statement, problems: list[Problem]) -> Iterator[str]:
    for word in statement.words[1:]:
        pattern = word.strip('"')
        names = sorted(glob.glob(pattern))
        if not names:
            problems.append(
                Problem(
                    f"include {pattern}: there is no such file",
                    statement.file,
                    statement.number,
                    allowed="names of files, with * and ? where at least one file matches",
                )
            )
        yield from names


def _unreadable(path: str, error: OSError, place: PhysicalLine | None) -> Problem:
    reason = error.strerror or str(error)
    if place is None:
        return Problem(f"cannot read the configuration: {reason}", path)
    return Problem(f"include {path}: cannot read it: {reason}", place.file, place.number)


def _ends_unfinished(lines: Sequence[PhysicalLine]) -> bool:
    said = [line.text for line in lines if line.text.strip() and not line.text.lstrip().startswith("#")]
    return bool(said) and said[-1].endswith("\\")


def render(lines: Sequence[PhysicalLine]) -> bytes:
    """Return the text of one file that says the same as *lines*; its n-th line is the n-th of them."""
    return "".join(f"{line.text}\n" for line in lines).encode("utf-8", "surrogateescape")
