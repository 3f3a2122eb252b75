# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks the requirements of a relay: each uplink is an MPTCP endpoint and has a route to the parents, and the parents
answer over Multipath TCP."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mptcp_common.findings import Finding, fail, ok, unseen, warn
from mptcp_common.units import counted

from .. import given_up
from ..configuration.parents import EXAMPLE
from ..connection_counts import ConnectionCounts
from .kernel import lasting_sysctl

_LIMIT, _UPLINKS, _ROUTES = "path manager", "uplinks", "routes of uplinks"
_BLACKHOLE = "sysctl blackhole"
_ONE_PATH = "traffic to the parents uses one uplink, and stops if that uplink fails"
_AT_EACH_BOOT = "docs/relay.md describes how to do this at each boot"
GATEWAY = Path("/run/mptcp-gateway/status.json")
"""File that exists while mptcp-gateway runs. That daemon removes the endpoint of a dead uplink."""


@dataclass(frozen=True, slots=True)
class Uplink:
    """An address of this host from which the kernel opens subflows, or could open them."""

    address: str
    device: str
    """The interface that has the address; empty if none has it."""
    gateway: str = ""
    id: int = 0
    """The id of the endpoint; 0 if the address is not an endpoint."""
    bound: str = ""
    """The interface in the endpoint, to which the kernel binds its subflows; empty if none."""

    @property
    def family(self) -> int:
        return 6 if ":" in self.address else 4


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trial connection to a parent."""

    target: str
    error: str = ""
    multipath: bool = False
    subflows: int | None = 1
    """Number of answered subflows; None if only root may see it."""
    given_up: bool = False
    """Whether the kernel opened the connection over plain TCP because it has given up Multipath TCP
    (``mptcp_proxy.given_up``)."""

    @property
    def good(self) -> bool:
        return self.multipath and self.subflows is not None and self.subflows > 1

    def __str__(self) -> str:
        if self.error:
            return f"{self.target}: {self.error}"
        if not self.multipath:
            return f"{self.target}: plain TCP"
        how_many = "" if self.subflows is None else f" with {counted(self.subflows, 'subflow')}"
        return f"{self.target}: Multipath TCP{how_many}"


def limit(subflows: int | None) -> Finding:
    """Check *subflows*, the maximum number of additional subflows of a connection (``ip mptcp limits``); None if
    unknown."""
    if subflows is None:
        return warn(
            _LIMIT, "the path manager's limits cannot be read", _ONE_PATH, "apt install iproute2 && ip mptcp limits"
        )
    if subflows == 0:
        return fail(
            _LIMIT,
            "the limit is 0 additional subflows for each connection",
            _ONE_PATH,
            "ip mptcp limits set subflows 8   # mptcp-relay.service does this at each boot",
        )
    return ok(_LIMIT, f"up to {counted(subflows, 'additional subflow')} for each connection")


def blackhole(seconds: str | None, counts: given_up.GivenUpCounts, in_force: bool) -> Finding:
    """Check whether the kernel gives up Multipath TCP. *seconds*: net.mptcp.blackhole_timeout (Linux 6.12,
    mptcp-sysctl.rst); None if the kernel lacks it. *in_force*: whether the kernel has given up at this moment."""
    key = given_up.SYSCTL
    counts_text = (
        f"{given_up.TIMES_COUNTER} {counts.times}, {counted(counts.connections, 'connection')} used plain TCP for this"
        f" reason since boot ({given_up.CONNECTIONS_COUNTER})"
    )
    if in_force:
        return fail(
            _BLACKHOLE,
            f"the kernel has given up Multipath TCP for {key} = {seconds} s or a multiple of it: {counts_text}",
            "the kernel got an answer only without Multipath TCP, which an outage of a few seconds can cause;"
            f" until this time has passed, {_ONE_PATH}",
            f"{lasting_sysctl(key, '0')}   # makes the kernel try again at once",
        )
    if seconds in (None, "0"):
        return ok(_BLACKHOLE, "the kernel does not give up Multipath TCP when an uplink fails for a moment")
    return warn(
        _BLACKHOLE,
        f"{key} is {seconds}; not in force now" + (f": {counts_text}" if counts.times else ""),
        "if an uplink recovers just as the kernel tries without Multipath TCP, it suspects a firewall, and"
        f" reaches the parents over plain TCP for {seconds} s, longer the next time",
        lasting_sysctl(key, "0"),
    )


def uplinks(endpoints: Sequence[Uplink], candidates: Sequence[Uplink]) -> Finding:
    """Check the uplinks. *endpoints*: the endpoints of ``ip mptcp endpoint`` from which the kernel opens subflows.
    *candidates*: addresses whose interface has a default route."""
    outdated = [each for each in endpoints if not each.device]
    present = [each for each in endpoints if each.device]
    devices = {each.device for each in present}
    uplink_list = ", ".join(f"{each.address} on {each.device}" for each in present) or "none"
    if outdated:
        return fail(
            _UPLINKS,
            f"no interface has the address of the endpoint {', '.join(each.address for each in outdated)};"
            f" other endpoints: {uplink_list}",
            "the kernel cannot open subflows from it: an uplink with a new address needs a new endpoint",
            # Not "id 0 ADDRESS", which means the first subflow of each connection, not an endpoint.
            "; ".join(f"ip mptcp endpoint delete id {each.id}" for each in outdated)
            + "; ip mptcp endpoint add ADDRESS dev INTERFACE subflow",
        )
    if len(devices) > 1:
        return ok(_UPLINKS, f"{len(devices)}: {uplink_list}")
    missing = [each for each in candidates if each.address not in {other.address for other in present}]
    commands = [f"ip mptcp endpoint add {each.address} dev {each.device} subflow" for each in missing]
    return fail(
        _UPLINKS,
        f"endpoints from which subflows are opened: {uplink_list}; two interfaces are needed",
        _ONE_PATH,
        "mptcp-gateway status   # it adds the endpoints, and shows why one is missing"
        if GATEWAY.exists()
        else f"{' && '.join(commands) or 'ip mptcp endpoint add ADDRESS dev INTERFACE subflow'}   # {_AT_EACH_BOOT}",
    )


def routes(found: Iterable[tuple[Uplink, str, str]], used_tables: Collection[int]) -> Finding:
    """Check the routes from uplinks to parents. *found*: tuples of an uplink, a parent's address, and the interface
    through which packets between them leave, which is empty if there is no route. *used_tables*: numbers of the routing
    tables that are not empty."""
    all_routes = tuple(found)
    wrong_routes = {uplink: (to, device) for uplink, to, device in all_routes if device != uplink.device}
    if not all_routes:
        return warn(
            _ROUTES, "nothing to check", "see the lines about uplinks and parents", "mptcp-proxy doctor --role relay"
        )
    if not wrong_routes:
        return ok(_ROUTES, "from each uplink's address to the parents, packets leave through that uplink")
    texts, commands = [], []
    free_numbers = (number for number in range(101, 252) if number not in used_tables)
    for number, (uplink, (to, device)) in zip(free_numbers, wrong_routes.items(), strict=False):
        texts.append(f"{uplink.address} ({uplink.device}) to {to}: {f'through {device}' if device else 'no route'}")
        if uplink.bound not in ("", uplink.device):
            # The endpoint binds its subflows to another interface, and routes do not matter.
            commands.append(f"ip mptcp endpoint delete id {uplink.id}")
            commands.append(f"ip mptcp endpoint add {uplink.address} dev {uplink.device} subflow")
            continue
        gateway = f"via {uplink.gateway} " if uplink.gateway else "via GATEWAY "
        ip = f"ip -{uplink.family}"
        commands.append(f"{ip} route replace default {gateway}dev {uplink.device} table {number}")
        commands.append(f"{ip} rule add from {uplink.address} table {number}")
    return fail(
        _ROUTES,
        "; ".join(texts),
        "packets of one uplink leave through another uplink, where they are dropped or share its rate; or rp_filter=1"
        " drops incoming packets",
        f"{' && '.join(commands)}   # {_AT_EACH_BOOT}",
    )


def parent(name: str, attempts: Sequence[Attempt], error: str = "") -> Finding:
    """Check a parent. *attempts*: a trial connection to each of its addresses. *error*: why it has no address."""
    check = f"parent {name}"
    host = name.rpartition(":")[0].strip("[]")
    if not attempts:
        return fail(
            check,
            error or "it has no address",
            "it gets no requests",
            f"getent ahosts {host}",
        )
    outcomes = "; ".join(map(str, attempts))
    answered = [each for each in attempts if not each.error]
    if all(each.good for each in attempts):
        return ok(check, outcomes)
    if all(each.multipath and each.subflows is None for each in attempts):
        return unseen(check, f"whether a second subflow is answered; {outcomes}")
    if any(each.good or (each.multipath and each.subflows is None) for each in attempts):
        return warn(
            check,
            outcomes,
            "connections to one of its addresses fail, or have only one path",
            f"ping {host}",
        )
    if not answered:
        return fail(check, outcomes, "it gets no requests", "on the parent: mptcp-proxy doctor; ss -ltn")
    if not any(each.multipath for each in answered) and any(each.given_up for each in answered):
        return fail(check, outcomes, f"see the line {_BLACKHOLE}: {_ONE_PATH}", f"sysctl -w {given_up.SYSCTL}=0")
    if not any(each.multipath for each in answered):
        return fail(
            check,
            outcomes,
            "the parent, or a device on the path to it, does not support Multipath TCP: only one path",
            "on the parent: mptcp-proxy doctor   # and check that ss -Mltn shows its port",
        )
    return fail(
        check,
        outcomes,
        "a second subflow was not opened, or not answered: only one path",
        "nstat -az 'MPTcpExtMPJoin*'; ip mptcp monitor   # during another attempt; on the parent: ip mptcp limits",
    )


def no_parent(unreadable: str) -> Finding:
    """Report a relay without a parent. *unreadable*: a file of the configuration that this user may not read, or
    empty."""
    if unreadable:
        return unseen("parents", f"those in {unreadable}")
    return fail("parents", "no parent", "a relay sends every request to a parent", f"add, for instance: {EXAMPLE}")


def running_relay(
    listed: Sequence[str], targets: Sequence[str], without_library: int, counts: ConnectionCounts | None
) -> Iterator[Finding]:
    """Check a running relay. *listed*: addresses in the preload library's list. *targets*: addresses of the parents.
    *without_library*: number of Squid processes without the library. *counts*: numbers of connections to *targets*;
    None if only root may see them."""
    check = "the running relay"
    if counts is None:
        yield unseen(check, "its libraries, and its connections to parents")
        return
    restart = "journalctl -u mptcp-relay --grep mptcp_listen   # shows the reason; then: systemctl restart mptcp-relay"
    missing = sorted(set(targets) - set(listed))
    if without_library:
        text = f"Squid runs without the preload library ({without_library} of its processes)"
        yield fail(check, text, "its connections to parents are plain TCP, over one path", restart)
    elif missing:
        yield fail(
            check,
            f"its list of parents lacks {', '.join(missing)}",
            "connections to these are plain TCP, over one path",
            "journalctl -u mptcp-relay --grep parent   # shows the reason; then: systemctl restart mptcp-relay",
        )
    elif counts.plain_tcp:
        yield fail(
            check,
            f"{counts.plain_tcp} of {counted(counts.total, 'connection')} to parents over plain TCP",
            _ONE_PATH,
            restart,
        )
    elif counts.single_subflow and not counts.multiple_subflows:
        yield warn(
            check,
            f"{counted(counts.total, 'connection')} to parents, one subflow each",
            "they are new, or no subflow joined: see the lines about uplinks and parents",
            "mptcp-proxy doctor --role relay",
        )
    else:
        paths_text = f", {counts.multiple_subflows} with two subflows or more" if counts.total else ""
        yield ok(check, f"{counted(counts.total, 'connection')} to parents{paths_text}, none over plain TCP")


def parent_states(states: Mapping[str, bool], error: str, advice: str) -> Finding:
    """Check which parents Squid considers dead. *states*: whether each parent is up, by name. *error*: why Squid does
    not answer."""
    check = "parents, to Squid"
    if not states:
        return warn(
            check,
            f"Squid does not report which parents it considers dead: {error or 'its page names none'}",
            "only a request shows that a dead parent has recovered; it is refused, or sent to another parent",
            advice,
        )
    dead = [name for name, up in states.items() if not up]
    if dead:
        return warn(
            check,
            f"considered dead: {', '.join(dead)}; Squid tries to connect every few seconds",
            "a dead parent gets no requests" if len(dead) < len(states) else "every request is refused",
            "see the lines about parents and uplinks",
        )
    return ok(check, f"{counted(len(states), 'parent')}, none considered dead")


def gateways(default_routes: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the gateway of each interface. *default_routes*: the output of ``ip -j route show default``."""
    return {route["dev"]: route.get("gateway", "") for route in default_routes if "dev" in route}
