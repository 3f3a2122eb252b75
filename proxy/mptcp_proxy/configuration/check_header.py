# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks that ``squid.conf`` adds the header from which the check page learns the connection of a client.

A package upgrade keeps a squid.conf that the operator has changed. Such a file may still add the header of an earlier
version, with only the client's address and port. Several clients behind a NAT may have the same address and port, so
``mptcp-portal`` does not use that header.
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
                    f"{' '.join(statement.words)}: this is from an earlier version; the check page cannot show clients "
                    "their connection",
                    statement.file,
                    statement.number,
                    allowed=" ".join(("request_header_add", name, '"%>a %>p %>la %>lp"', *acls)),
                    warning=True,
                )
