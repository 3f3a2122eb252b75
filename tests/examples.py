# SPDX-License-Identifier: GPL-2.0-or-later
"""How many examples a property is tried with: a quarter of them unless all tests run (``./run test --all``)."""

from __future__ import annotations

from hypothesis import settings

ALL = 100


def examples(number: int) -> int:
    """Return the share of *number* that the profile in force, which has ``ALL`` or fewer examples, allows."""
    return number * settings().max_examples // ALL
