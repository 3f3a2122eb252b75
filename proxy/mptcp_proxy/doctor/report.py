# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-proxy doctor``."""

from __future__ import annotations

from pathlib import Path

from mptcp_common.findings import print_findings

from ..places import Places, Role


def examine(
    configuration: Path, places: Places, role: Role, throttler_settings: Path, *, as_json: bool, allow_open: bool
) -> int:
    """Examine the host and print the findings. Return 1 if any check fails, otherwise 0."""
    from .gather import examine_host
    from .gather_relay import examine_relay

    if role is Role.RELAY:
        findings = tuple(examine_relay(configuration, places, allow_open))
    else:
        findings = tuple(examine_host(configuration, places, allow_open, throttler_settings))
    return print_findings(findings, as_json=as_json)
