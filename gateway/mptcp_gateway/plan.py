# SPDX-License-Identifier: GPL-2.0-or-later
"""The routes, rules and endpoints that the kernel must have for the current uplinks. Pure.

- Each way (an uplink, with one IP version) has a routing table. Packets from its addresses use this table, unless their
  destination is a local network. So a subflow uses its own uplink.
- New connections to a parent, which have no source address yet, use the first good way in the order of the uplinks. All
  other packets of the host keep their routes.
- The address of a way that carries Multipath TCP is an endpoint, from which the kernel opens subflows. While the way is
  dead, it has no endpoint: the kernel closes the subflows there and informs the other end, which uses other subflows
  immediately. When the way recovers, the kernel opens new subflows on all open connections.
- If this host is the gateway of a home network, that network's packets use the first good way. A connection stays on
  the way on which it began, because of its mark (``firewall``). Packets with the forwarder's mark are delivered
  locally.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mptcp_gateway.model import MARK_MASK, Access, Address, Lan, Mark, Network, Verdict, Way, uplink_mark

MAIN: Final = 254
"""Number of the main table (rtnetlink(7)), which has other programs' routes."""
BEST_TABLE: Final = 7720
FIRST_TABLE: Final = 7721
"""Table of the first uplink; the numbers of the other uplinks' tables follow."""
MAX_UPLINKS: Final = 8
MAX_ENDPOINTS: Final = 8
"""The kernel's limit (MPTCP_PM_ADDR_MAX)."""
DELIVER_TABLE: Final = FIRST_TABLE + MAX_UPLINKS
TUNNEL_TABLE: Final = DELIVER_TABLE + 1
TABLES: Final = range(BEST_TABLE, TUNNEL_TABLE + 1)
DELIVER_PRIORITY: Final = 7720
LOCAL_PRIORITY: Final = 7721
OWN_PRIORITY: Final = 7722
BEST_PRIORITY: Final = 7723
MARK_PRIORITY: Final = 7724
HOME_PRIORITY: Final = 7725
"""Priorities of the rules, from DELIVER_PRIORITY on in the order in which the kernel tries them."""
PRIORITIES: Final = range(DELIVER_PRIORITY, HOME_PRIORITY + 1)
_LOOPBACK: Final = 1
"""The index of the device lo, in each network namespace."""
_PREFERENCE: Final = (Verdict.GOOD, Verdict.UNTRIED, Verdict.PLAIN, Verdict.DEAD)


