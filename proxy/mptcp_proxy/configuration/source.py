# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads squid.conf with all its includes into one sequence of lines, each with its file and line number.

Rules (as Squid reads a file, src/cache_cf.cc; directive reference, "include"):

* A line ends at its first NUL or carriage return. Squid splits a line of 8191 bytes or more, so this module refuses
  such lines. A statement on several lines may have any length.
* Empty lines and lines that begin with '#' are skipped, also within a continued line.
* A line that ends in a backslash continues in the next one, whose leading blanks are dropped.
* This module replaces ``${service_name}``, but not ``${process_name}`` and ``${process_number}``, which differ between
  processes.
* Of nested ``if`` statements, only the innermost decides.
* Blanks and tabs separate words. Other white space of C (isspace(3)) is allowed only before the first word, after the
  last one, and after ``if`` and ``include``. All other characters, even if they are white space for Python, are
  ordinary text.
* Some directives have two names.
* ``include`` has names and wildcards of files, whose lines replace it. A '#' in it does not begin a comment. Includes
  may be nested 16 deep.

Squid gets a copy with the includes resolved. So it acts on the lines that were checked, even if the files change after
the check, and a worker that Squid restarts reads the same lines.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..problem import Problem

MAX_DEPTH = 16
MAX_LINE = 8190
"""Maximum number of bytes of a line: Squid reads pieces of BUFSIZ - 1 bytes, with the line's end (fgets(3))."""
ALLOWED_LENGTH = f"{MAX_LINE} bytes; to continue a statement, end its lines with \\"
SPACE = " \t\n\v\f\r"
"""White space in the C locale."""
_WORD = re.compile(r"[^ \t\n\r]+")
_WORD_AND_BLANKS = re.compile(rf"[^{SPACE}]+[{SPACE}]*(?:#[^{SPACE}]*[{SPACE}]*)*")
"""A word, the blanks after it, and further words that begin with '#', which must not come first in a line."""
_BRANCH = re.compile(rf"(if|else|endif)(?:[{SPACE}]+(.*))?", re.DOTALL)
_INCLUDE = re.compile(rf"include[{SPACE}](.*)", re.DOTALL)
_INTEGER = re.compile(rf"[{SPACE}]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_MAX_LONG = (1 << 63) - 1
_SECOND_NAMES = {
    "ascii_port": "http_port",
    "cache_access_log": "access_log",
    "http_access2": "adapted_http_access",
    "no_cache": "cache",
}
"""Second names of the directives that this project reads (NAME in src/cf.data.pre, the same in Squid 5.7 to 7)."""


@dataclass(frozen=True, slots=True)
class PhysicalLine:
    """One line of a file."""

    file: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Statement:
    """A whole statement, possibly written on several lines."""

    text: str
    file: str
    number: int
    """The number of its last line, as in Squid's own messages."""
    first: int
    last: int
    """Indexes in the sequence of physical lines, both included."""
    applies: bool | None = True
    """Whether the statement is in force. False: in no process. None: this depends on the process, because of the
    surrounding ``if``."""

    @property
    def conditional(self) -> bool:
        """Whether an ``if`` leaves the statement out, at least in some processes."""
        return self.applies is not True

    @property
    def words(self) -> tuple[str, ...]:
        """The words before a comment ('#'). A directive with two names has its usual name here."""
        words: list[str] = []
        for word in _WORD.findall(self.text):
            if word.startswith("#"):
                break
            words.append(word if words else _SECOND_NAMES.get(word, word))
        return tuple(words)

    @property
    def directive(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def included(self) -> tuple[str, ...]:
        """The names and wildcards of an ``include``; empty for other statements."""
        found = _INCLUDE.fullmatch(self.text)
        return tuple(re.split(f"[{SPACE}]+", found[1].strip(SPACE))) if found else ()

    @property
    def branch(self) -> tuple[str, str] | None:
        """``if``, ``else`` or ``endif`` and the text after it; None for other statements."""
        found = _BRANCH.fullmatch(self.text)
        return (found[1], found[2] or "") if found else None


@dataclass(frozen=True, slots=True)
class IncludedFile:
    """A file that an ``include`` names, and the place of the ``include``."""

    name: str
    """A match of a wildcard, or the wildcard itself if nothing matches."""
    file: str
    number: int


def statements(lines: Sequence[PhysicalLine], service_name: str) -> Iterator[Statement]:
    """Yield the statements on which Squid may act: all except those in branches that are never taken."""
    return (statement for statement in all_statements(lines, service_name) if statement.applies is not False)


def last_with_value(directives: Sequence[Statement], directive: str) -> Statement | None:
    """Return the last statement of *directive* that has a value. Squid's own check reports those without a value."""
    return next((each for each in reversed(directives) if each.directive == directive and len(each.words) > 1), None)


def all_statements(lines: Sequence[PhysicalLine], service_name: str) -> Iterator[Statement]:
    """Yield all statements. Continued lines are joined, and macros whose value is known are replaced."""
    text, first = "", 0
    branches: list[bool | None] = []
    for index, line in enumerate(lines):
        stripped = _visible_part(line.text).lstrip(SPACE)
        if not stripped or stripped.startswith("#"):
            continue
        if not text:
            first = index
        text += stripped
        if text.endswith("\\"):
            text = text[:-1]
            continue
        statement_text = text.rstrip(SPACE).replace("${service_name}", service_name)
        text = ""
        if not statement_text:
            continue
        statement = Statement(statement_text, line.file, line.number, first, index, branches[-1] if branches else True)
        yield statement
        match statement.branch:
            case ("if", condition):
                branches.append(_condition_value(condition))
            case ("else", _) if branches:
                branches[-1] = None if branches[-1] is None else not branches[-1]
            case ("endif", _) if branches:
                branches.pop()


def _condition_value(condition: str) -> bool | None:
    """Return the value of a condition: ``true``, ``false`` or two integers to compare. None: the value depends on the
    process."""
    if condition in ("true", "false"):
        return condition == "true"
    left, equals, right = condition.partition("=")
    first, second = _integer(left.rstrip(SPACE)), _integer(right)
    return first == second if equals and first is not None and second is not None else None


def _integer(text: str) -> int | None:
    """Return the number as strtol(3) with base 0 reads it, limited to a long; None if *text* is not a number."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    sign, digits = found.groups()
    octal = digits.startswith("0") and digits.isdigit()
    number = int(digits, 8 if octal else 0)
    return max(-number, -_MAX_LONG - 1) if sign == "-" else min(number, _MAX_LONG)


def read(path: Path, service_name: str) -> tuple[tuple[PhysicalLine, ...], tuple[Problem, ...]]:
    """Return the lines of *path* with its includes resolved, and a problem for each file that could not be read."""
    lines, problems, _ = read_with_includes(path, service_name)
    return lines, problems


def read_with_includes(
    path: Path, service_name: str
) -> tuple[tuple[PhysicalLine, ...], tuple[Problem, ...], tuple[IncludedFile, ...]]:
    """Return the result of :func:`read`, and also the included files."""
    problems: list[Problem] = []
    includes: list[IncludedFile] = []
    lines = tuple(_resolve(str(path), service_name, (), None, problems, includes))
    return lines, tuple(problems), tuple(includes)


def _resolve(
    path: str,
    service_name: str,
    including: tuple[str, ...],
    place: PhysicalLine | None,
    problems: list[Problem],
    includes: list[IncludedFile],
) -> Iterator[PhysicalLine]:
    """Yield the lines of *path* with its includes resolved. *including*: the chain of files that include it. *place*:
    the line that names it; None for the command line. Append to *problems* and *includes*."""
    including = (*including, os.path.realpath(path))
    try:
        raw = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        problems.append(_unreadable_problem(path, error, place))
        return
    texts = [each.decode("utf-8", "surrogateescape") for each in raw]
    lines = [PhysicalLine(path, number, _visible_part(text)) for number, text in enumerate(texts, 1)]
    problems.extend(_truncation_problems(path, raw))
    if lines and not lines[-1].text:
        lines.pop()
    if place is not None:
        problems.extend(_branch_problems(lines, service_name))
    position = 0
    for statement in all_statements(lines, service_name):
        # Squid ignores an include in a branch that is never taken.
        if not statement.included or statement.applies is False or is_command(statement):
            continue
        include = lines[statement.last]
        included: list[PhysicalLine] = []
        if len(including) > MAX_DEPTH:
            problems.append(Problem(f"includes more than {MAX_DEPTH} deep", include.file, include.number))
        else:
            for name in _included_files(statement, problems, includes):
                # Do not read it: a file that includes itself twice would be read 2**16 times.
                if os.path.realpath(name) in including:
                    problems.append(
                        Problem(f"include {name}: the file would include itself", include.file, include.number)
                    )
                else:
                    included.extend(_resolve(name, service_name, including, include, problems, includes))
        if statement.conditional and any(each.branch for each in all_statements(included, service_name)):
            text = (
                f"{' '.join(statement.words)}: the file has an if, and is included within another if: of nested ifs,"
                " Squid evaluates only the inner one"
            )
            problems.append(Problem(text, include.file, include.number, allowed="an include outside of any if"))
        yield from lines[position : statement.first]
        yield PhysicalLine(include.file, include.number, "")
        yield from included
        position = statement.last + 1
    yield from lines[position:]
    if _ends_in_continuation(lines):
        problems.append(Problem("the file ends in the middle of a continued line", path, len(lines)))


def _visible_part(line: str) -> str:
    return line.partition("\0")[0].partition("\r")[0]


def _truncation_problems(path: str, raw: Sequence[bytes]) -> Iterator[Problem]:
    for number, line in enumerate(raw, 1):
        if b"\0" in line:
            yield Problem("a NUL byte: Squid would ignore the rest of the line", path, number)
        elif line.partition(b"\r")[2].strip():
            yield Problem("a carriage return: Squid would ignore the rest of the line", path, number)
        if len(line) > MAX_LINE:
            text = (
                f"a line of {len(line)} bytes: Squid would read the part after the first {MAX_LINE + 1} as another line"
            )
            yield Problem(text, path, number, allowed=ALLOWED_LENGTH)


def replace_statement(lines: list[PhysicalLine], statement: Statement, text: str) -> None:
    """Replace *statement*, which was read from *lines*, by *text*. The last line of the statement gets the text. If it
    would be too long, more of the statement's lines are used."""
    if text.endswith("\\"):
        text += " "  # a line that ends in a backslash would continue in the next line
    available = statement.last - statement.first + 1
    pieces = _pieces(text, available)
    blank = [""] * (available - len(pieces))
    for index, piece in enumerate([*pieces[:-1], *blank, pieces[-1]], statement.first):
        lines[index] = replace(lines[index], text=piece)


def _pieces(text: str, limit: int) -> list[str]:
    """Split *text* into at most *limit* lines that Squid joins to the same text. The last line takes the rest of the
    text, even if it is too long."""
    if size(text) <= MAX_LINE:
        return [text]
    pieces: list[list[str]] = [[]]
    free = MAX_LINE - 1
    for words in _WORD_AND_BLANKS.findall(text):
        free -= size(words)
        if free < 0 and pieces[-1] and len(pieces) < limit:
            pieces.append([])
            free = MAX_LINE - 1 - size(words)
        pieces[-1].append(words)
    return ["".join(piece) + "\\" * (piece is not pieces[-1]) for piece in pieces]


def size(text: str) -> int:
    """Return the number of bytes of *text* in a file."""
    return len(text.encode("utf-8", "surrogateescape"))


def _branch_problems(lines: Sequence[PhysicalLine], service_name: str) -> Iterator[Problem]:
    """Yield a problem for each ``if``, ``else`` or ``endif`` without its counterpart in the same file."""
    unclosed: list[Statement] = []
    for statement in all_statements(lines, service_name):
        match statement.branch:
            case ("if", _):
                unclosed.append(statement)
            case (keyword, _) if not unclosed:
                yield Problem(f"{keyword}: there is no if before it in this file", statement.file, statement.number)
            case ("endif", _):
                unclosed.pop()
    for statement in unclosed:
        yield Problem(f"{statement.text}: there is no endif in this file", statement.file, statement.number)


def is_command(statement: Statement) -> bool:
    """Return whether an ``include`` reads the output of a program."""
    return any(each.lstrip("\"'")[:1] in ("!", "|") for each in statement.included)


def _included_files(statement: Statement, problems: list[Problem], includes: list[IncludedFile]) -> Iterator[str]:
    for word in statement.included:
        pattern = word.strip('"')
        if "${process_" in pattern:
            text = f"include {pattern}: the workers would read different files, which this check does not read"
            problems.append(Problem(text, statement.file, statement.number, allowed="one name for all processes"))
            continue
        names = sorted(glob.glob(pattern))
        includes.extend(IncludedFile(name, statement.file, statement.number) for name in names or [pattern])
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


def _unreadable_problem(path: str, error: OSError, place: PhysicalLine | None) -> Problem:
    reason = error.strerror or str(error)
    if place is None:
        return Problem(f"cannot read the configuration: {reason}", path)
    return Problem(f"include {path}: cannot read it: {reason}", place.file, place.number)


def _ends_in_continuation(lines: Sequence[PhysicalLine]) -> bool:
    texts = [text for line in lines if (text := line.text.lstrip(SPACE)) and not text.startswith("#")]
    return bool(texts) and texts[-1].endswith("\\")


def render(lines: Sequence[PhysicalLine]) -> bytes:
    """Return *lines* as the text of one file, line by line."""
    return "".join(f"{line.text}\n" for line in lines).encode("utf-8", "surrogateescape")
