# SPDX-License-Identifier: GPL-2.0-or-later
"""All judged claims of the paper, and a result with its verdicts. Pure."""

from __future__ import annotations

from dataclasses import replace

from . import claims, conversion_claims, throttling_claims
from .judging import Claims
from .results import PaperResult
from .summary import summarise

CLAIMS = Claims({**claims.CLAIMS, **throttling_claims.CLAIMS, **conversion_claims.CLAIMS})


def judged(result: PaperResult) -> PaperResult:
    """Return *result* with the summary and verdicts of its runs."""
    result = replace(result, summary=summarise(result.cases, result.runs))
    return replace(result, claims=CLAIMS.judge(result))
