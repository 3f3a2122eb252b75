# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for every finding of the doctor."""

from __future__ import annotations

from mptcp_common.findings import Finding, Status


def is_complete(finding: Finding) -> bool:
    """What is not as it should be says why it matters and what corrects it."""
    return finding.status in (Status.OK, Status.UNSEEN) or bool(finding.why and finding.remedy)
