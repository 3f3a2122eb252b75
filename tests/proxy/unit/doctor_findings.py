"""What holds for every finding of the doctor."""

from __future__ import annotations

from mptcp_common.findings import Finding, Status


def is_complete(finding: Finding) -> bool:
    """What is not OK says why it matters and what corrects it."""
    return finding.status is Status.OK or bool(finding.why and finding.remedy)
