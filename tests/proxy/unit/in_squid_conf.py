# SPDX-License-Identifier: GPL-2.0-or-later
"""A helper that parses statements of a squid.conf."""

from __future__ import annotations

from collections.abc import Sequence

from mptcp_proxy.configuration.source import PhysicalLine, Statement, statements


def parse(*texts: str) -> Sequence[Statement]:
    """Return the statements of a file with the lines *texts*."""
    return list(statements([PhysicalLine("squid.conf", n, text) for n, text in enumerate(texts, 1)], "n"))
