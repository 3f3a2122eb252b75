# SPDX-License-Identifier: GPL-2.0-or-later
"""Highest allowed exposure of each unit by systemd-analyze(1): 0 is best, 10 is worst."""

from __future__ import annotations

import re
from typing import Final

MAX_EXPOSURE: Final = {
    "mptcp-proxy": 3.0,
    "mptcp-relay": 3.0,
    "mptcp-throttler": 2.5,
    "mptcp-console": 1.5,
    "mptcp-portal": 1.5,
    "mptcp-tunnel": 2.5,
    "mptcp-gateway": 2.5,
    "mptcp-forwarder": 2.0,
}


def exposure(output: str) -> float:
    """Return the exposure in *output*, the output of ``systemd-analyze security UNIT``."""
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", output)
    assert level, output
    return float(level[1])
