# SPDX-License-Identifier: GPL-2.0-or-later
"""All judged claims of the paper, and a function that adds the verdicts to a result. Pure."""

from __future__ import annotations

from dataclasses import replace

from . import claims, conversion_claims, throttling_claims
from .judging import Claims
from .results import PaperResult
from .summary import summarise

CLAIMS = Claims({**claims.CLAIMS, **throttling_claims.CLAIMS, **conversion_claims.CLAIMS})


def judged(result: PaperResult) -> PaperResult:
    """Return *result* with a summary of its runs, and verdicts."""
    result = replace(result, summary=summarise(result.cases, result.runs))
    return replace(result, claims=CLAIMS.judge(result))
