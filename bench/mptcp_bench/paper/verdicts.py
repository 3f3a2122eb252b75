# SPDX-License-Identifier: GPL-2.0-or-later
"""All claims of the paper, which their modules register, and their verdicts. Pure."""

from __future__ import annotations

from ..result_file import Verdict
from . import claims, conversion_claims, throttling_claims
from .judging import CLAIMS
from .results import Measurements

__all__ = ["CLAIMS", "claims", "conversion_claims", "judged", "throttling_claims"]


def judged(measured: Measurements) -> tuple[Verdict, ...]:
    """Return a verdict on each claim about the scenario of *measured*."""
    return tuple(each.judge(measured) for each in CLAIMS.get(measured.experiment, ()))
