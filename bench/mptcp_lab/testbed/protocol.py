# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a download used MPTCP, judged by the counters of its client and its proxy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mptcp_common.units import counted

from ..agent.counters import fallbacks


@dataclass(frozen=True, slots=True)
class Protocol:
    """Increments of the kernels' counters during one download."""

    requested: int
    """MPTCP connections that the client requested."""
    fallbacks: int
    """Connections that became plain TCP in any way (RFC 8684, 3.7), of client and proxy together."""
    joins: int
    """Established joins by the proxy's count: to the client, a refused subflow also looks established."""
    proxy_requested: int
    """MPTCP connections that the proxy requested; it should use plain TCP to the origin."""

    @classmethod
    def of(cls, client: Mapping[str, int], proxy: Mapping[str, int]) -> Protocol:
        """Return the Protocol for these increments of the counters of *client* and *proxy*."""
        requests = "MPTcpExtMPCapableSYNTX"
        return cls(
            requested=client.get(requests, 0),
            fallbacks=fallbacks(client) + fallbacks(proxy),
            joins=proxy.get("MPTcpExtMPJoinAckRx", 0),
            proxy_requested=proxy.get(requests, 0),
        )

    def complaint(self, *, multipath: bool) -> str | None:
        """Return the fault of a download that should use MPTCP (*multipath*) or TCP; None if there is no fault."""
        if self.proxy_requested:
            return f"the proxy sent {counted(self.proxy_requested, 'SYN')} with MP_CAPABLE towards the origin"
        if multipath and not self.requested:
            return "the client opened no MPTCP connection"
        if multipath and self.fallbacks:
            return "the connection fell back to plain TCP"
        if multipath and not self.joins:
            return "no second subflow was established"
        if not multipath and self.requested:
            return "the client opened an MPTCP connection instead of plain TCP"
        return None
