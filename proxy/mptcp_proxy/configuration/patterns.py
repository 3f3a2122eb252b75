# SPDX-License-Identifier: GPL-2.0-or-later
"""Matches regular expressions as Squid does: POSIX extended ones, by the C library (regcomp(3)). Pure.

Python's syntax differs. For example, ``[[:alpha:]]`` is a letter in POSIX, but for Python one of the characters
``[:alph`` followed by a bracket.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable

_FLAGS = 1 | 2 | 8
"""REG_EXTENDED, REG_ICASE and REG_NOSUB of regex.h."""
_ROOM = 64
"""Size of the buffer for a regex_t, in 64-bit words: larger than in any C library."""
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\[([:.=])[^\]]*\1\]|[^\]])*\]|\{(?P<least>[0-9]*)(?P<range>,(?P<most>[0-9]*))?\}|.", re.DOTALL
)
"""A character, an operator, or a whole bracket expression, which contains no operators."""
_BACKWARD = re.compile(r"\\[1-9]")
"""Back references. They are not evaluated, because 320 of them kept the C library busy for more than a minute."""
_MOST_PARTS = 20_000
"""Maximum number of parts, including all copies: the C library copies a part for each repetition. The worst pattern
found took 110 MB, another 0.3 s. A chain of labels of a host name,
``([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.){1,127}``, has 13,700 parts."""
_MAY_BE_ABSENT = 20
"""Cost of an optional part, in parts. It is high, because the cost of optional parts grows with the square or the cube
of their number."""
_SPAN = 500
"""The cost of ``{least,most}`` is the square of the difference divided by this, because each optional copy is linked to
all copies after it. ``[a-z]{0,10000}$`` took 1.6 GB."""
_AT_A_WORD = 400
"""Cost in parts of ``\\b``, ``\\B``, ``\\<`` or ``\\>``: ``(\\b.?){100}`` took 1 GB and eight seconds."""
_LONGEST = 1000
"""Maximum length of a pattern, bytes. It is limited, because regcomp recurses for each parenthesis, and a stack
overflow would end the process."""

_LIBRARY = ctypes.CDLL(None)


def matches_any(pattern: str, texts: Iterable[str]) -> bool:
    """Return whether *pattern* matches any of *texts*, ignoring case; also True if this cannot be determined."""
    encoded = pattern.encode("utf-8", "surrogateescape")
    compiled = (ctypes.c_uint64 * _ROOM)()
    if len(encoded) > _LONGEST or b"\0" in encoded or _BACKWARD.search(pattern) or parts(pattern) > _MOST_PARTS:
        return True
    if _LIBRARY.regcomp(compiled, encoded, _FLAGS) != 0:
        return True
    try:
        return any(_LIBRARY.regexec(compiled, text.encode(), 0, None, 0) == 0 for text in texts)
    finally:
        _LIBRARY.regfree(compiled)


def parts(pattern: str) -> int:
    """Return how many characters, bracket expressions and operators *pattern* has, with all copies."""
    around: list[int] = []
    """Number of parts before each open group."""
    before, last = 0, 0
    """Number of parts in the innermost group before its last item, and in the last item, to which a repetition
    applies."""
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "(":
            around.append(before + last)
            before, last = 0, 0
        elif text == ")" and around:
            before, last = around.pop(), before + last + 2
        elif text in ("*", "?"):
            last += _MAY_BE_ABSENT
        elif text == "|":
            before, last = before + last + _MAY_BE_ABSENT, 0
        elif text == "+":
            last = 2 * last + 1  # the C library reads a+ as aa*
        elif token["least"] is not None:
            last = last * _copies(token) + (1 if int(token["least"] or 0) else _MAY_BE_ABSENT) + _span(token)
        else:
            before, last = before + last, _AT_A_WORD if text in (r"\b", r"\B", r"\<", r"\>") else 1
    return sum(around) + before + last


def _copies(bounds: re.Match[str]) -> int:
    """Return the number of copies that the C library makes by ``{3}``, ``{3,}``, ``{,3}`` or ``{3,5}``."""
    least = int(bounds["least"] or 0)
    if bounds["range"] is None:
        return max(1, least)
    return max(1, int(bounds["most"])) if bounds["most"] else least + 1  # a{3,} is aaaa*


def _span(bounds: re.Match[str]) -> int:
    most = int(bounds["most"] or 0)
    return max(0, most - int(bounds["least"] or 0)) ** 2 // _SPAN
