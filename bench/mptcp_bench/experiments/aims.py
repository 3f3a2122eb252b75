# SPDX-License-Identifier: GPL-2.0-or-later
"""Aims of our experiments: measured values with their bounds."""

from __future__ import annotations

from collections.abc import Sequence

from ..result_file import Verdict

Aim = Verdict
"""A verdict that is decided by bounds."""


def missed(aims: Sequence[Aim]) -> tuple[str, ...]:
    """Return the missed aims as text. An experiment fails if it misses an aim."""
    return tuple(str(aim) for aim in aims if not aim.met)
