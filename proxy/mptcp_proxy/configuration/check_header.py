# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks that ``squid.conf`` tells the check page by which connection a client came.

A package upgrade keeps a changed file, which may have an earlier version's header: it named only the client's end,
which clients behind one NAT may share. ``mptcp-portal`` does not use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..problem import Problem
from .source import Statement

_HEADER: Final = "mptcp-client"


def check_header_problems(statements: Sequence[Statement]) -> Iterator[Problem]:
    """Yield a warning for each statement that adds the header of an earlier version."""
    for statement in statements:
        match statement.words:
            case ("request_header_add", name, '"%>a', '%>p"', *acls) if name.lower() == _HEADER:
                yield Problem(
                    f"{' '.join(statement.words)}: of an earlier version: the check page cannot tell clients how they "
                    "are connected",
                    statement.file,
                    statement.number,
                    allowed=" ".join(("request_header_add", name, '"%>a %>p %>la %>lp"', *acls)),
                    warning=True,
                )
