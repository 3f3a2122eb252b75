"""Whether a download was Multipath TCP, by the counters of its client and its proxy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..agent.counters import fallbacks


@dataclass(frozen=True, slots=True)
class Protocol:
    """What the kernel's counters say of one download."""

    requested: int
    """MPTCP connections that the client asked for."""
    fallbacks: int
    """Connections of client and proxy that became plain TCP, by whatever way: RFC 8684, 3.7."""
    joins: int
    """Joined subflows that were established, counted at the proxy: to the client one that is refused looks so, too."""
    proxy_requested: int
    """MPTCP connections that the proxy asked for. It should ask for none: towards the origin it speaks plain TCP."""
    # Counted where the SYN leaves: an origin that listens on plain TCP counts no MP_CAPABLE that it is sent.

    @classmethod
    def of(cls, client: Mapping[str, int], proxy: Mapping[str, int]) -> Protocol:
        """Return what was added to the counters of *client* and *proxy* in these terms."""
        asked = "MPTcpExtMPCapableSYNTX"
        return cls(
            requested=client.get(asked, 0),
            fallbacks=fallbacks(client) + fallbacks(proxy),
            joins=proxy.get("MPTcpExtMPJoinAckRx", 0),
            proxy_requested=proxy.get(asked, 0),
        )

    def complaint(self, *, multipath: bool) -> str | None:
        """Return what is wrong for a download that should, or should not, be Multipath TCP."""
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
