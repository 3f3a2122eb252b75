# SPDX-License-Identifier: GPL-2.0-or-later
"""Aims of our experiments: a measured value, its accepted range and the verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from ..result_file import Verdict
from ..statistics import fmean, no_less_than

Aim = Verdict
"""Our experiments' name for a verdict that is decided by bounds."""


def no_less(what: str, sample: Sequence[float], reference: Sequence[float] | float, margin: float) -> Aim:
    """Return the aim that *sample* is no less than *reference*, as :func:`statistics.no_less_than` defines it.

    The aim's value is the lower confidence bound of the mean of *sample*, divided by the reference's mean. This value
    must be at least 1 - *margin*. If there are too few values or the reference is 0, the value is NaN, so that the aim
    is missed.
    """
    value = nan
    if sample and reference:
        reference_mean = reference if isinstance(reference, int | float) else fmean(reference)
        low = no_less_than(sample, reference, margin).low
        value = nan if low is None or not reference_mean else 1 - margin + low / reference_mean
    return Aim(f"{what}, lower bound", value, least=1 - margin)


def missed(aims: Sequence[Aim]) -> tuple[str, ...]:
    """Return the missed aims as text. An experiment fails if it misses an aim."""
    return tuple(str(aim) for aim in aims if not aim.met)
