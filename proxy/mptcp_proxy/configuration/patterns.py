"""Regular expressions as Squid takes them: POSIX's extended ones, by the C library that it uses (regcomp(3)). Pure.

Python's are others: ``[[:alpha:]]``, a letter, is for Python a character of ``[:alph`` and a bracket behind it.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterable

_FLAGS = 1 | 2 | 8
"""REG_EXTENDED, REG_ICASE and REG_NOSUB of regex.h: letter case does not count, and only whether it matches."""
_ROOM = 64
"""Numbers of 64 bits: more than any C library's regex_t has."""
_REPEATED = re.compile(r"\{([0-9]{1,9})(?:,([0-9]{0,9}))?\}")
_MOST_COPIES = 100_000
"""Of a part that is repeated, the C library makes a copy for each time: of so many 0.25 GB."""
_LONGEST = 1000
"""Bytes; it goes down by one call for each parenthesis, and ends the process where there is no more stack."""

_LIBRARY = ctypes.CDLL(None)


def matches_any(pattern: str, texts: Iterable[str]) -> bool:
    """Say whether *pattern* matches any of *texts*, in either letter case; also where that cannot be found out."""
    copies = math.prod(max(1, int(least), int(most or 0)) for least, most in _REPEATED.findall(pattern))
    encoded = pattern.encode("utf-8", "surrogateescape")
    compiled = (ctypes.c_uint64 * _ROOM)()
    if len(encoded) > _LONGEST or copies > _MOST_COPIES or b"\0" in encoded:
        return True
    if _LIBRARY.regcomp(compiled, encoded, _FLAGS) != 0:
        return True
    try:
        return any(_LIBRARY.regexec(compiled, text.encode(), 0, None, 0) == 0 for text in texts)
    finally:
        _LIBRARY.regfree(compiled)
