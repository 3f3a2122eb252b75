# SPDX-License-Identifier: GPL-2.0-or-later
"""A check that each finding of the doctor must pass."""

from __future__ import annotations

from mptcp_common.findings import Finding, Status


def is_complete(finding: Finding) -> bool:
    """Return whether a finding that is not ok has its reason and a remedy."""
    return finding.status in (Status.OK, Status.UNSEEN) or bool(finding.why and finding.remedy)
