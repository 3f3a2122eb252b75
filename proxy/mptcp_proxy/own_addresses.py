# SPDX-License-Identifier: GPL-2.0-or-later
"""This host's own addresses, to which the proxy must not pass requests.

These are the addresses whose packets the kernel delivers locally: the "local" entries of the routing table "local"
(ip-route(8)), which has the addresses of all interfaces and the prefixes that are routed to this host. The list also
contains the IPv6 addresses of NAT64 (RFC 6052, 2.1) and 6to4 (RFC 3056, 2) that embed an IPv4 address of this host. A
translator would forward packets with such a destination to this host.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Collection, Hashable, Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Final, Generic, TypeVar

from pyroute2 import IPRoute, NetlinkError

Network = IPv4Network | IPv6Network
SYSTEM_ERRORS: Final = (OSError, subprocess.SubprocessError, NetlinkError)
"""Errors of the host that may occur at any time: no space, memory or descriptor, or no answer in time."""

_EMBEDDING = ((ip_network("64:ff9b::/96"), 96), (ip_network("2002::/16"), 16))
"""Prefixes, and the number of bits before the embedded IPv4 address."""
_TABLE_LOCAL = 255  # rt_class_t RT_TABLE_LOCAL of linux/rtnetlink.h
_TYPE_LOCAL = 2  # RTN_LOCAL
# RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE. Routes are watched as well, because a
# prefix may be routed to this host although no interface has an address in it.
_GROUPS = 0x10 | 0x100 | 0x40 | 0x400


def local_prefixes() -> frozenset[Network]:
    """Return the prefixes that the kernel delivers locally in this network namespace."""
    prefixes: set[Network] = set()
    with IPRoute() as routes:
        for family, full in ((socket.AF_INET, 32), (socket.AF_INET6, 128)):
            for route in routes.get_routes(family=family, table=_TABLE_LOCAL):
                destination = route.get_attr("RTA_DST")
                if route["type"] == _TYPE_LOCAL and destination:
                    prefixes.add(ip_network((destination, route["dst_len"] or full), strict=False))
    return frozenset(prefixes)


def render(prefixes: Collection[Network]) -> str:
    """Return the content of the file for Squid: one prefix per line. It is never empty, because Squid warns of an empty
    list."""
    # Collapse the prefixes, because Squid warns of a prefix within another prefix.
    v4 = list(collapse_addresses(prefix for prefix in prefixes if isinstance(prefix, IPv4Network)))
    own_ipv6 = (prefix for prefix in prefixes if isinstance(prefix, IPv6Network))
    v6 = collapse_addresses([*own_ipv6, *(each for prefix in v4 for each in embedding_prefixes(prefix))])
    return "".join(f"{prefix}\n" for prefix in (*v4, *v6)) or "127.0.0.0/8\n"


def embedding_prefixes(prefix: IPv4Network) -> Iterator[IPv6Network]:
    """Yield the IPv6 prefixes that embed *prefix*."""
    for outer, before in _EMBEDDING:
        address = int(outer.network_address) | int(prefix.network_address) << (128 - before - 32)
        yield IPv6Network((address, before + prefix.prefixlen))


def without_fixed_rule(prefixes: Iterable[Network]) -> frozenset[Network]:
    """Return the prefixes that only the list refuses. For the others, loopback and link-local, squid.conf has
    fixed rules."""
    return frozenset(p for p in prefixes if not (p.is_loopback or p.is_link_local))


Item = TypeVar("Item", bound=Hashable)


class Lingering(Generic[Item]):
    """Keeps items for *seconds* after they disappeared, so that an address that disappears and returns causes only one
    reload of Squid. Pure: times are arguments, in seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._present: frozenset[Item] = frozenset()
        self._last_seen: dict[Item, float] = {}

    def update(self, present: Collection[Item], now: float) -> tuple[frozenset[Item], float | None]:
        """Set the *present* items. Return them with the items that disappeared recently, and the time at which the next
        of these expires (None: none does)."""
        # Items that were present at the last call were present until now, because every change causes a call.
        self._last_seen |= dict.fromkeys((*self._present, *present), now)
        self._present = frozenset(present)
        self._last_seen = {each: time for each, time in self._last_seen.items() if now - time < self._seconds}
        absent_since = [time for each, time in self._last_seen.items() if each not in present]
        return frozenset(self._last_seen), min(absent_since) + self._seconds if absent_since else None


class Spacing:
    """Limits the rate of costly actions. While they continue, the interval between them doubles from *minimum* to
    *maximum*. It returns to *minimum* after *quiet* seconds without an action, or twice the interval if that is longer.
    Pure: times are arguments, in seconds."""

    def __init__(self, minimum: float, maximum: float, quiet: float) -> None:
        self._minimum, self._maximum, self._quiet = minimum, maximum, quiet
        self._last: float | None = None
        self.interval = minimum
        """Minimum seconds from the last action to the next."""

    def earliest(self, now: float) -> float:
        """Return the earliest time of the next action, at least *now*."""
        return now if self._last is None else max(now, self._last + self.interval)

    def record(self, now: float) -> None:
        """Record an action at the time *now*."""
        continues = self._last is not None and now - self._last < max(self._quiet, 2 * self.interval)
        self.interval = min(self._maximum, 2 * self.interval) if continues else self._minimum
        self._last = now


def address_change_socket() -> socket.socket:
    """Return a socket that becomes readable when an address or a route changes (rtnetlink(7))."""
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    events.bind((0, _GROUPS))
    return events
