"""The kernel objects that the throttler owns, as values. Both the plan and what is read back are made of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mptcp_common.endpoints import PROXY_PORT
from mptcp_throttler.policy.model import Direction, Policy, Throttle
from mptcp_throttler.policy.values import Network

MTU = 1514
"""Bytes of a full Ethernet frame."""
SEGMENT_SECONDS = 0.005
"""How long one segment may occupy a cap: this, not the queue, bounds latency (docs/design.md)."""
QUEUE_SECONDS = {Direction.DOWN: 0.0075, Direction.UP: 0.06}
"""How long a full leaf queue takes to drain. Towards the client it is short, so that losses and not the stack's limit
on what waits below it govern the congestion window: the scheduler takes window over RTT for the path's rate, and would
hand a capped subflow three times what it can send, at the cost of the other path (docs/design.md). From the client no
stack of ours waits, and BBR there takes many losses for a policer's: it then keeps its rate for 48 round trips."""
QUEUE_FLOOR = 4
PACKETS_PER_SUBFLOW = 1
BURST_SECONDS = 0.002
GSO_FLOOR = 2 * MTU
GENTLE_FALL = 0.7
"""A cap that is at least that share of a rate needs no transition."""
BURST_TOLERANCE = 0.02
"""The kernel keeps a burst as a time in ticks of 64 ns and gives it back rounded, more so at high rates."""


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """One HTB leaf class (tc-htb(8)) and the length of its queue. Rates in bits/s, sizes in bytes."""

    minor: int
    rate: int
    ceil: int
    burst: int
    cburst: int
    quantum: int
    queue_packets: int
    """Limit of the leaf's queue, in packets."""

    def same_as(self, other: ClassSpec) -> bool:
        """Tell whether two classes shape alike, the kernel's rounding of bursts aside."""
        exact = (self.minor, self.rate, self.ceil, self.quantum, self.queue_packets)
        return exact == (other.minor, other.rate, other.ceil, other.quantum, other.queue_packets) and all(
            abs(mine - theirs) <= max(2, BURST_TOLERANCE * theirs)
            for mine, theirs in ((self.burst, other.burst), (self.cburst, other.cburst))
        )


def class_spec(minor: int, throttle: Throttle, room: int = 1, direction: Direction = Direction.DOWN) -> ClassSpec:
    """Return the HTB class for *throttle* shared by up to *room* subflows.

    Rates are rounded up to whole bytes per second, the kernel's unit.
    """
    rate, ceil = (-(-value // 8) * 8 for value in (throttle.rate, throttle.ceil))

    def burst(bits_per_second: int) -> int:
        return throttle.burst or max(2 * MTU, int(bits_per_second / 8 * BURST_SECONDS))

    return ClassSpec(
        minor=minor,
        rate=rate,
        ceil=ceil,
        burst=burst(rate),
        cburst=burst(ceil),
        quantum=min(60_000, max(MTU, rate // 8 // 100)),
        queue_packets=min(
            1000, max(QUEUE_FLOOR, int(ceil / 8 * QUEUE_SECONDS[direction] / MTU), PACKETS_PER_SUBFLOW * room)
        ),
    )


def gso_limit(policy: Policy, present: int) -> int:
    """Return the largest GSO segment in bytes that the interface should build under *policy*, never above *present*."""
    rules = [rule for rule in policy.rules if Direction.DOWN in rule.direction]
    throttles = [rule.throttle for rule in rules]
    throttles += [step.throttle for rule in rules if rule.budget is not None for step in rule.budget.steps]
    ceils = [throttle.ceil for throttle in throttles if throttle is not None]
    if not ceils:
        return present
    return min(present, max(GSO_FLOOR, int(min(ceils) / 8 * SEGMENT_SECONDS)))


class ClassCounters(NamedTuple):
    """What one class passed since it was made, on all interfaces together."""

    bytes: int
    packets: int
    drops: int


@dataclass(frozen=True, slots=True)
class Target:
    """Where a set entry sends its subflow: the HTB class, and the value of our bits of the packet mark."""

    minor: int
    mark: int
    """Already shifted into the mark mask."""


@dataclass(frozen=True, slots=True)
class PlainTcpCap:
    """A path whose plain TCP is in a class: without Multipath TCP's option no packet of a capped subflow is."""

    target: Target
    clients: tuple[Network, ...] | None
    interfaces: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class SocketLimit:
    """What one subflow's socket may do; None is no limit."""

    rate: int | None = None
    """SO_MAX_PACING_RATE, bits/s. The MPTCP scheduler takes it for the rate of the path; at 0 it passes the path over
    (mptcp_subflow_get_send(), net/mptcp/protocol.c), and the subflow rests."""
    not_sent: int | None = None
    """TCP_NOTSENT_LOWAT, bytes: with more than that assigned and not yet sent, nothing more is assigned."""
    send_buffer: int | None = None
    """Bytes that its send buffer has at least, from here on for good: the kernel no longer fits it to the window."""


NO_LIMIT = SocketLimit()


@dataclass(frozen=True, slots=True)
class Birth:
    """What a subflow's socket has from the moment in which it is accepted; None leaves the kernel's own."""

    not_sent: int | None = None
    """TCP_NOTSENT_LOWAT, bytes, as in :class:`SocketLimit`."""
    initial_window: int | None = None
    """Segments that it sends before the first is acknowledged."""
    class_id: int | None = None
    """Handle of the class that its first segments go through until it has an entry: what SO_PRIORITY is set to."""
    rests: bool = False
    """It rests if it is a join (``stages.resting``)."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The names by which the throttler knows its own objects; docs/contract.md."""

    listen_ports: tuple[int, ...] = (PROXY_PORT,)
    tunnel_ports: tuple[int, ...] = ()
    """Local ports of tunnels' UDP packets. Nothing in the kernel is for them."""
    mark_mask: int = 0x00FF0000
    htb_major: int = 0x4D50
    """Major number of the root qdisc's handle: 'MP'."""

    @property
    def ports(self) -> tuple[int, ...]:
        """Local ports of all that the policy is for."""
        return (*self.listen_ports, *self.tunnel_ports)

    @property
    def mark_shift(self) -> int:
        """Position of the mark mask's lowest bit."""
        return (self.mark_mask & -self.mark_mask).bit_length() - 1

    def mark_of_rule(self, index: int) -> int:
        """Return the mark bits of the rule at *index* (from 0) of the policy: its number, from 1."""
        return (index + 1) << self.mark_shift & self.mark_mask


LINK_MINOR = 0xFFFE
"""The inner class that stands for the whole link: leaf classes borrow from it up to their ceil."""
DEFAULT_MINOR = 0xFFFF
"""The leaf class of everything that is not capped."""
FIRST_MINOR = 0x10
LAST_MINOR = 0x7FEF
"""A class's leaf qdisc has the class's minor number as its handle; from 0x8000 the kernel numbers qdiscs by itself."""
NFT_TABLE = "mptcp_throttler"
PLAIN_TCP_TABLE = "mptcp_throttler_plain"
UPLOAD_DEVICE = "mptcp-up"
"""The IFB device through which packets of subflows that are capped on upload pass."""
RULE_COMMENT = "mptcp-throttler"
SET_PREFIX = "mptcp-throttler"
SMALL_PACKET = {4: 20 + 60, 6: 40 + 60}
"""Bytes that a packet without data has at the most, by IP version: IP header and the longest TCP header. Such packets
stay out of the class of their subflow: a pure ACK shall not wait behind a queue of data."""
MAX_ENTRIES = 131_072
"""Of one ipset: subflows capped at the same time."""
