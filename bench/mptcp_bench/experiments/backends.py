# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler's netfilter adapters, and the features of this host that each adapter needs."""

from __future__ import annotations

from mptcp_lab.testbed.features import missing

BACKENDS = {"iptables": ("iptables-legacy", "ipset"), "nftables": ("nftables",)}


def lacking(name: str) -> str | None:
    """Return why this host cannot use the adapter *name*; None if it can."""
    return next((why for feature in BACKENDS[name] if (why := missing(feature)) is not None), None)
