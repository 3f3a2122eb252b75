# SPDX-License-Identifier: GPL-2.0-or-later
"""Copies the files with values of an ``acl`` (lists), so that the check and Squid read the same bytes.

Squid reads a list at each reload, and each worker reads it at its start. If the operator has changed the list since the
check, a half-finished edit would be in force, or Squid would exit. So Squid gets copies.

Rules (Squid's src/ConfigParser.cc, strtokFile): a value of an ``acl`` that begins with a quotation mark, single or
double, names a file up to the next mark. Other ways of reading files would escape this check, and are refused:

* names in quotation marks in place of names of lists (``http_access allow "FILE"``, ``acl NAME any-of "FILE"``);
* a file for a type that takes one value: the next list gets the rest of the file, and nothing of its own;
* ``parameters("FILE")``, which directives with quoted values take;
* ``configuration_includes_quoted_values on``, which changes the meaning of a quotation mark.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mptcp_common.units import approximate_size

from ..problem import Problem
from .source import PhysicalLine, Statement, put, statements

_QUOTES = "\"'"
_LIST = re.compile(r"""(["'])(?P<name>[^"'\\]+)\1""")
_PARAMETERS = re.compile(r"""(?:\w+=)?parameters\(""")
_RULES = re.compile(r"\w+_access|follow_x_forwarded_for|cache|(?:always|never)_direct|tcp_outgoing_\w+|ssl_bump")
_OF_ONE_VALUE = frozenset(("random", "max_user_ip", "connections_encrypted"))
"""Types for which Squid reads only one value (tested with 5.7)."""
_IN_PLACE = 'the values themselves, or a list of an acl: acl NAME TYPE "FILE"'
_LONGEST = 64
"""Maximum number of characters of the list's name in the name of its copy."""


@dataclass(frozen=True, slots=True)
class CopiedList:
    """One list, with its content when it was read."""

    name: str
    copy: Path
    """The name of the copy, which Squid reads instead."""
    content: bytes | None
    """None if the list is unreadable. Then no copy is made, so that Squid reports the missing file."""


@dataclass(frozen=True, slots=True)
class WithLists:
    """A configuration that names the copies instead of the lists."""

    lines: tuple[PhysicalLine, ...]
    """The changed lines: one for each original line, in the same order."""
    lists: tuple[CopiedList, ...]
    problems: tuple[Problem, ...]

    def put(self, directory: Path) -> dict[str, str]:
        """Write the lists into *directory* for a trial. Return their paths there, by the names of the copies."""
        there = {}
        for each in self.lists:
            path = directory / each.copy.name
            if each.content is not None:
                path.write_bytes(each.content)
            there[str(each.copy)] = str(path)
        return there

    def as_written(self, problem: Problem) -> Problem:
        """Return *problem* with the names of the operator's lists instead of the copies."""
        names = {str(each.copy): each.name for each in self.lists}
        return replace(
            problem,
            text=renamed(problem.text, names),
            file=renamed(problem.file, names),
            allowed=renamed(problem.allowed, names),
        )


def no_room(lists: Sequence[CopiedList], directory: Path) -> Iterator[Problem]:
    """Yield a problem if the missing copies of *lists* do not fit into the file system of *directory*."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    found = os.statvfs(existing)
    free = found.f_bavail * found.f_frsize
    size = sum(len(each.content or b"") for each in lists if not each.copy.exists())
    if size > free:
        yield Problem(
            f"lists in files: Squid gets copies of them, of {approximate_size(size)}, and {existing} has room for "
            f"{approximate_size(free)}",
            allowed="shorter lists, or more room there",
        )


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return *text* with each key of *names* replaced by its value."""
    for name, other in names.items():
        text = text.replace(name, other)
    return text


def with_copies(lines: Sequence[PhysicalLine], service_name: str, directory: Path, left: Collection[str]) -> WithLists:
    """Read the lists that *lines* name, and replace their names by the names of copies in *directory*. Writes no file.
    *left*: names of files that are not replaced, because only this program writes them."""
    changed = list(lines)
    found: dict[str, CopiedList] = {}
    problems: list[Problem] = []
    # Pass the macro as the service name, so that it stays in the lines for Squid.
    for statement in statements(lines, "${service_name}"):
        words = statement.words
        problems.extend(_unseen_files(statement))
        if words[:1] != ("acl",) or len(words) < 4:
            continue
        text = statement.text
        for word in words[3:]:
            match = _LIST.fullmatch(word)
            name = match["name"].replace("${service_name}", service_name) if match else word
            if word[0] not in _QUOTES or name in left:
                continue
            if match is None:
                problems.append(_problem(statement, f"{word}: not a name in quotation marks, without blanks"))
                continue
            if name not in found:
                try:
                    found[name] = _read(name, directory)
                except ValueError as error:
                    problems.append(_problem(statement, f"{name}: {error}"))
                    continue
            if found[name].content is None and statement.conditional:
                # Squid's parse does not report this if the statement is in an ``if`` for another process.
                problems.append(_problem(statement, f"{name} cannot be read"))
            text = _replaced(text, word, f'"{found[name].copy}"')
        if text != statement.text:
            put(changed, statement, text)
    return WithLists(tuple(changed), tuple(found.values()), tuple(problems))


def _replaced(text: str, word: str, by: str) -> str:
    return re.sub(rf"(?<!\S){re.escape(word)}(?!\S)", lambda _: by, text)


def _read(name: str, directory: Path) -> CopiedList:
    """Read one list. Raises ValueError for a file that might never end."""
    content: bytes | None = None
    with suppress(OSError):
        # Open without blocking, because the file might be a pipe without a writer.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) and name != os.devnull:
                raise ValueError("no regular file")
            content = file.read()
    # The hash includes the name, so that lists with the same content can be told apart in Squid's remarks.
    digest = hashlib.sha256(os.fsencode(name) + b"\0" + (content or b"")).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", Path(name).name)[-_LONGEST:]
    return CopiedList(name, directory / f"{digest}-{readable}", content)


def _unseen_files(statement: Statement) -> Iterator[Problem]:
    """Yield a problem if *statement* makes Squid read a file in a way that this module does not handle."""
    words = statement.words
    if not words:
        return
    names_lists = _RULES.fullmatch(words[0]) or (words[0] == "acl" and words[2:3] in (("any-of",), ("all-of",)))
    if words[:1] == ("configuration_includes_quoted_values",) and words[1:] != ("off",):
        yield _problem(statement, "lists in files would not be checked as Squid reads them", "off")
    elif any(_PARAMETERS.match(word) for word in words[1:]):
        yield _problem(statement, "the file of parameters(...) is not checked", _IN_PLACE)
    elif names_lists and any(word[0] in _QUOTES for word in words[2:]):
        yield _problem(statement, "names of lists from a file are not checked", "the names themselves")
    elif words[0] == "acl" and set(words[2:3]) & _OF_ONE_VALUE and any(word[0] in _QUOTES for word in words[3:]):
        why = f"Squid reads one value for {words[2]}, and the rest of the file as values of the next list"
        yield _problem(statement, why, "the value itself")


def _problem(statement: Statement, why: str, allowed: str = "names of files that can be read") -> Problem:
    text = " ".join(statement.words)
    return Problem(f"{text}: {why}", statement.file, statement.number, allowed)
