"""Does ``squid.conf`` tell the check page by which connection a client came?

A file that an operator has changed is kept when the package is upgraded, and may have the header of an earlier version:
it named the client's end alone, which clients behind one NAT may have in common. ``mptcp-portal`` says nothing by it.
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
