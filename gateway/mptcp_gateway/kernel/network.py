# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's state of the uplinks, and the gateway's routes and rules. rtnetlink(7).

The gateway's objects have fixed numbers (``plan.TABLES``, ``plan.PRIORITIES``). So a starting daemon recognizes the
objects that a killed daemon left, keeps those that it needs, and removes the others.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_gateway.kernel.addresses import Candidate, choose_address
from mptcp_gateway.model import MARK_MASK, Access, Address, Way
from mptcp_gateway.plan import MAIN, PRIORITIES, TABLES, Objects, Route, Rule

_FAMILIES: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
_FAMILY_ERRORS: Final = (95, 97)
"""EOPNOTSUPP, EAFNOSUPPORT: the kernel was started without IPv6."""
_TEMPORARY: Final = 0x01
"""Flag of temporary IPv6 addresses (linux/if_addr.h). On an IPv4 address, the same flag means secondary."""
_DEPRECATED: Final = 0x20
_UNUSABLE: Final = 0x08 | 0x40
"""Flags of addresses that are duplicate or tentative."""
_POINT_TO_POINT: Final = 0x10
"""A device flag (linux/if.h)."""
_ONLINK: Final = 0x04
_UNICAST, _LOCAL = 1, 2
_SCOPE_LINK, _SCOPE_HOST = 253, 254
_SOCKETS: Final = tuple(Path("/proc/thread-self/net", each) for each in ("tcp", "tcp6"))
_NETLINK_ERRORS: Final = (NetlinkError, OSError)


