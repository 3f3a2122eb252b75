"""Uplinks as the kernel has them, and our routes, rules and endpoints. rtnetlink(7), ip-mptcp(8).

Ours are known by their numbers (``plan.TABLES``, ``plan.PRIORITIES``), endpoints by the devices of the uplinks: what a
killed daemon left is taken over, and what is no longer wanted removed.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_gateway.model import Access, Address, Way
from mptcp_gateway.plan import MAIN, PRIORITIES, TABLES, Endpoint, Objects, Route, Rule

_FAMILIES: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
_UNUSABLE: Final = 0x08 | 0x20 | 0x40
"""Of an IPv6 address: duplicate, deprecated, tentative (linux/if_addr.h)."""
_TEMPORARY: Final = 0x01
_ONLINK: Final = 0x04
_UNICAST: Final = 1
_SCOPE_LINK: Final = 253


class Network:
    """One network namespace's."""

    def __init__(self) -> None:
        self._route = IPRoute()

    def close(self) -> None:
        self._route.close()

    def found(self, uplinks: Mapping[str, str]) -> dict[Way, Access]:
        """Return what uplinks, devices by their names, have now. Raises KernelError."""
        try:
            links = {each.get_attr("IFLA_IFNAME"): each for each in self._route.get_links()}
            addresses = list(self._route.get_addr())
            defaults = [each for each in self._main_routes() if each["dst_len"] == 0]
        except NetlinkError as error:
            raise KernelError(f"look at the uplinks: {reason(error)}") from error
        found = {}
        for uplink, device in uplinks.items():
            link = links.get(device)
            if link is None or link.get_attr("IFLA_OPERSTATE") == "DOWN":
                continue
            index = int(link["index"])
            for version, family in _FAMILIES.items():
                access = _access(device, index, family, addresses, defaults)
                if access is not None:
                    found[Way(uplink, version)] = access
        return found

    def objects(self) -> Objects:
        """Return our routes and rules, without endpoints. Raises KernelError."""
        try:
            routes = [
                _read_route(each)
                for family in _FAMILIES.values()
                for table in TABLES
                for each in self._route.get_routes(family=family, table=table)
                if each["type"] == _UNICAST
            ]
            rules = [_read_rule(each) for family in _FAMILIES.values() for each in self._our_rules(family)]
        except NetlinkError as error:
            raise KernelError(f"look at our routes: {reason(error)}") from error
        return Objects(frozenset(routes), frozenset(rules))

    def apply(self, wanted: Objects) -> None:
        """Have our routes and rules as *wanted*. Raises KernelError."""
        there = self.objects()
        for rule in there.rules - wanted.rules:
            self._rule("del", rule)
        for route in there.routes - wanted.routes:
            self._do_route("del", route)
        # That of the network before the default route, whose gateway is in it.
        for route in sorted(wanted.routes - there.routes, key=lambda each: each.to is None):
            self._do_route("replace", route)
        for rule in wanted.rules - there.rules:
            self._rule("add", rule)

    def _main_routes(self) -> Iterator[Any]:
        for family in _FAMILIES.values():
            yield from self._route.get_routes(family=family, table=MAIN)

    def _our_rules(self, family: int) -> Iterator[Any]:
        for each in self._route.get_rules(family=family):
            if (each.get_attr("FRA_PRIORITY") or 0) in PRIORITIES:
                yield each

    def _rule(self, command: str, rule: Rule) -> None:
        more: dict[str, Any] = {}
        if rule.source is not None:
            more |= {"src": str(rule.source), "src_len": rule.source.max_prefixlen}
        if rule.local:
            more["FRA_SUPPRESS_PREFIXLEN"] = 0
        try:
            self._route.rule(command, family=_FAMILIES[rule.version], table=rule.table, priority=rule.priority, **more)
        except NetlinkError as error:
            raise KernelError(f"{command} a rule for {rule.source or 'all'}: {reason(error)}") from error

    def _do_route(self, command: str, route: Route) -> None:
        more: dict[str, Any] = {"dst": "default" if route.to is None else str(route.to)}
        if route.gateway is not None:
            more["gateway"] = str(route.gateway)
            if route.version == 4:
                more["flags"] = _ONLINK
        elif route.version == 4:
            more["scope"] = _SCOPE_LINK
        if route.version == 4:
            more["prefsrc"] = str(route.source)
        try:
            self._route.route(command, family=_FAMILIES[route.version], table=route.table, oif=route.index, **more)
        except NetlinkError as error:
            if command == "del" and error.code in (2, 3):  # ENOENT, ESRCH: it went with its device
                return
            raise KernelError(f"{command} the route to {more['dst']} by {route.index}: {reason(error)}") from error