@dataclass(frozen=True, slots=True)
class Route:
    """One route; without a *destination*, the default route. *local*: deliver to this host."""

    table: int
    version: int
    destination: Network | None
    index: int
    gateway: Address | None
    source: Address | None
    """The default source address; if None, the kernel chooses one of the device."""
    local: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, for packets from or to an address; None means any. *ignores_default_routes*: only more specific
    routes of the table are used.

    *device*: the incoming interface; empty means any. *mark*: the packets' mark; 0 means any.
    """

    priority: int
    version: int
    source: Address | None
    destination: Address | None
    table: int
    ignores_default_routes: bool = False
    device: str = ""
    mark: int = 0


@dataclass(frozen=True, slots=True)
class Endpoint:
    address: Address
    device: str


@dataclass(frozen=True, slots=True)
class Objects:
    """All objects of the gateway in the kernel."""

    routes: frozenset[Route] = frozenset()
    rules: frozenset[Rule] = frozenset()
    endpoints: frozenset[Endpoint] = frozenset()


def with_distinct_addresses(
    order: Sequence[str], access_by_way: Mapping[Way, Access]
) -> tuple[dict[Way, Access], dict[Way, str]]:
    """Return two mappings: the ways with distinct addresses, in order; and each other way, with the uplink of the
    earlier way that has the same address. No rule could distinguish the packets of two ways with one address."""
    distinct: dict[Way, Access] = {}
    duplicates: dict[Way, str] = {}
    uplink_of: dict[Address, str] = {}
    for way in in_order(order, access_by_way):
        address = access_by_way[way].address
        if address in uplink_of:
            duplicates[way] = uplink_of[address]
        else:
            uplink_of[address], distinct[way] = way.uplink, access_by_way[way]
    return distinct, duplicates


def in_order(order: Sequence[str], ways: Iterable[Way]) -> list[Way]:
    return sorted(ways, key=lambda way: (order.index(way.uplink), way.version))


def best_way(order: Sequence[str], verdicts: Mapping[Way, Verdict], version: int) -> Way | None:
    """Return the way on which connections begin; None if that version has no way."""
    ways = [way for uplink in order if (way := Way(uplink, version)) in verdicts]
    return min(ways, key=lambda way: _PREFERENCE.index(verdicts[way]), default=None)


def make_plan(
    order: Sequence[str],
    access_by_way: Mapping[Way, Access],
    verdicts: Mapping[Way, Verdict],
    parents: Iterable[Address],
    lan: Lan | None = None,
    tunnel: tuple[int, Collection[int]] | None = None,
) -> Objects:
    """Return the objects that the kernel must have.

    *order*: the uplinks, preferred first. *parents*: their known addresses. If there are more endpoints than the kernel
    allows, the last are omitted. *tunnel*: the tunnel device's index and IP versions, if it is up. The tunnel's
    own packets use the uplinks. Therefore, the tunnel is used only if at least one way is good.
    """
    routes: set[Route] = set()
    rules: set[Rule] = set()
    sources: set[Address] = set()
    for way in in_order(order, access_by_way):
        access, table = access_by_way[way], FIRST_TABLE + order.index(way.uplink)
        routes.update(_routes(table, access))
        for source in {access.address, *access.other_addresses} - sources:
            rules.add(Rule(LOCAL_PRIORITY, way.version, source, None, MAIN, ignores_default_routes=True))
            rules.add(Rule(OWN_PRIORITY, way.version, source, None, table))
            sources.add(source)
    best_ways = {version: best_way(order, verdicts, version) for version in (4, 6)}
    for chosen in best_ways.values():
        if chosen is not None and chosen in access_by_way:
            routes.update(each for each in _routes(BEST_TABLE, access_by_way[chosen]) if each.destination is None)
    for parent in parents:
        if best_ways[parent.version] is not None:
            rules.add(Rule(LOCAL_PRIORITY, parent.version, None, parent, MAIN, ignores_default_routes=True))
            rules.add(Rule(BEST_PRIORITY, parent.version, None, parent, BEST_TABLE))
    if lan is not None:
        rules.update(_home_rules(order, access_by_way, verdicts, lan))
        for version in (4, 6):
            routes.add(Route(DELIVER_TABLE, version, None, _LOOPBACK, None, None, local=True))
            if tunnel is not None and version in tunnel[1] and Verdict.GOOD in verdicts.values():
                routes.add(Route(TUNNEL_TABLE, version, None, tunnel[0], None, None))
    endpoints = list(_endpoints(order, access_by_way, verdicts))[:MAX_ENDPOINTS]
    return Objects(frozenset(routes), frozenset(rules), frozenset(endpoints))


def commands(objects: Objects, devices: Mapping[int, str]) -> Iterator[str]:
    """Yield the commands that would set up *objects* by hand; *devices*: names by index."""
    # Add the route to a network before the default route, whose gateway is in that network.
    for route in sorted(objects.routes, key=lambda each: (each.table, each.version, each.destination is None)):
        kind = "local " if route.local else ""
        destination = "default" if route.destination is None else str(route.destination)
        via = f" via {route.gateway}" if route.gateway else ""
        source = f" src {route.source}" if route.source else ""
        device = devices.get(route.index, str(route.index))
        yield f"ip -{route.version} route add {kind}{destination}{via} dev {device}{source} table {route.table}"
    for rule in sorted(
        objects.rules, key=lambda each: (each.priority, each.version, each.mark, each.device, str(each.destination))
    ):
        selector = "".join(
            f" {word} {value}"
            for word, value in (("from", rule.source), ("to", rule.destination), ("iif", rule.device))
            if value
        )
        mark = f" fwmark {rule.mark:#x}/{MARK_MASK:#x}" if rule.mark else ""
        suppress = " suppress_prefixlength 0" if rule.ignores_default_routes else ""
        yield f"ip -{rule.version} rule add priority {rule.priority}{selector}{mark} lookup {rule.table}{suppress}"
    for endpoint in sorted(objects.endpoints, key=lambda each: str(each.address)):
        yield f"ip mptcp endpoint add {endpoint.address} dev {endpoint.device} subflow"


def abandoned_marks(before: Objects, after: Objects) -> set[int]:
    """Return the marks whose routing table was removed. Connections with these marks need a new address translation."""

    def usable_marks(objects: Objects) -> set[int]:
        tables = {each.table for each in objects.routes}
        return {each.mark for each in objects.rules if each.mark and each.table in tables}

    return usable_marks(before) - usable_marks(after)


def _home_rules(
    order: Sequence[str], access_by_way: Mapping[Way, Access], verdicts: Mapping[Way, Verdict], lan: Lan
) -> Iterator[Rule]:
    for version in (4, 6):
        yield Rule(DELIVER_PRIORITY, version, None, None, DELIVER_TABLE, mark=Mark.DELIVER)
        for device in lan.devices:
            yield Rule(LOCAL_PRIORITY, version, None, None, MAIN, ignores_default_routes=True, device=device)
            yield Rule(HOME_PRIORITY, version, None, None, BEST_TABLE, device=device)
        yield Rule(MARK_PRIORITY, version, None, None, TUNNEL_TABLE, mark=Mark.TUNNEL)
        yield Rule(MARK_PRIORITY, version, None, None, BEST_TABLE, mark=Mark.BEST)
    for way in access_by_way:
        if verdicts.get(way) is not Verdict.DEAD:
            number = order.index(way.uplink)
            yield Rule(MARK_PRIORITY, way.version, None, None, FIRST_TABLE + number, mark=uplink_mark(number))


def _routes(table: int, access: Access) -> Iterable[Route]:
    version = access.address.version
    source = access.address if version == 4 else None
    if access.network is not None and access.gateway is not None:
        yield Route(table, version, access.network, access.index, None, source)
    yield Route(table, version, None, access.index, access.gateway, source)


def _endpoints(
    order: Sequence[str], access_by_way: Mapping[Way, Access], verdicts: Mapping[Way, Verdict]
) -> Iterator[Endpoint]:
    carrying = {way for way in access_by_way if verdicts.get(way) not in (Verdict.DEAD, Verdict.PLAIN)}
    for way in in_order(order, access_by_way):
        # Keep the endpoint of a dead way if no other way carries Multipath TCP, so that open connections keep their
        # subflows.
        keeps_endpoint = verdicts.get(way) is Verdict.DEAD and not any(each.version == way.version for each in carrying)
        if way in carrying or keeps_endpoint:
            yield Endpoint(access_by_way[way].address, access_by_way[way].device)
