"""What the kernel is to have for the uplinks that there are. Pure.

- Each way has a routing table, and packets from its address use it: a subflow leaves by its own uplink.
- What has no address yet, as a new connection, leaves by the first way that is good, in the order of the uplinks. The
  tables of others are looked up before, less their default routes: local networks stay where they are.
- The address of a way that carries Multipath TCP is an endpoint, from which the kernel opens subflows. It is none while
  the way is dead: then the kernel closes the subflows there and tells the other end, which sends elsewhere at once; and
  it opens new ones on all living connections when the way is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mptcp_gateway.model import Access, Address, Network, Verdict, Way

MAIN: Final = 254
"""The table that everybody else's routes are in (rtnetlink(7))."""
BEST_TABLE: Final = 7720
FIRST_TABLE: Final = 7721
"""Of the first uplink; the others follow."""
MOST_UPLINKS: Final = 8
TABLES: Final = range(BEST_TABLE, FIRST_TABLE + MOST_UPLINKS)
LOCAL_PRIORITY: Final = 7721
OWN_PRIORITY: Final = 7722
BEST_PRIORITY: Final = 7723
PRIORITIES: Final = range(LOCAL_PRIORITY, BEST_PRIORITY + 1)
_PREFERRED: Final = (Verdict.GOOD, Verdict.UNTRIED, Verdict.PLAIN, Verdict.DEAD)


@dataclass(frozen=True, slots=True)
class Route:
    """One route; *to* None is the default route."""

    table: int
    version: int
    to: Network | None
    index: int
    gateway: Address | None
    source: Address | None
    """What sends from there by default; None with IPv6, where the kernel chooses by the device."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; *source* None: of every packet. *local*: default routes do not count."""

    priority: int
    version: int
    source: Address | None
    table: int
    local: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    address: Address
    device: str


@dataclass(frozen=True, slots=True)
class Objects:
    """All of ours in the kernel."""

    routes: frozenset[Route] = frozenset()
    rules: frozenset[Rule] = frozenset()
    endpoints: frozenset[Endpoint] = frozenset()


def best(order: Sequence[str], verdicts: Mapping[Way, Verdict], version: int) -> Way | None:
    """Return the way on which connections begin; None where there is none of that version."""
    ways = [way for uplink in order if (way := Way(uplink, version)) in verdicts]
    return min(ways, key=lambda way: _PREFERRED.index(verdicts[way]), default=None)


def planned(order: Sequence[str], found: Mapping[Way, Access], verdicts: Mapping[Way, Verdict]) -> Objects:
    """Return what there is to be. *order*: of the uplinks, the first is preferred."""
    routes: set[Route] = set()
    rules: set[Rule] = set()
    for way, access in found.items():
        table = FIRST_TABLE + order.index(way.uplink)
        routes.update(_routes(table, access))
        rules.add(Rule(OWN_PRIORITY, way.version, access.address, table))
    for version in (4, 6):
        chosen = best(order, verdicts, version)
        if chosen is not None and chosen in found:
            routes.update(each for each in _routes(BEST_TABLE, found[chosen]) if each.to is None)
            rules.add(Rule(LOCAL_PRIORITY, version, None, MAIN, local=True))
            rules.add(Rule(BEST_PRIORITY, version, None, BEST_TABLE))
    return Objects(frozenset(routes), frozenset(rules), frozenset(_endpoints(found, verdicts)))


def _routes(table: int, access: Access) -> Iterable[Route]:
    version = access.address.version
    source = access.address if version == 4 else None
    if access.network is not None and access.gateway is not None:
        yield Route(table, version, access.network, access.index, None, source)
    yield Route(table, version, None, access.index, access.gateway, source)


def _endpoints(found: Mapping[Way, Access], verdicts: Mapping[Way, Verdict]) -> Iterable[Endpoint]:
    alive = [way for way in found if verdicts.get(way) is not Verdict.DEAD]
    for way in alive or found:  # where all are dead the parents may be: living connections keep what they have
        if verdicts.get(way) is not Verdict.PLAIN:
            yield Endpoint(found[way].address, found[way].device)
