# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a download used MPTCP, by the counters of its client and its proxy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..agent.counters import fallbacks


@dataclass(frozen=True, slots=True)
class Protocol:
    """The kernel's counters for one download."""

    requested: int
    """MPTCP connections that the client asked for."""
    fallbacks: int
    """Connections of client and proxy that became plain TCP, in whatever way: RFC 8684, 3.7."""
    joins: int
    """Established joined subflows, counted at the proxy: to the client a refused one looks established, too."""
    proxy_requested: int
    """MPTCP connections that the proxy asked for; it should ask for none, because it speaks plain TCP to the origin."""
    # Counted where the SYN leaves: an origin that listens on plain TCP counts no received MP_CAPABLE.

    @classmethod
    def of(cls, client: Mapping[str, int], proxy: Mapping[str, int]) -> Protocol:
        """Return the increments of the counters of *client* and *proxy* as a Protocol."""
        asked = "MPTcpExtMPCapableSYNTX"
        return cls(
            requested=client.get(asked, 0),
            fallbacks=fallbacks(client) + fallbacks(proxy),
            joins=proxy.get("MPTcpExtMPJoinAckRx", 0),
            proxy_requested=proxy.get(asked, 0),
        )

    def complaint(self, *, multipath: bool) -> str | None:
        """Return what is wrong with a download that should, or should not, use MPTCP."""
        if self.proxy_requested:
            return f"the proxy sent {self.proxy_requested} SYNs with MP_CAPABLE towards the origin"
        if multipath and not self.requested:
            return "the client opened no MPTCP connection"
        if multipath and self.fallbacks:
            return "the connection fell back to plain TCP"
        if multipath and not self.joins:
            return "no second subflow was established"
        if not multipath and self.requested:
            return "the client opened an MPTCP connection where plain TCP was wanted"
        return None