def retransmitting(addresses: Iterable[Address]) -> set[Address]:
    """Return those of *addresses* from which some TCP socket waits for an answer, and has sent again. proc(5)."""
    texts = {text: address for address in addresses for text in _as_in_proc(address)}
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), Path("/proc/thread-self/net", name).open(encoding="ascii") as lines:
            for line in lines:
                words = line.split(maxsplit=7)
                address = texts.get(words[1].partition(":")[0])
                if address is not None and words[6] != "00000000":
                    found.add(address)
    return found


def _as_in_proc(address: Address) -> Iterator[str]:
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    text = "".join(f"{word:08X}" for word in words)
    yield text
    if address.version == 4:  # of a socket of IPv6
        yield "".join(f"{word:08X}" for word in (0, 0, socket.htonl(0xFFFF))) + text


def endpoints() -> dict[Endpoint, int]:
    """Return the endpoints of kind subflow, with their numbers. Raises KernelError."""
    found = {}
    for each in json.loads(_ip("-j", "mptcp", "endpoint", "show") or "[]"):
        if each.get("subflow") and "dev" in each:
            found[Endpoint(ip_address(each["address"]), each["dev"])] = int(each["id"])
    return found


def add_endpoint(endpoint: Endpoint) -> None:
    """Raises KernelError."""
    _ip("mptcp", "endpoint", "add", str(endpoint.address), "dev", endpoint.device, "subflow")


def delete_endpoint(number: int) -> None:
    """Raises KernelError."""
    _ip("mptcp", "endpoint", "delete", "id", str(number))


def subflow_limit() -> int:
    """Return how many subflows a connection may have beside its first. Raises KernelError."""
    found = re.search(r"subflows (\d+)", _ip("mptcp", "limits", "show"))  # iproute2 6.1 prints no JSON here
    return int(found[1]) if found else 0


def set_subflow_limit(limit: int) -> None:
    """Raises KernelError."""
    _ip("mptcp", "limits", "set", "subflows", str(limit))


def _ip(*arguments: str) -> str:
    command = ["ip", *arguments]
    try:
        return subprocess.run(command, text=True, capture_output=True, check=True).stdout
    except OSError as error:
        raise KernelError(f"run ip: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        raise KernelError(f"{' '.join(command)}: {error.stderr.strip().partition(chr(10))[0]}") from error


def _access(device: str, index: int, family: int, addresses: Sequence[Any], defaults: Sequence[Any]) -> Access | None:
    """Return what a device has of one family; None without an address or without a default route."""
    routes = [each for each in defaults if each["family"] == family and each.get_attr("RTA_OIF") == index]
    usable = [
        each
        for each in addresses
        if each["index"] == index and each["family"] == family and not each["scope"] and not _flags(each) & _UNUSABLE
    ]
    if not routes or not usable:
        return None
    lasting = [each for each in usable if not _flags(each) & _TEMPORARY] or usable
    text = lasting[0].get_attr("IFA_LOCAL") or lasting[0].get_attr("IFA_ADDRESS")
    interface = ip_interface(f"{text}/{lasting[0]['prefixlen']}")
    alone = interface.network.prefixlen == interface.max_prefixlen
    gateway = min(routes, key=lambda each: each.get_attr("RTA_PRIORITY") or 0).get_attr("RTA_GATEWAY")
    return Access(
        device,
        index,
        interface.ip,
        None if alone else interface.network,
        None if gateway is None else ip_address(gateway),
    )


def _flags(address: Any) -> int:
    return int(address.get_attr("IFA_FLAGS") or address["flags"])


def _read_route(message: Any) -> Route:
    version = 4 if message["family"] == socket.AF_INET else 6
    to, gateway, source = (message.get_attr(name) for name in ("RTA_DST", "RTA_GATEWAY", "RTA_PREFSRC"))
    return Route(
        int(message.get_attr("RTA_TABLE")),
        version,
        None if to is None else ip_network(f"{to}/{message['dst_len']}"),
        int(message.get_attr("RTA_OIF") or 0),
        None if gateway is None else ip_address(gateway),
        None if source is None else ip_address(source),
    )


def _read_rule(message: Any) -> Rule:
    version = 4 if message["family"] == socket.AF_INET else 6
    source = message.get_attr("FRA_SRC")
    return Rule(
        int(message.get_attr("FRA_PRIORITY")),
        version,
        None if source is None else ip_address(source),
        int(message.get_attr("FRA_TABLE") or message["table"]),
        message.get_attr("FRA_SUPPRESS_PREFIXLEN") == 0,
    )
