# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads a statement's values, which may be in a file, as Squid does (ConfigParser::strtokFile).

Rules (Squid 5.7 and 6.13, src/ConfigParser.cc; src/acl/Options.cc):

* A word that begins with a quotation mark, single or double, names a file, up to the next mark of either kind.
* Each line of the file is one value, up to a word that begins with '#'. Squid reads a line in pieces of 2047 bytes.
* Squid ignores words after a file, even if the file cannot be opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_MAX_PIECE = 2047
"""Size of a piece in bytes: CONFIG_LINE_LIMIT without the NUL."""
_BLANKS = " \t\n\r"
_VALUE = re.compile(r"[^ \t\n\r]+(?:[ \t\n\r]+[^ \t\n\r#][^ \t\n\r]*)*")
_MARKS = ('"', "'")


@dataclass(frozen=True, slots=True)
class Value:
    """One value, and its place if it comes from a file."""

    text: str
    file: str = ""
    number: int = 0


def list_values(words: Sequence[str]) -> Iterator[Value]:
    """Yield the values of *words*, which contain no flags."""
    for word in words:
        if (file := listed_file(word)) is None:
            yield Value(word)
            continue
        try:
            text = Path(file).read_bytes() if file else b""
        except (OSError, ValueError):
            return  # Squid reports an unreadable file
        yield from _values_in_file(text, file)
        return


def listed_file(word: str) -> str | None:
    """Return the name of the file that *word* names; None for a value."""
    return re.split("[\"']", word[1:], maxsplit=1)[0] if word.startswith(_MARKS) else None


def ignored_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the *words* after a file."""
    index = next((n for n, word in enumerate(words) if word.startswith(_MARKS)), len(words))
    return tuple(words[index + 1 :])


def without_flags(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of an ``acl`` after its type, without flags ("-n") and their end ("--")."""
    for index, word in enumerate(words):
        if word == "--":
            return tuple(words[index + 1 :])
        if not word.startswith(("-", "+")):
            return tuple(words[index:])
    return ()


def _values_in_file(text: bytes, file: str) -> Iterator[Value]:
    for number, line in enumerate(_lines(text), 1):
        for begin in range(0, len(line), _MAX_PIECE):
            piece = line[begin : begin + _MAX_PIECE].partition(b"\0")[0]
            text_of_piece = piece.decode("utf-8", "surrogateescape").lstrip(_BLANKS)
            if (found := _VALUE.match(text_of_piece)) and not text_of_piece.startswith("#"):
                yield Value(found[0], file, number)


def _lines(text: bytes) -> Iterator[bytes]:
    """Yield the lines with their newlines, because these count for the size of a piece."""
    return (each + b"\n" for each in text.split(b"\n"))
