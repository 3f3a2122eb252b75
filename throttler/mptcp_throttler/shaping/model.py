# SPDX-License-Identifier: GPL-2.0-or-later
"""Values that describe the throttler's kernel objects, planned or read back, and the pending changes. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from mptcp_common.endpoints import PROXY_PORT
from mptcp_throttler.policy.model import Direction, Policy, Throttle

K = TypeVar("K")
V = TypeVar("V")

MTU = 1514  # bytes of a full Ethernet frame
SEGMENT_SECONDS = 0.005  # Maximum time that one segment may occupy a cap. This, not the queue, limits the latency.
QUEUE_SECONDS = {Direction.DOWN: 0.0075, Direction.UP: 0.06}
"""How long a full leaf queue takes to drain. For downloads it is short, so that losses limit the congestion window
before the stack's limit on queued data does. Otherwise the scheduler, which estimates the path's rate as window over
RTT, would assign a capped subflow three times the data that it can send. For uploads it is long: the sender is another
host, and if BBR there sees many losses, it assumes a policer and keeps its rate for 48 round trips."""
MIN_QUEUE_PACKETS = 4
BURST_SECONDS = 0.002
MIN_GSO_BYTES = 2 * MTU
NO_TRANSITION_SHARE = 0.7  # a lower rate needs no transition if it is at least this share of the old rate
BURST_TOLERANCE = 0.02  # relative: the kernel stores a burst as time in ticks of 64 ns, so it reads back rounded


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """One HTB leaf class (tc-htb(8)) and the limit of its queue. Rates in bits/s, sizes in bytes."""

    minor: int
    rate: int
    ceil: int
    burst: int
    cburst: int
    quantum: int
    queue_packets: int

    def same_as(self, other: ClassSpec) -> bool:
        """Return whether two classes have the same limits, apart from the kernel's rounding of bursts."""
        bursts = (self.burst, other.burst), (self.cburst, other.cburst)
        return self == replace(other, burst=self.burst, cburst=self.cburst) and all(
            abs(own_burst - burst) <= max(2, BURST_TOLERANCE * burst) for own_burst, burst in bursts
        )


def class_spec(minor: int, throttle: Throttle, users: int = 1, direction: Direction = Direction.DOWN) -> ClassSpec:
    """Return the class for *throttle* shared by up to *users* subflows; rates round up to whole bytes/s, as in HTB."""
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
        queue_packets=min(1000, max(MIN_QUEUE_PACKETS, int(ceil / 8 * QUEUE_SECONDS[direction] / MTU), users)),
    )


def gso_limit(policy: Policy, current: int) -> int:
    """Return the largest GSO segment, bytes, that the interface should build under *policy*; at most *current*."""
    rules = [rule for rule in policy.rules if Direction.DOWN in rule.direction]
    throttles = [rule.throttle for rule in rules]
    throttles += [step.throttle for rule in rules if rule.budget is not None for step in rule.budget.steps]
    ceil = min((throttle.ceil for throttle in throttles if throttle is not None), default=None)
    return current if ceil is None else min(current, max(MIN_GSO_BYTES, int(ceil / 8 * SEGMENT_SECONDS)))


class ClassCounters(NamedTuple):
    """Counters of one class since its creation, summed over all interfaces."""

    bytes: int
    packets: int
    drops: int


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a set entry: the HTB class, and our bits of the packet mark."""

    minor: int
    mark: int  # mark bits, already shifted into the mark mask


@dataclass(frozen=True, slots=True)
class SocketLimit:
    """Limits of one subflow's socket; None means no limit."""

    rate: int | None = None
    """SO_MAX_PACING_RATE, bits/s. The MPTCP scheduler uses it as the rate of the path. If it is 0, the scheduler skips
    the path (mptcp_subflow_get_send(), net/mptcp/protocol.c), and the subflow rests."""
    not_sent: int | None = None  # TCP_NOTSENT_LOWAT, bytes: the scheduler assigns nothing while more is unsent
    send_buffer: int | None = None  # permanent minimum of the send buffer, bytes: the kernel no longer adapts it


NO_LIMIT = SocketLimit()


@dataclass(frozen=True, slots=True)
class InitialOptions:
    """Settings of a subflow's socket from its acceptance on; None leaves the kernel's value."""

    not_sent: int | None = None  # as in :class:`SocketLimit`
    initial_window: int | None = None  # initial congestion window, segments
    class_id: int | None = None  # SO_PRIORITY: handle of the class of the first segments, before the entry exists
    rests: bool = False  # whether the subflow rests if it is a join (``stages.resting``)


