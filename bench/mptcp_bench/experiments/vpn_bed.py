# SPDX-License-Identifier: GPL-2.0-or-later
"""The testbed of the experiments ``vpn-…`` and ``tunnel``: OpenVPN by each way, and one download through it, by wget.

As in the paper, VPN client and server are connected by two paths, and the web server is behind the VPN server (here
behind the core, over an unshaped link). Cipher and compression are off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from mptcp_lab.agent.counters import fallbacks
from mptcp_lab.emulation.model import EmulatedPath
from mptcp_lab.testbed import LiveNode, Testbed, TestbedError, congestion, lab_of, paths
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.openvpn import PORT, OpenVpn, over_tcp, over_udp
from mptcp_lab.testbed.services import Origin, start_origin
from mptcp_lab.testbed.transfer import Added, observe, wget
from mptcp_lab.testbed.tunnel import Tunnel, tunnel

from .columns import Turn
from .devices import DEVICES
from .vpn_cells import FILE, OVER_TCP, RATE, VPNS, WAYS, Condition, Point, Vpn
from .vpn_judging import unlike

NEEDS = ("root", "namespaces", "mptcp", "mptcp-pm", "tbf", "nftables", "apache2", "openvpn", "mptcpize", "wget", "curl")
SYSCTLS = {"net.ipv4.tcp_rmem": "4096 87380 6291456", "net.ipv4.tcp_wmem": "4096 16384 4194304"}
"""The settings of the paper's Table 3 that exist in a namespace. The topology turns off caching of a destination's
metrics."""
NAME = "16mb"
WARM = 1.0
"""Seconds of an unmeasured download before the measured download. The paper made twenty downloads over one VPN."""
PATIENCE = 20
"""Maximum seconds until a connection through the VPN is open."""
EXTRA = "10.77.1.3"
"""A second address of the client on its first path."""
NETWORK = "10.94.0.0/16"


@dataclass(frozen=True)
class Bed:
    """A testbed with an origin."""

    testbed: Testbed
    lab: Lab
    origin: Origin
    seconds: float
    """Seconds after which a download is aborted."""

    def check_emulation(self) -> None:
        self.testbed.check_emulation()

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    @property
    def server(self) -> LiveNode:
        """The VPN server."""
        return self.testbed["proxy"]


@contextmanager
def built(over: Sequence[EmulatedPath], seed: int, seconds: float, octets: int = FILE) -> Iterator[Bed]:
    """Build the testbed with two paths. A download of *octets* is aborted after *seconds*."""
    with Testbed(paths(over, name="vpn"), seed=seed) as testbed:
        for name in ("client", "proxy", "origin"):
            testbed[name].run(["sysctl", "-qw", *(f"{key}={value}" for key, value in SYSCTLS.items())])
        testbed["proxy"].run(["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        testbed["core"].run(["ip", "route", "add", NETWORK, "via", testbed["proxy"].service_address()])
        origin = start_origin(testbed["origin"], {NAME: octets}, ports=(80,))
        yield Bed(testbed, lab_of(testbed), origin, seconds)


class Carried(NamedTuple):
    """A VPN that runs, and the daemons of our tunnel if they carry the VPN."""

    pair: OpenVpn
    tunnel: Tunnel | None


@contextmanager
def carried(bed: Bed, vpn: Vpn) -> Iterator[Carried]:
    """Run *vpn*, and route the origin through it. Raises TestbedError."""
    client, server, way = bed.client, bed.server, WAYS[vpn.way]
    ours = None
    with ExitStack() as stack:
        if vpn.way in OVER_TCP:
            for node in (client, server) if vpn.outer else ():
                controlled(node, vpn.outer)
            if vpn.way == "ports":
                stack.enter_context(_two_endpoints_on_one_path(bed))
            pair = stack.enter_context(over_tcp(client, server, multipath=vpn.way != "tcp"))
        else:
            percent = None if way.share is None else round(100 * way.share)
            if way.ours:
                mode = {} if percent is None else {"mode": "weights", "weights": [100 - percent, percent]}
                over = dict(zip(("primary", "secondary"), DEVICES, strict=True))
                ours = stack.enter_context(tunnel(client, server, over, port=PORT, settings=mode))
            elif way.both and percent is not None:
                stack.enter_context(_split_at_random(bed, percent))
            local = client.address(DEVICES[1]) if vpn.way == "udp b" else None
            pair = stack.enter_context(over_udp(client, server, local=local))
        route = [bed.origin.host.service_address(), "dev", pair.device]
        stack.enter_context(client.changed(["ip", "route", "add", *route], ["ip", "route", "del", *route]))
        yield Carried(pair, ours)


def controlled(node: LiveNode, name: str) -> None:
    """Make *name* the congestion control of *node*. Raises TestbedError if the kernel does not have it."""
    congestion.select(name, [node.namespace])
    found = node.run(["sysctl", "-n", "net.ipv4.tcp_congestion_control"]).stdout.strip()
    if found != name:
        raise TestbedError(f"{node.name}: its congestion control is {found} and not {name}")


@contextmanager
def _two_endpoints_on_one_path(bed: Bed) -> Iterator[None]:
    """Let connections have two subflows on the first path, as the path manager ndiffports did in older kernels."""
    device = f"dev {DEVICES[0]}"
    changes = [
        (f"address add {EXTRA}/32 {device}", f"address del {EXTRA}/32 {device}"),
        (f"rule add from {EXTRA} table 101", f"rule del from {EXTRA} table 101"),
        (f"mptcp endpoint add {EXTRA} {device} id 200 subflow", "mptcp endpoint delete id 200"),
    ]
    for each in bed.testbed.topology.node("client").endpoints:
        back = f"mptcp endpoint add {each.address} dev {each.device} id {each.id} {' '.join(each.flags)}"
        changes.append((f"mptcp endpoint delete id {each.id}", back))
    with ExitStack() as stack:
        for do, undo in changes:
            stack.enter_context(bed.client.changed(["ip", *do.split()], ["ip", *undo.split()]))
        yield


@contextmanager
def _split_at_random(bed: Bed, percent: int) -> Iterator[None]:
    """Send *percent* of the VPN's packets by the second path, each drawn at random, without resequencing.

    This is the paper's Multipath UDP. Both ends of the VPN know only the first path's address.
    """
    first, second = (bed.client.address(device) for device in DEVICES)
    own = f"udp sport {PORT} numgen random mod 100 < {percent}"
    rules = {
        bed.client: (
            f"ip saddr {first} {own} ip saddr set {second} meta mark set 7",
            f"ip daddr {second} udp dport {PORT} ip daddr set {first}",
        ),
        bed.server: (
            f"ip daddr {first} {own} ip daddr set {second}",
            f"ip saddr {second} udp dport {PORT} ip saddr set {first}",
        ),
    }
    rule = ["fwmark", "7", "table", "102"]
    with ExitStack() as stack:
        for node, (sent, received) in rules.items():
            table = (
                f"table ip vpn {{ chain out {{ type route hook output priority -300; {sent}; }}; "
                f"chain in {{ type filter hook prerouting priority -300; {received}; }}; }}"
            )
            stack.enter_context(node.changed(["nft", table], ["nft", "delete", "table", "ip", "vpn"]))
        stack.enter_context(bed.client.changed(["ip", "rule", "add", *rule], ["ip", "rule", "del", *rule]))
        yield


def measure(bed: Bed, turn: Turn[Condition]) -> dict[str, Point]:
    """Run the VPN of the turn's variant, and download through it with each congestion control in turn.

    Raises TestbedError if the VPN was not carried as intended.
    """
    at, found, vpn = turn.cell, {}, VPNS[turn.variant]
    added = Added(bed.client, bed.server)
    with carried(bed, vpn):
        for control in at.inner if turn.number % 2 else reversed(at.inner):
            controlled(bed.testbed["origin"], control)
            found[control] = point = downloaded(bed, added)
            if (why := unlike(vpn, point)) is not None:
                raise TestbedError(why)
    return found


def downloaded(bed: Bed, added: Added, warm: float = WARM) -> Point:
    """Measure a download through the VPN, after an unmeasured download of *warm* seconds.

    Raises TestbedError if nothing arrived, or if the data differ from the server's.
    """
    url = bed.origin.url(NAME)
    bed.client.run(["curl", "-sS", "-o", "/dev/null", "-I", "-m", str(PATIENCE), url], timeout=2 * PATIENCE)
    if warm:
        observe(bed.lab, wget(url), timeout=warm)
    seen = observe(bed.lab, wget(url), timeout=bed.seconds)
    whole = seen.status == 0 and seen.sha256 == bed.origin.digests[NAME]
    if not (seen.timed_out and seen.octets) and not whole:
        raise TestbedError(f"wget ended with {seen.status} and {seen.octets} bytes: {seen.said}")
    ours, theirs = added.read()
    first, last = seen.samples[0].octets, seen.samples[-1].octets
    came = {path.name: last[path.name] - first[path.name] for path in bed.lab.paths}
    return Point(
        goodput=seen.goodput,
        second=came["secondary"] / max(1, sum(came.values())),
        carried=max(came.values()) * 8 / seen.ended / RATE,
        joined=theirs.get("MPTcpExtMPJoinAckRx", 0),
        fallbacks=fallbacks(ours) + fallbacks(theirs),
    )
