# SPDX-License-Identifier: GPL-2.0-or-later
"""A message for the operator about a problem: its place, its text, and the values that are allowed instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SECRET = re.compile(r"(\w*(?:login|passw|secret)\w*=|\bcachemgr_passwd\s+)\S+", re.IGNORECASE)
"""cache_peer's login=USER:PASSWORD and sslpassword=, cachemgr_passwd and similar, up to a blank."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration. A configuration with only warnings can be used."""

    text: str
    file: str = ""
    line: int | None = None
    allowed: str = ""
    warning: bool = False

    def __str__(self) -> str:
        """Return the message as one line, in which control characters are escaped."""
        return "".join(each if each.isprintable() else _escape(each) for each in self._unescaped_text())

    def _unescaped_text(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        return (
            f"{place}{'warning: ' if self.warning else ''}{without_secrets(self.text)}"
            f"{f' (allowed: {self.allowed})' if self.allowed else ''}"
        )


def _escape(character: str) -> str:
    return ascii(character)[1:-1]


def without_secrets(text: str) -> str:
    """Return *text*, which may contain statements of a squid.conf, without passwords, because other users may read the
    logs."""
    return _SECRET.sub(r"\1…", text)


def errors(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems that are not warnings."""
    return tuple(problem for problem in problems if not problem.warning)
