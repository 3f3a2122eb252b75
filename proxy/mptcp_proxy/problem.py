"""What stands against a start, in words for people: the place, what is wrong, and what is allowed instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SECRET = re.compile(r"(\w*(?:login|passw|secret)\w*=|\bcachemgr_passwd\s+)\S+", re.IGNORECASE)
"""cache_peer's login=USER:PASSWORD and sslpassword=, cachemgr_passwd and the like; whatever follows up to a blank."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. A warning is worth reading, but nothing is refused because of it."""

    text: str
    file: str = ""
    line: int | None = None
    allowed: str = ""
    warning: bool = False

    def __str__(self) -> str:
        """Return one line. What a file has of control characters is shown, not obeyed by the terminal."""
        return "".join(each if each.isprintable() else _shown(each) for each in self._line())

    def _line(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        return (
            f"{place}{'warning: ' if self.warning else ''}{without_secrets(self.text)}"
            f"{f' (allowed: {self.allowed})' if self.allowed else ''}"
        )


def _shown(character: str) -> str:
    return ascii(character)[1:-1]


def without_secrets(text: str) -> str:
    """Return *text*, statements of a squid.conf perhaps, without passwords: it goes to logs that others read."""
    return _SECRET.sub(r"\1…", text)


def errors(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return those for which something is refused."""
    return tuple(problem for problem in problems if not problem.warning)
