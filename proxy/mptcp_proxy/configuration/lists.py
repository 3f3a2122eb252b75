# SPDX-License-Identifier: GPL-2.0-or-later
"""Copies lists, which are files with values of an ``acl``, so that the check and Squid read the same bytes.

Squid reads a list at each reload, and each worker reads it at its start. If the operator is editing the list at that
time, an unfinished edit would be in force, or Squid would exit. So Squid gets copies.

Rules (Squid's src/ConfigParser.cc, strtokFile): a value of an ``acl`` that begins with a quotation mark, single or
double, names a file up to the next mark. Squid also reads files in other ways, which this check does not cover. They
are refused:

* a file instead of the names of lists (``http_access allow "FILE"``, ``acl NAME any-of "FILE"``);
* a file for a type that takes one value: Squid would use the rest of the file instead of the next file's values;
* ``parameters("FILE")``, which directives with quoted values accept;
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
from .source import PhysicalLine, Statement, replace_statement, statements

_QUOTES = "\"'"
_LIST = re.compile(r"""(["'])(?P<name>[^"'\\]+)\1""")
_PARAMETERS = re.compile(r"""(?:\w+=)?parameters\(""")
_ACCESS_DIRECTIVES = re.compile(
    r"\w+_access|follow_x_forwarded_for|cache|(?:always|never)_direct|tcp_outgoing_\w+|ssl_bump"
)
_SINGLE_VALUE_TYPES = frozenset(("random", "max_user_ip", "connections_encrypted"))
"""Types for which Squid reads only one value (tested with 5.7)."""
_ALLOWED_VALUES = 'the values themselves, or a list of an acl: acl NAME TYPE "FILE"'
_MAX_NAME_LENGTH = 64
"""Maximum number of characters of the list's name in the name of its copy."""


@dataclass(frozen=True, slots=True)
class CopiedList:
    """One list, with its content when it was read."""

    name: str
    copy: Path
    """The name of the copy, which Squid reads instead."""
    content: bytes | None
    """None if the list is unreadable. Then there is no copy, so that Squid reports the missing file."""


@dataclass(frozen=True, slots=True)
class CopiedConfiguration:
    """A configuration that names the copies instead of the lists."""

    lines: tuple[PhysicalLine, ...]
    """The changed lines: one for each original line, in the same order."""
    lists: tuple[CopiedList, ...]
    problems: tuple[Problem, ...]

    def write_copies(self, directory: Path) -> dict[str, str]:
        """Write the lists into *directory* for a trial. Return their paths there, by the names of the copies."""
        trial_paths = {}
        for each in self.lists:
            path = directory / each.copy.name
            if each.content is not None:
                path.write_bytes(each.content)
            trial_paths[str(each.copy)] = str(path)
        return trial_paths

    def with_original_names(self, problem: Problem) -> Problem:
        """Return *problem* with the names of the operator's lists instead of the copies."""
        names = {str(each.copy): each.name for each in self.lists}
        return replace(
            problem,
            text=replace_names(problem.text, names),
            file=replace_names(problem.file, names),
            allowed=replace_names(problem.allowed, names),
        )


def space_problems(lists: Sequence[CopiedList], directory: Path) -> Iterator[Problem]:
    """Yield a problem if the missing copies of *lists* do not fit into the file system of *directory*."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    file_system = os.statvfs(existing)
    free = file_system.f_bavail * file_system.f_frsize
    size = sum(len(each.content or b"") for each in lists if not each.copy.exists())
    if size > free:
        yield Problem(
            f"Squid's copies of the lists need {approximate_size(size)}, but only {approximate_size(free)} is free on "
            f"{existing}",
            allowed="shorter lists, or more free space",
        )


def replace_names(text: str, names: Mapping[str, str]) -> str:
    """Return *text* with each key of *names* replaced by its value."""
    for name, replacement in names.items():
        text = text.replace(name, replacement)
    return text


def copy_lists(
    lines: Sequence[PhysicalLine], service_name: str, directory: Path, own_files: Collection[str]
) -> CopiedConfiguration:
    """Read the lists that *lines* name, and replace their names by the names of copies in *directory*. This function
    does not write the copies. *own_files*: names of files that are not copied, because only this program writes
    them."""
    new_lines = list(lines)
    found: dict[str, CopiedList] = {}
    problems: list[Problem] = []
    # Keep the macro ${service_name} in the lines: Squid replaces it.
    for statement in statements(lines, "${service_name}"):
        words = statement.words
        problems.extend(_unhandled_file_problems(statement))
        if words[:1] != ("acl",) or len(words) < 4:
            continue
        text = statement.text
        for word in words[3:]:
            match = _LIST.fullmatch(word)
            name = match["name"].replace("${service_name}", service_name) if match else word
            if word[0] not in _QUOTES or name in own_files:
                continue
            if match is None:
                problems.append(
                    _problem(statement, f"{word}: write the file's name in quotation marks, without blanks")
                )
                continue
            if name not in found:
                try:
                    found[name] = _read_list(name, directory)
                except ValueError as error:
                    problems.append(_problem(statement, f"{name}: {error}"))
                    continue
            if found[name].content is None and statement.conditional:
                # Squid's parse does not report this if the statement is in an ``if`` for another process.
                problems.append(_problem(statement, f"{name} cannot be read"))
            text = _replace_word(text, word, f'"{found[name].copy}"')
        if text != statement.text:
            replace_statement(new_lines, statement, text)
    return CopiedConfiguration(tuple(new_lines), tuple(found.values()), tuple(problems))


def _replace_word(text: str, word: str, new_word: str) -> str:
    return re.sub(rf"(?<!\S){re.escape(word)}(?!\S)", lambda _: new_word, text)


def _read_list(name: str, directory: Path) -> CopiedList:
    """Read one list. Raises ValueError if it is not a regular file, because reading a pipe may never end."""
    content: bytes | None = None
    with suppress(OSError):
        # Open the file without blocking, because it may be a pipe without a writer.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) and name != os.devnull:
                raise ValueError("not a regular file")
            content = file.read()
    # The hash includes the name, so that lists with the same content have different names in Squid's messages.
    digest = hashlib.sha256(os.fsencode(name) + b"\0" + (content or b"")).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", Path(name).name)[-_MAX_NAME_LENGTH:]
    return CopiedList(name, directory / f"{digest}-{readable}", content)


def _unhandled_file_problems(statement: Statement) -> Iterator[Problem]:
    """Yield a problem if *statement* makes Squid read a file in a way that this module does not handle."""
    words = statement.words
    if not words:
        return
    names_lists = _ACCESS_DIRECTIVES.fullmatch(words[0]) or (
        words[0] == "acl" and words[2:3] in (("any-of",), ("all-of",))
    )
    if words[:1] == ("configuration_includes_quoted_values",) and words[1:] != ("off",):
        yield _problem(statement, "Squid would read files of lists differently from this check", "off")
    elif any(_PARAMETERS.match(word) for word in words[1:]):
        yield _problem(statement, "the file of parameters(...) is not checked", _ALLOWED_VALUES)
    elif names_lists and any(word[0] in _QUOTES for word in words[2:]):
        yield _problem(statement, "names of lists from a file are not checked", "the names themselves")
    elif words[0] == "acl" and set(words[2:3]) & _SINGLE_VALUE_TYPES and any(word[0] in _QUOTES for word in words[3:]):
        why = f"Squid reads only one value for {words[2]}, and takes the rest of the file as values of the next list"
        yield _problem(statement, why, "the value itself")


def _problem(statement: Statement, why: str, allowed: str = "names of files that can be read") -> Problem:
    text = " ".join(statement.words)
    return Problem(f"{text}: {why}", statement.file, statement.number, allowed)
