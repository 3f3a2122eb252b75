# SPDX-License-Identifier: GPL-2.0-or-later
"""A requirement on every finding of the doctor."""

from __future__ import annotations

from mptcp_common.findings import Finding, Status


def is_complete(finding: Finding) -> bool:
    """Return whether a finding that is not ok says why it matters and how to correct it."""
    return finding.status in (Status.OK, Status.UNSEEN) or bool(finding.why and finding.remedy)