@dataclass(frozen=True, slots=True)
class Ownership:
    """The names and numbers of the throttler's own kernel objects (docs/contract.md)."""

    listen_ports: tuple[int, ...] = (PROXY_PORT,)
    tunnel_ports: tuple[int, ...] = ()  # Local UDP ports of tunnels. They have no kernel objects.
    mark_mask: int = 0x00FF0000
    htb_major: int = 0x4D50  # major number of the root qdisc's handle: 'MP'

    @property
    def ports(self) -> tuple[int, ...]:
        """Local ports of all connections and tunnels under the policy."""
        return (*self.listen_ports, *self.tunnel_ports)

    @property
    def mark_shift(self) -> int:
        """Position of the mark mask's lowest bit."""
        return (self.mark_mask & -self.mark_mask).bit_length() - 1

    def mark_of_rule(self, index: int) -> int:
        """Return the mark bits of the policy's rule at *index* (from 0): its number from 1, shifted."""
        return (index + 1) << self.mark_shift & self.mark_mask


LINK_MINOR = 0xFFFE  # Minor number of the inner class of the whole link. Leaf classes borrow from it up to their ceil.
DEFAULT_MINOR = 0xFFFF  # minor number of the leaf class of uncapped traffic
FIRST_MINOR = 0x10
LAST_MINOR = 0x7FEF
"""Highest minor number of a cap's class. A leaf qdisc uses the minor number of its class as its handle, and the kernel
assigns handles from 0x8000 on itself."""
NFT_TABLE = "mptcp_throttler"
PLAIN_TCP_TABLE = "mptcp_throttler_plain"
UPLOAD_DEVICE = "mptcp-up"  # the IFB device for packets of subflows with an upload cap
RULE_COMMENT = "mptcp-throttler"
SET_PREFIX = "mptcp-throttler"
SMALL_PACKET = {4: 20 + 60, 6: 40 + 60}
"""Bytes of the IP header and the longest TCP header, by IP version. Packets up to this size bypass the class, because
pure ACKs must not queue."""
MAX_ENTRIES = 131_072  # maximum number of entries of an ipset, and so of subflows capped at the same time


class DeltaTracker(Generic[K, V]):
    """Desired and actual state of one kind of kernel object, and their difference. Each change updates the difference
    in O(1), as in Calico's delta tracker. *same* compares actual and desired values: the kernel rounds some values."""

    def __init__(self, same: Callable[[V, V], bool] = operator.eq) -> None:
        self.desired: dict[K, V] = {}
        self.actual: dict[K, V] = {}
        self.upserts: dict[K, V] = {}  # desired objects that are missing or differ
        self.deletes: set[K] = set()  # actual objects that are not desired
        self.kernel_changed: Callable[[Collection[K], bool], None] = lambda keys, present: None
        """Called with the objects that the kernel added or changed (True) or removed (False)."""
        self._same = same

    @property
    def settled(self) -> bool:
        return not self.upserts and not self.deletes

    def set_desired(self, key: K, value: V) -> None:
        self.desired[key] = value
        self.deletes.discard(key)
        if key in self.actual and self._same(self.actual[key], value):
            self.upserts.pop(key, None)
        else:
            self.upserts[key] = value

    def drop(self, key: K) -> None:
        """Remove *key*, which may be unknown, from the desired state."""
        self.desired.pop(key, None)
        self.upserts.pop(key, None)
        if key in self.actual:
            self.deletes.add(key)

    def set_actual(self, actual: Mapping[K, V]) -> None:
        """Replace the actual state with *actual*, which was read back, and recompute the pending sets."""
        self.actual = dict(actual)
        self.deletes = self.actual.keys() - self.desired.keys()
        for key, value in self.desired.items():
            self.set_desired(key, value)

    def record_upserts(self, objects: Mapping[K, V]) -> None:
        """Record that *objects* are now in the kernel; the desired values may have changed since."""
        for key, value in objects.items():
            self.actual[key] = value
            if key in self.desired:
                self.set_desired(key, self.desired[key])
            else:
                self.deletes.add(key)
        self.kernel_changed(objects.keys(), True)

    def record_deletes(self, keys: Collection[K]) -> None:
        for key in keys:
            self.actual.pop(key, None)
            self.deletes.discard(key)
            if key in self.desired:
                self.upserts[key] = self.desired[key]
        self.kernel_changed(keys, False)
