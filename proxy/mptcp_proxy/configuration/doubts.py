# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds parts of a configuration that cannot be judged, or that look like something else. They are refused unless the
operator insists.

access.py judges the rules for clients as far as Squid and these modules read them alike. This module finds parts that
differ from process to process, or that may be read differently. Pure, except for lists in files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ..problem import Problem
from .access import OVERRIDE
from .address_values import FORMS, address_value
from .list_values import ignored_words, list_values, without_flags
from .source import Statement

_RULES = ("http_access", "follow_x_forwarded_for", "proxy_protocol_access")
_ADDRESSES = ("src", "dst", "localip", "myip")
_LONGEST_NAME = 61
"""Bytes of a list's name: Squid truncates 63 to 62, which may be another list's name, and refuses longer ones."""
_MAX_REMARKS = 5
"""Maximum number of remarks per list: if five values are doubtful, the others are likely to be."""


def doubts(statements: Sequence[Statement]) -> Iterator[Problem]:
    """Yield the problems of *statements*, which may be in force, that cannot be judged."""
    for statement in statements:
        yield from _strange_characters(statement)
        yield from _macros(statement)
        match statement.words:
            case ("acl", name, kind, *words):
                yield from _name(statement, name)
                if kind in _ADDRESSES:
                    yield from _addresses(statement, without_flags(words))


def nested_branches(everything: Sequence[Statement]) -> Iterator[Problem]:
    """Yield a warning for each ``if`` within another of *everything* that is written."""
    for statement in everything:
        if statement.branch and statement.branch[0] == "if" and statement.applies is not True:
            text = f"{statement.text}: within another if: Squid evaluates only this one, and ignores the outer one"
            yield Problem(text, statement.file, statement.number, warning=True)


def _problem(statement: Statement, text: str, allowed: str) -> Problem:
    return Problem(text, statement.file, statement.number, allowed=f"{allowed}; as it is: {OVERRIDE}")


def _strange_characters(statement: Statement) -> Iterator[Problem]:
    """Yield a problem for invisible characters, or ones that look like blanks but are not blanks for Squid."""
    for word in statement.words:
        for character in word:
            # No program reads bytes that are not UTF-8 as blanks.
            if not character.isprintable() and not "\udc80" <= character <= "\udcff":
                text = f"{' '.join(statement.words)}: an invisible character, U+{ord(character):04X}"
                yield _problem(statement, text, "printable characters; blanks and tabs between words")
                return


def _macros(statement: Statement) -> Iterator[Problem]:
    judged = statement.directive == "acl" or statement.directive in _RULES
    macros = [word for word in statement.words if "${process_" in word]
    if macros and (judged or macros[0] == statement.words[0]):
        text = (
            f"{' '.join(statement.words)}: {macros[0]} differs from process to process, so the processes may allow"
            " different clients"
        )
        yield _problem(statement, text, "names and values that are the same for all")


def _name(statement: Statement, name: str) -> Iterator[Problem]:
    if len(name.encode("utf-8", "surrogateescape")) > _LONGEST_NAME:
        text = f"acl {name}: a name so long that Squid truncates it, perhaps to another list's name"
        yield _problem(statement, text, f"{_LONGEST_NAME} bytes")


def _addresses(statement: Statement, words: Sequence[str]) -> Iterator[Problem]:
    what = " ".join(statement.words[:3])
    if ignored := ignored_words(words):
        yield _problem(
            statement,
            f"{what}: Squid ignores {' '.join(ignored)!r} after a file",
            "a line of its own for the file",
        )
    values = ((value, remark) for value in list_values(words) if (remark := address_value(value.text).remark))
    for value, remark in islice(values, _MAX_REMARKS):
        file, number = (value.file, value.number) if value.file else (statement.file, statement.number)
        yield Problem(f"{what} {value.text}: {remark}", file, number, allowed=f"{FORMS}; as it is: {OVERRIDE}")