class Network:
    """One network namespace."""

    def __init__(self) -> None:
        self._route = IPRoute()

    @property
    def port_id(self) -> int:
        """The netlink port id, 0 before the first message. Notifications of the gateway's own changes have this id."""
        return int(self._route.getsockname()[0])

    def close(self) -> None:
        self._route.close()

    def read_access(self, uplinks: Mapping[str, str], current: Mapping[Way, Access]) -> dict[Way, Access]:
        """Return the current access of *uplinks* (devices by name); *current*: the access known so far. Raises
        KernelError."""
        try:
            links = {each.get_attr("IFLA_IFNAME"): each for each in self._route.get_links()}
            addresses = list(self._route.get_addr())
            defaults = [each for each in self._main_routes() if each["dst_len"] == 0]
        except _NETLINK_ERRORS as error:
            raise KernelError(f"read the uplinks' state: {reason(error)}") from error
        found = {}
        for uplink, device in uplinks.items():
            link = links.get(device)
            if link is None:
                continue
            for version, family in _FAMILIES.items():
                before = current.get(Way(uplink, version))
                access = access_of(link, family, addresses, defaults, None if before is None else before.address)
                if access is not None:
                    found[Way(uplink, version)] = access
        return found

    def device(self, name: str) -> tuple[int, frozenset[int]] | None:
        """Return a device's index, and the IP versions of its addresses, without link-local ones.

        None if it is missing or down. Raises KernelError.
        """
        try:
            links = {each.get_attr("IFLA_IFNAME"): each for each in self._route.get_links()}
            addresses = list(self._route.get_addr())
        except _NETLINK_ERRORS as error:
            raise KernelError(f"read the state of {name}: {reason(error)}") from error
        link = links.get(name)
        if link is None or not _has_carrier(link):
            return None
        families = {each["family"] for each in addresses if each["index"] == link["index"] and not each["scope"]}
        return int(link["index"]), frozenset(version for version, family in _FAMILIES.items() if family in families)

    def objects(self) -> Objects:
        """Return the gateway's routes and rules, without endpoints. Raises KernelError."""
        try:
            routes = [
                _parse_route(each)
                for family in _FAMILIES.values()
                for table in TABLES
                for each in _dump(partial(self._route.get_routes, family=family, table=table))
                if each["type"] in (_UNICAST, _LOCAL)
            ]
            rules = [_parse_rule(each) for family in _FAMILIES.values() for each in self._our_rules(family)]
        except _NETLINK_ERRORS as error:
            raise KernelError(f"read the gateway's routes: {reason(error)}") from error
        return Objects(frozenset(routes), frozenset(rules))

    def apply(self, planned: Objects) -> list[str]:
        """Change the gateway's routes and rules to the *planned* ones; return the refusals. Raises KernelError if the
        current state cannot be read.

        Objects are added before others are removed, so that no packet is routed with an empty table.
        """
        existing = self.objects()
        refused: list[str] = []
        # Add the route to the network before the default route, whose gateway is in that network.
        for route in sorted(planned.routes - existing.routes, key=lambda each: each.destination is None):
            refused += self._change_route("replace", route)
        for rule in planned.rules - existing.rules:
            refused += self._change_rule("add", rule)
        if existing.rules <= planned.rules and existing.routes <= planned.routes:
            return refused
        for rule in existing.rules - planned.rules:
            refused += self._change_rule("del", rule)
        for route in self.objects().routes - planned.routes:  # read again, because some routes were replaced
            refused += self._change_route("del", route)
        return refused

    def _main_routes(self) -> Iterator[Any]:
        for family in _FAMILIES.values():
            yield from _dump(partial(self._route.get_routes, family=family, table=MAIN))

    def _our_rules(self, family: int) -> Iterator[Any]:
        for each in _dump(lambda: self._route.get_rules(family=family)):
            if (each.get_attr("FRA_PRIORITY") or 0) in PRIORITIES:
                yield each

    def _change_rule(self, command: str, rule: Rule) -> list[str]:
        options: dict[str, Any] = {}
        if rule.source is not None:
            options |= {"src": str(rule.source), "src_len": rule.source.max_prefixlen}
        if rule.destination is not None:
            options |= {"dst": str(rule.destination), "dst_len": rule.destination.max_prefixlen}
        if rule.ignores_default_routes:
            options["FRA_SUPPRESS_PREFIXLEN"] = 0
        if rule.device:
            options["FRA_IIFNAME"] = rule.device
        if rule.mark:
            options |= {"FRA_FWMARK": rule.mark, "FRA_FWMASK": MARK_MASK}
        try:
            self._route.rule(
                command, family=_FAMILIES[rule.version], table=rule.table, priority=rule.priority, **options
            )
        except _NETLINK_ERRORS as error:
            return [f"{command} a rule, {_selector(rule)}: {reason(error)}"]
        return []

    def _change_route(self, command: str, route: Route) -> list[str]:
        options: dict[str, Any] = {"dst": "default" if route.destination is None else str(route.destination)}
        if route.gateway is not None:
            options["gateway"] = str(route.gateway)
            if route.version == 4:
                options["flags"] = _ONLINK
        elif route.version == 4:
            options["scope"] = _SCOPE_HOST if route.local else _SCOPE_LINK
        if route.local:
            options["type"] = _LOCAL
        if route.source is not None:
            options["prefsrc"] = str(route.source)
        try:
            self._route.route(command, family=_FAMILIES[route.version], table=route.table, oif=route.index, **options)
        except _NETLINK_ERRORS as error:
            if command == "del" and getattr(error, "code", 0) in (2, 3):  # ENOENT, ESRCH: removed with its device
                return []
            return [f"{command} the route to {options['dst']} on interface {route.index}: {reason(error)}"]
        return []


def _dump(dump: Callable[[], Iterable[Any]]) -> list[Any]:
    """Return a dump of one family; empty if the kernel lacks the family."""
    try:
        return list(dump())
    except NetlinkError as error:
        if error.code in _FAMILY_ERRORS:
            return []
        raise


def retransmitting_addresses(
    addresses: Iterable[Address],
    parents: Iterable[Address],
    ignored_ports: Collection[int],
    tables: Iterable[Path] = _SOCKETS,
) -> set[Address]:
    """Return the *addresses* from which a TCP socket to one of *parents* retransmits. proc(5).

    *ignored_ports*: local ports of sockets that are not considered.
    """
    texts = {text: address for address in addresses for text in _proc_forms(address)}
    targets = {text for address in parents for text in _proc_forms(address)}
    found = set()
    for table in tables:
        with suppress(OSError), table.open(encoding="ascii") as lines:
            for line in lines:
                words = line.split(maxsplit=7)
                text, _, port = words[1].partition(":")
                address = texts.get(text)
                if (
                    address is not None
                    and words[6] != "00000000"
                    and words[2].partition(":")[0] in targets
                    and int(port, 16) not in ignored_ports
                ):
                    found.add(address)
    return found


