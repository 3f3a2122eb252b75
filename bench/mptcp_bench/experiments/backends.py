"""Which of the throttler's netfilter adapters this host can have."""

from __future__ import annotations

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.features import missing

BACKENDS = {"iptables": ("iptables-legacy", "ipset"), "nftables": ("nftables",)}
"""The throttler's netfilter adapters and what each needs."""


def backends() -> list[str]:
    """Return the netfilter adapters that this host has all for.

    :raises TestbedError: there is none
    """
    found = [name for name, needs in BACKENDS.items() if all(missing(feature) is None for feature in needs)]
    if not found:
        raise TestbedError("this host has neither legacy iptables with ipset nor nftables")
    return found
