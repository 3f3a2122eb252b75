# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler's netfilter adapters that this host supports."""

from __future__ import annotations

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.features import missing

BACKENDS = {"iptables": ("iptables-legacy", "ipset"), "nftables": ("nftables",)}


def backends() -> list[str]:
    """Return the netfilter adapters whose requirements this host meets. Raises TestbedError if there is none."""
    found = [name for name, needs in BACKENDS.items() if all(missing(feature) is None for feature in needs)]
    if not found:
        raise TestbedError("this host has neither legacy iptables with ipset nor nftables")
    return found
