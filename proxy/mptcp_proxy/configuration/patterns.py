# SPDX-License-Identifier: GPL-2.0-or-later
"""Matches POSIX extended regular expressions as Squid does, with the C library (regcomp(3)). Pure.

Python's syntax differs. For example, ``[[:alpha:]]`` is a letter in POSIX, but for Python one of the characters
``[:alph`` followed by a bracket.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable

_FLAGS = 1 | 2 | 8
"""REG_EXTENDED, REG_ICASE and REG_NOSUB of regex.h."""
_REGEX_WORDS = 64
"""Size of the buffer for a regex_t, in 64-bit words: larger than a regex_t in any C library."""
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\[([:.=])[^\]]*\1\]|[^\]])*\]|\{(?P<minimum>[0-9]*)(?P<range>,(?P<maximum>[0-9]*))?\}|.", re.DOTALL
)
"""A character, an operator, or a whole bracket expression, which contains no operators."""
_BACK_REFERENCE = re.compile(r"\\[1-9]")
"""Patterns with back references are not evaluated: 320 of them kept the C library busy for more than a minute."""
_MAX_PARTS = 20_000
"""Maximum number of parts of a pattern, including all copies: the C library copies a part for each repetition. The
worst patterns of this size that were found took 110 MB, or 0.3 s. A pattern for the labels of a host name,
``([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.){1,127}``, has 13,700 parts."""
_OPTIONAL_COST = 20
"""Cost of an optional part, in parts. It is high, because the memory and time for optional parts grow with the square
or the cube of their number."""
_SPAN_DIVISOR = 500
"""The cost of ``{minimum,maximum}`` is the square of the difference divided by this, because each optional copy is
linked to all copies after it. ``[a-z]{0,10000}$`` took 1.6 GB."""
_WORD_BOUNDARY_COST = 400
"""Cost of ``\\b``, ``\\B``, ``\\<`` or ``\\>``, in parts: ``(\\b.?){100}`` took 1 GB and eight seconds."""
_MAX_PATTERN_BYTES = 1000
"""Maximum length of a pattern. It is limited, because regcomp recurses for each parenthesis, and a stack overflow would
end the process."""

_LIBRARY = ctypes.CDLL(None)


def matches_any(pattern: str, texts: Iterable[str]) -> bool:
    """Return whether *pattern* matches any of *texts*, ignoring case; also True if this cannot be determined."""
    encoded = pattern.encode("utf-8", "surrogateescape")
    compiled = (ctypes.c_uint64 * _REGEX_WORDS)()
    if (
        len(encoded) > _MAX_PATTERN_BYTES
        or b"\0" in encoded
        or _BACK_REFERENCE.search(pattern)
        or part_count(pattern) > _MAX_PARTS
    ):
        return True
    if _LIBRARY.regcomp(compiled, encoded, _FLAGS) != 0:
        return True
    try:
        return any(_LIBRARY.regexec(compiled, text.encode(), 0, None, 0) == 0 for text in texts)
    finally:
        _LIBRARY.regfree(compiled)


def part_count(pattern: str) -> int:
    """Return the number of characters, bracket expressions and operators of *pattern*, including all copies."""
    outer: list[int] = []
    """For each open group, the number of parts before it in the surrounding group."""
    before, last = 0, 0
    """Number of parts in the innermost group before its last item, and in the last item, to which a repetition
    applies."""
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "(":
            outer.append(before + last)
            before, last = 0, 0
        elif text == ")" and outer:
            before, last = outer.pop(), before + last + 2
        elif text in ("*", "?"):
            last += _OPTIONAL_COST
        elif text == "|":
            before, last = before + last + _OPTIONAL_COST, 0
        elif text == "+":
            last = 2 * last + 1  # the C library reads a+ as aa*
        elif token["minimum"] is not None:
            last = last * _copies(token) + (1 if int(token["minimum"] or 0) else _OPTIONAL_COST) + _span_cost(token)
        else:
            before, last = before + last, _WORD_BOUNDARY_COST if text in (r"\b", r"\B", r"\<", r"\>") else 1
    return sum(outer) + before + last


def _copies(bounds: re.Match[str]) -> int:
    """Return the number of copies that the C library makes for ``{3}``, ``{3,}``, ``{,3}`` or ``{3,5}``."""
    minimum = int(bounds["minimum"] or 0)
    if bounds["range"] is None:
        return max(1, minimum)
    return max(1, int(bounds["maximum"])) if bounds["maximum"] else minimum + 1  # a{3,} is aaaa*


def _span_cost(bounds: re.Match[str]) -> int:
    maximum = int(bounds["maximum"] or 0)
    return max(0, maximum - int(bounds["minimum"] or 0)) ** 2 // _SPAN_DIVISOR
