"""This host's own addresses, which no request may be for.

What counts as an own address is what the kernel delivers to itself: the "local" entries of its routing table
"local" (ip-route(8)), which hold every interface's addresses and any prefix that was routed to this host. The IPv6
addresses of NAT64 (RFC 6052, 2.1) and 6to4 (RFC 3056, 2) that have an IPv4 address of this host in them are told of as
well: what translates them, here or nearby, would come back to it.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Collection, Hashable, Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Final, Generic, TypeVar

from pyroute2 import IPRoute, NetlinkError

Network = IPv4Network | IPv6Network
TROUBLE: Final = (OSError, subprocess.SubprocessError, NetlinkError)
"""What the host may answer at any time: no space, no memory, no descriptor, no answer in time."""

_EMBEDDING = ((ip_network("64:ff9b::/96"), 96), (ip_network("2002::/16"), 16))
"""Prefixes, and how many bits of an IPv6 address come before the IPv4 address in it."""
_TABLE_LOCAL = 255  # rt_class_t RT_TABLE_LOCAL of linux/rtnetlink.h
_TYPE_LOCAL = 2  # RTN_LOCAL
# RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR, and RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE: a prefix may be routed to this
# host without any address of its own.
_GROUPS = 0x10 | 0x100 | 0x40 | 0x400


def local_prefixes() -> frozenset[Network]:
    """Return the prefixes that the kernel delivers locally, in the network namespace of this process."""
    prefixes: set[Network] = set()
    with IPRoute() as routes:
        for family, full in ((socket.AF_INET, 32), (socket.AF_INET6, 128)):
            for route in routes.get_routes(family=family, table=_TABLE_LOCAL):
                destination = route.get_attr("RTA_DST")
                if route["type"] == _TYPE_LOCAL and destination:
                    prefixes.add(ip_network((destination, route["dst_len"] or full), strict=False))
    return frozenset(prefixes)


def render(prefixes: Collection[Network]) -> str:
    """Return the file for Squid: one prefix a line. Never empty: Squid complains of a list of nothing."""
    # A prefix within another one is left out, since Squid warns of it.
    v4 = list(collapse_addresses(prefix for prefix in prefixes if isinstance(prefix, IPv4Network)))
    own = (prefix for prefix in prefixes if isinstance(prefix, IPv6Network))
    v6 = collapse_addresses([*own, *(each for prefix in v4 for each in embedded(prefix))])
    return "".join(f"{prefix}\n" for prefix in (*v4, *v6)) or "127.0.0.0/8\n"


def embedded(prefix: IPv4Network) -> Iterator[IPv6Network]:
    """Yield the IPv6 prefixes in whose addresses *prefix* stands."""
    for outer, before in _EMBEDDING:
        address = int(outer.network_address) | int(prefix.network_address) << (128 - before - 32)
        yield IPv6Network((address, before + prefix.prefixlen))


def reachable(prefixes: Iterable[Network]) -> frozenset[Network]:
    """Return those for which Squid must be told anew; the others are refused by fixed rules of squid.conf."""
    return frozenset(p for p in prefixes if not (p.is_loopback or p.is_link_local))


Item = TypeVar("Item", bound=Hashable)


class Lingering(Generic[Item]):
    """What stays for a while after it went: prefixes, so that one which comes and goes is told to Squid once.

    Squid reads its whole configuration each time. Pure: times are arguments, in seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._present: frozenset[Item] = frozenset()
        self._seen: dict[Item, float] = {}
        """When each was there the last time."""

    def wanted(self, present: Collection[Item], now: float) -> tuple[frozenset[Item], float | None]:
        """Return what there is or was of late while *present* are there, and when to ask again; None: upon a change."""
        # What was there when last asked was so until now: each change is a reason to ask.
        self._seen |= dict.fromkeys((*self._present, *present), now)
        self._present = frozenset(present)
        self._seen = {each: seen for each, seen in self._seen.items() if now - seen < self._seconds}
        gone = [seen for each, seen in self._seen.items() if each not in present]
        return frozenset(self._seen), min(gone) + self._seconds if gone else None


class Spacing:
    """How far apart things are kept that cost something each time: twice as far each time while they go on.

    It begins anew after a rest of *forget*, or of twice the interval where that is longer. Pure: times are arguments,
    in seconds.
    """

    def __init__(self, least: float, longest: float, forget: float) -> None:
        self._least, self._longest, self._forget = least, longest, forget
        self._last: float | None = None
        self.interval = least
        """What is kept free after the last one."""

    def earliest(self, now: float) -> float:
        """Return when the next one may be, *now* at the earliest."""
        return now if self._last is None else max(now, self._last + self.interval)

    def done(self, now: float) -> None:
        """Note one."""
        goes_on = self._last is not None and now - self._last < max(self._forget, 2 * self.interval)
        self.interval = min(self._longest, 2 * self.interval) if goes_on else self._least
        self._last = now


def watch() -> socket.socket:
    """Return a socket that becomes readable when an address or a route comes or goes (rtnetlink(7))."""
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    events.bind((0, _GROUPS))
    return events