def _proc_forms(address: Address) -> Iterator[str]:
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    text = "".join(f"{word:08X}" for word in words)
    yield text
    if address.version == 4:  # the form in an IPv6 socket
        yield "".join(f"{word:08X}" for word in (0, 0, socket.htonl(0xFFFF))) + text


def access_of(
    link: Any, family: int, addresses: Sequence[Any], defaults: Sequence[Any], current: Address | None
) -> Access | None:
    """Return a device's access with one address family; None if it has no address or no route to the Internet.

    A default route counts as a route to the Internet, and so does a point-to-point device. The arguments are rtnetlink
    messages.
    """
    index = int(link["index"])
    gateways = [
        (each.get_attr("RTA_PRIORITY") or 0, gateway)
        for each in defaults
        if each["family"] == family
        for oif, gateway in _hops(each)
        if oif == index
    ]
    candidates = [
        _candidate(each)
        for each in addresses
        if each["index"] == index and each["family"] == family and not each["scope"] and not _flags(each) & _UNUSABLE
    ]
    best = choose_address(candidates, current)
    if best is None or not (gateways or link["flags"] & _POINT_TO_POINT):
        return None
    is_single = best.interface.network.prefixlen == best.interface.max_prefixlen
    gateway = min(gateways, key=lambda each: each[0])[1] if gateways else None
    return Access(
        str(link.get_attr("IFLA_IFNAME")),
        index,
        best.interface.ip,
        None if is_single else best.interface.network,
        None if gateway is None else ip_address(gateway),
        tuple(each.interface.ip for each in candidates if each is not best),
        _has_carrier(link),
    )


def _has_carrier(link: Any) -> bool:
    return link.get_attr("IFLA_OPERSTATE") in ("UP", "UNKNOWN")


def _hops(route: Any) -> Iterator[tuple[int, str | None]]:
    next_hops = route.get_attr("RTA_MULTIPATH")
    if next_hops:
        for each in next_hops:
            yield int(each["oif"]), each.get_attr("RTA_GATEWAY")
    else:
        yield int(route.get_attr("RTA_OIF") or 0), route.get_attr("RTA_GATEWAY")


def _candidate(message: Any) -> Candidate:
    text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    flags = _flags(message)
    is_ipv6 = message["family"] == socket.AF_INET6
    lifetimes = message.get_attr("IFA_CACHEINFO") or {}
    return Candidate(
        ip_interface(f"{text}/{message['prefixlen']}"),
        deprecated=bool(flags & _DEPRECATED),
        temporary=is_ipv6 and bool(flags & _TEMPORARY),
        preferred=int(lifetimes.get("ifa_preferred", 0)),
    )


def _flags(address: Any) -> int:
    return int(address.get_attr("IFA_FLAGS") or address["flags"])


def _parse_route(message: Any) -> Route:
    version = 4 if message["family"] == socket.AF_INET else 6
    to, gateway, source = (message.get_attr(name) for name in ("RTA_DST", "RTA_GATEWAY", "RTA_PREFSRC"))
    return Route(
        int(message.get_attr("RTA_TABLE")),
        version,
        None if to is None else ip_network(f"{to}/{message['dst_len']}"),
        int(message.get_attr("RTA_OIF") or 0),
        None if gateway is None else ip_address(gateway),
        None if source is None else ip_address(source),
        message["type"] == _LOCAL,
    )


def _selector(rule: Rule) -> str:
    if rule.mark:
        return f"mark {rule.mark:#x}"
    return f"from {rule.source or rule.device}" if rule.destination is None else f"to {rule.destination}"


def _parse_rule(message: Any) -> Rule:
    version = 4 if message["family"] == socket.AF_INET else 6
    source, to = message.get_attr("FRA_SRC"), message.get_attr("FRA_DST")
    return Rule(
        int(message.get_attr("FRA_PRIORITY")),
        version,
        None if source is None else ip_address(source),
        None if to is None else ip_address(to),
        int(message.get_attr("FRA_TABLE") or message["table"]),
        message.get_attr("FRA_SUPPRESS_PREFIXLEN") == 0,
        str(message.get_attr("FRA_IIFNAME") or ""),
        int(message.get_attr("FRA_FWMARK") or 0),
    )
