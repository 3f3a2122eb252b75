"""Whether the kernel has given up opening connections by Multipath TCP, for some time (Linux 6.12 and newer).

It does where the first packets of a connection are not answered with the option MP_CAPABLE, and then are without it: it
takes that for the doing of a firewall, and opens every connection by plain TCP for net.mptcp.blackhole_timeout seconds,
and for longer each time that it happens again (Documentation/networking/mptcp-sysctl.rst; net/mptcp/ctrl.c). It tells
nobody but its counters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SYSCTL = "net.mptcp.blackhole_timeout"
"""0: it never does. Writing to it has it try again at once."""
TIMES, CONNECTIONS = "MPTcpExtBlackhole", "MPTcpExtMPCapableSYNTXDisabled"
_NETSTAT = Path("/proc/thread-self/net/netstat")


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Counts of this network namespace, since it was made."""

    times: int = 0
    """How often the kernel gave up."""
    connections: int = 0
    """How many it opened by plain TCP for that."""


def read_given_up(netstat: str) -> GivenUp:
    """Return what /proc/net/netstat says; nothing where the kernel is too old to give up."""
    lines = [line.split()[1:] for line in netstat.splitlines() if line.startswith("MPTcpExt:")]
    fields = dict(zip(*lines, strict=True)) if len(lines) == 2 and len(lines[0]) == len(lines[1]) else {}
    times, connections = (int(fields.get(name.removeprefix("MPTcpExt"), 0)) for name in (TIMES, CONNECTIONS))
    return GivenUp(times, connections)


def given_up() -> GivenUp:
    """Ask the kernel. Nothing where it has no Multipath TCP."""
    try:
        return read_given_up(_NETSTAT.read_text())
    except OSError:
        return GivenUp()


class Watch:
    """Finds out that it happens, while it happens."""

    def __init__(self, look: Callable[[], GivenUp] = given_up) -> None:
        self._look = look
        self._last = look().connections

    def in_force(self) -> GivenUp | None:
        """Return the counts where a connection was opened by plain TCP, for this reason, since the last look."""
        now = self._look()
        before, self._last = self._last, now.connections
        return now if now.connections > before else None
