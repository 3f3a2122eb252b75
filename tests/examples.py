# SPDX-License-Identifier: GPL-2.0-or-later
"""Number of examples for property tests: a quarter of all, unless all tests run (``./run test --all``)."""

from __future__ import annotations

from hypothesis import settings

ALL = 100


def examples(number: int) -> int:
    """Return the share of *number* for the current profile, which has ``ALL`` examples or fewer."""
    return number * settings().max_examples // ALL
