# SPDX-License-Identifier: GPL-2.0-or-later
"""Gathers the input for the checks of a relay. It opens a trial connection to each address of each parent."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mptcp_common.findings import Finding
from mptcp_common.reasons import reason

from .. import given_up, shim
from ..configuration.check import CheckedConfiguration, check_or_problem
from ..configuration.source import statements
from ..connection_counts import count_subflows_now, counts_now
from ..parents import targets
from ..parents_alive import ADVICE, current_states
from ..places import Places, Role
from ..squid import find_squid
from . import features, host, kernel, reading, relay
from .advisories import PACKAGES, advisories, package_version
from .gather import instance_findings, own_processes
from .relay import Attempt, Uplink

_CONNECT_SECONDS, _JOIN_SECONDS = 5.0, 5.0
"""Maximum seconds to open a connection, and then to open its second subflow."""
_SUBFLOW_CHECK_INTERVAL = 0.05
"""Seconds between checks for a second subflow."""
_SOL_MPTCP, _MPTCP_INFO, _FALLBACK = 284, 1, 1
"""Constants of linux/mptcp.h. The first byte of struct mptcp_info is the number of additional subflows, bytes 8 to 11
are flags, and bytes 12 to 15 the local token."""
_RELAY_CHECKS = ("sysctl checksum", "sysctl scheduler", "sysctl path manager")
"""Checks of a proxy that also apply to a relay."""


def examine_relay(configuration: Path, places: Places, allow_open: bool) -> Iterator[Finding]:
    """Yield all findings, beginning with those about the kernel."""
    values = {key: value for key in kernel.SYSCTLS if (value := reading.sysctl(key)) is not None}
    yield kernel.mptcp_socket(reading.mptcp_error(), os.uname().release, Role.RELAY)
    yield from (each for each in kernel.mptcp_sysctls(values) if each.check in _RELAY_CHECKS)
    yield relay.limit(_subflow_limit())
    yield kernel.congestion_control(values)
    yield kernel.multipath_congestion_control(values, reading.modules(), Role.RELAY)
    squid = find_squid()
    checked = check_or_problem(configuration, places.service_name, squid, role=Role.RELAY, allow_open=allow_open)
    yield from _uplinks_and_parents(checked, places, host.unreadable_file(checked, reading.is_hidden))

    library, build_error = reading.library()
    results, refusal = reading.probe(Role.RELAY, library)
    if refusal:
        yield features.not_probed(refusal, os.geteuid() == 0)
    yield features.shim(results, library, build_error, Role.RELAY)
    yield host.squid(squid)
    yield from advisories(package_version(reading.output(*PACKAGES)) or (squid.version if squid else ""))
    yield from instance_findings(checked, str(configuration), places, Role.RELAY, library)


def _uplinks_and_parents(checked: CheckedConfiguration, places: Places, unreadable: str) -> Iterator[Finding]:
    targets_by_parent: dict[str, Sequence[str]] = {}
    errors: dict[str, str] = {}
    for parent in checked.parents:
        try:
            targets_by_parent[str(parent)] = sorted(targets(parent.host, parent.port))
        except (OSError, UnicodeError) as error:
            errors[str(parent)] = reason(error)
    addresses = _addresses(target for each in targets_by_parent.values() for target in each)
    candidates, endpoints = _uplinks()
    yield relay.uplinks(endpoints, candidates)
    outgoing = _outgoing_addresses(checked, places)
    routes = [
        (uplink, address, _outgoing_interface(address, uplink, _bound_interface(uplink, outgoing)))
        for uplink in endpoints
        for address in addresses
        if uplink.device and uplink.family == (6 if ":" in address else 4)
    ]
    yield relay.routes(routes, _used_tables())
    attempts = {
        name: [_try_connection(target) for target in targets_of_parent]
        for name, targets_of_parent in targets_by_parent.items()
    }
    has_given_up = any(attempt.given_up for each in attempts.values() for attempt in each)
    yield relay.blackhole(reading.sysctl(given_up.SYSCTL), given_up.current_counts(), has_given_up)
    if not checked.parents:
        yield relay.no_parent(unreadable)
    for parent in checked.parents:
        name = str(parent)
        yield relay.parent(name, attempts.get(name, []), errors.get(name, ""))
    if pids := own_processes(places):
        all_targets = [target for each in targets_by_parent.values() for target in each]
        library_list = reading.text(str(places.parents)).split()
        counts = counts_now(all_targets) if os.geteuid() == 0 else None
        yield from relay.running_relay(library_list, all_targets, _without_library(pids), counts)
        yield relay.parent_states(*current_states(checked.listeners), ADVICE)


def _addresses(targets: Iterable[str]) -> list[str]:
    return [target.rpartition(":")[0].strip("[]") for target in dict.fromkeys(targets)]


def _outgoing_addresses(checked: CheckedConfiguration, places: Places) -> list[str]:
    addresses: list[str] = []
    for statement in statements(checked.lines, places.service_name):
        match statement.words:
            case ("tcp_outgoing_address", address, *_):
                # The address may be a host name.
                with suppress(OSError, UnicodeError):
                    addresses.extend(_addresses(targets(address.strip("[]"), 0)))
    return addresses


def _subflow_limit() -> int | None:
    match = re.search(r"subflows (\d+)", reading.output("ip", "mptcp", "limits", "show"))
    return int(match[1]) if match else None


def _uplinks() -> tuple[list[Uplink], list[Uplink]]:
    """Return the addresses whose interface has a default route, and the endpoints from which the kernel opens
    subflows."""
    devices_by_address = {
        str(address["local"]): str(link["ifname"])
        for link in reading.json_list("ip", "-j", "address", "show")
        for address in link.get("addr_info", ())
        if address.get("scope") == "global"
    }
    gateways = {}
    for family in (4, 6):
        for device, gateway in relay.gateways(
            reading.json_list("ip", "-j", f"-{family}", "route", "show", "default")
        ).items():
            gateways[family, device] = gateway
    addresses_with_device = [Uplink(address, device) for address, device in devices_by_address.items()]
    candidates = [
        Uplink(each.address, each.device, gateways[each.family, each.device])
        for each in addresses_with_device
        if (each.family, each.device) in gateways
    ]
    uplinks_by_address = {each.address: each for each in (*addresses_with_device, *candidates)}
    endpoints = [
        replace(
            uplinks_by_address.get(str(each["address"]), Uplink(str(each["address"]), "")),
            id=int(each["id"]),
            bound=str(each.get("dev", "")),
        )
        for each in reading.json_list("ip", "-j", "mptcp", "endpoint", "show")
        if each.get("subflow") or each.get("fullmesh")
    ]
    return candidates, endpoints


def _bound_interface(uplink: Uplink, outgoing: Collection[str]) -> str:
    """Return the interface that all subflows from *uplink* use because they are bound to it; empty if routes decide.
    *outgoing*: addresses to which Squid binds its sockets; the first subflows from these addresses are not bound to an
    interface. Routes also decide with rp_filter=1: the kernel drops an incoming packet if, according to the routes, an
    answer would leave through another interface."""
    if uplink.address in outgoing:
        return ""
    # The larger value applies (ip-sysctl.rst). Read the file, because an interface name may contain dots (VLANs).
    values = [reading.text(f"/proc/sys/net/ipv4/conf/{each}/rp_filter").strip() for each in ("all", uplink.bound)]
    return "" if uplink.family == 4 and max(values) == "1" else uplink.bound


def _outgoing_interface(to: str, uplink: Uplink, bound: str) -> str:
    """Return the interface through which packets of subflows from *uplink* leave; empty if there is no route. *bound*:
    the interface to which the subflows are bound, or empty."""
    routes = reading.json_list("ip", "-j", "route", "get", to, "from", uplink.address)
    device = str(routes[0].get("dev", "")) if routes else ""
    if bound in ("", device):
        return device
    # With "fibmatch", only a real route counts: otherwise IPv4 treats every address as a neighbour on that interface.
    # For IPv6 with a source, the interface would only be a preference, and the command above finds routes by source.
    source = ("from", uplink.address) if uplink.family == 4 else ()
    return bound if reading.json_list("ip", "-j", "route", "get", "fibmatch", to, *source, "oif", bound) else ""


def _used_tables() -> frozenset[int]:
    """Return the numbers of the routing tables that are not empty, except the tables with names, such as "main"."""
    routes = [
        each for family in "46" for each in reading.json_list("ip", "-j", f"-{family}", "route", "show", "table", "all")
    ]
    tables = {str(each.get("table", "")) for each in routes}
    return frozenset(int(table) for table in tables if table.isdigit())


def _without_library(pids: frozenset[int]) -> int:
    """Return how many of the processes *pids* run Squid without the preload library. Only root can see this."""
    maps = [reading.text(f"/proc/{pid}/maps") for pid in pids]
    return sum("/squid" in text and shim.LISTEN not in text for text in maps)


def _try_connection(target: str) -> Attempt:
    address, _, port = target.rpartition(":")
    watch = given_up.Watch()
    family = socket.AF_INET6 if address.startswith("[") else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect((address.strip("[]"), int(port)))
            # Send data, because the kernel joins only after the parent has acknowledged data (RFC 8684, 3.1). A server
            # ignores an empty line before a request (RFC 9112, 2.2).
            connection.sendall(b"\r\n")
            # The counter may count another connection at the same time, but that also shows that the kernel has given
            # up.
            return replace(_subflows(connection, target), given_up=watch.new_counts() is not None)
    except OSError as error:
        return Attempt(target, reason(error))


def _subflows(connection: socket.socket, target: str) -> Attempt:
    deadline = time.monotonic() + _JOIN_SECONDS
    subflows = 1
    while time.monotonic() < deadline and subflows < 2:
        time.sleep(_SUBFLOW_CHECK_INTERVAL)
        try:
            info = connection.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 256)
        except OSError:
            # A connection that fell back to plain TCP does not have this option.
            return Attempt(target)
        if int.from_bytes(info[8:12], sys.byteorder) & _FALLBACK:
            return Attempt(target)
        if info[0]:
            # The kernel counts a subflow from its first packet on, even if the parent does not answer.
            answered = count_subflows_now(target, int.from_bytes(info[12:16], sys.byteorder))
            if not answered and os.geteuid() != 0:
                # Older kernels show the connection of a subflow only with CAP_NET_ADMIN.
                return Attempt(target, multipath=True, subflows=None)
            subflows = 1 + info[0] if answered is None else max(1, answered)
    return Attempt(target, multipath=True, subflows=subflows)
