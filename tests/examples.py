# SPDX-License-Identifier: GPL-2.0-or-later
"""Number of examples for property tests. Without ``--all``, only a quarter of the examples run."""

from __future__ import annotations

from hypothesis import settings

ALL = 100


def examples(number: int) -> int:
    """Return *number*, reduced in proportion to the examples of the current profile."""
    return number * settings().max_examples // ALL
