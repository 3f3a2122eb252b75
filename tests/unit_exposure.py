# SPDX-License-Identifier: GPL-2.0-or-later
"""How exposed each unit may be, as systemd-analyze(1) weighs it: 0 is best, 10 worst."""

from __future__ import annotations

import re
from typing import Final

MOST: Final = {
    "mptcp-proxy": 3.0,
    "mptcp-relay": 3.0,
    "mptcp-throttler": 2.5,
    "mptcp-console": 1.5,
    "mptcp-portal": 1.5,
    "mptcp-tunnel": 2.5,
    "mptcp-gateway": 2.5,
    "mptcp-forwarder": 2.0,
}


def exposure(said: str) -> float:
    """Return the figure in what ``systemd-analyze security UNIT`` has printed."""
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert level, said
    return float(level[1])
