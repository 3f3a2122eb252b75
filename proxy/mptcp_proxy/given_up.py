# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds out whether the kernel has temporarily stopped using Multipath TCP for new connections (Linux 6.12 and later).

If a peer answers the first packets of a connection only when they lack the option MP_CAPABLE, the kernel suspects that
a firewall drops this option. It then opens all connections over plain TCP for net.mptcp.blackhole_timeout seconds, and
longer each time this happens again (Documentation/networking/mptcp-sysctl.rst; net/mptcp/ctrl.c). Only the kernel's
counters show this state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SYSCTL = "net.mptcp.blackhole_timeout"
"""If this sysctl is 0, the kernel never gives up. A write to it makes the kernel try Multipath TCP again at once."""
TIMES_COUNTER, CONNECTIONS_COUNTER = "MPTcpExtBlackhole", "MPTcpExtMPCapableSYNTXDisabled"
"""Names of the kernel's counters for the fields of ``GivenUpCounts``."""
_NETSTAT = Path("/proc/thread-self/net/netstat")


@dataclass(frozen=True, slots=True)
class GivenUpCounts:
    """Counters of this network namespace, since its creation."""

    times: int = 0
    """Number of times that the kernel has given up Multipath TCP."""
    connections: int = 0
    """Number of connections that the kernel opened over plain TCP for this reason."""


def read_given_up_counts(netstat: str) -> GivenUpCounts:
    """Return the counts in *netstat*, the text of /proc/net/netstat; zeros if the kernel has no such counters."""
    lines = [line.split()[1:] for line in netstat.splitlines() if line.startswith("MPTcpExt:")]
    fields = dict(zip(*lines, strict=True)) if len(lines) == 2 and len(lines[0]) == len(lines[1]) else {}
    times, connections = (
        int(fields.get(name.removeprefix("MPTcpExt"), 0)) for name in (TIMES_COUNTER, CONNECTIONS_COUNTER)
    )
    return GivenUpCounts(times, connections)


def current_counts() -> GivenUpCounts:
    """Return the current counts; zeros if the kernel has none."""
    try:
        return read_given_up_counts(_NETSTAT.read_text())
    except OSError:
        return GivenUpCounts()


class Watch:
    """Detects whether the kernel has currently given up Multipath TCP."""

    def __init__(self, read_counts: Callable[[], GivenUpCounts] = current_counts) -> None:
        self._read_counts = read_counts
        self._last = read_counts().connections

    def new_counts(self) -> GivenUpCounts | None:
        """Return the counts if, since the last call, the kernel has opened a connection over plain TCP because it has
        given up Multipath TCP; otherwise None."""
        now = self._read_counts()
        before, self._last = self._last, now.connections
        return now if now.connections > before else None
