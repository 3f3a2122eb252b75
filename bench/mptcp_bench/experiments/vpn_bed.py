# SPDX-License-Identifier: GPL-2.0-or-later
"""The testbed of the experiments ``vpn-…`` and ``tunnel``: OpenVPN by each way, and a download through it by wget.

As in the paper, VPN client and VPN server are connected by two paths, and the web server is behind the VPN server (here
over an unshaped link to the core). Cipher and compression are off.
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
from .vpn_cells import FILE_BYTES, OVER_TCP, VPNS, WAYS, Condition, Point, Vpn, wrong

NEEDS = ("root", "namespaces", "mptcp", "mptcp-pm", "tbf", "nftables", "apache2", "openvpn", "mptcpize", "wget", "curl")
SYSCTLS = {"net.ipv4.tcp_rmem": "4096 87380 6291456", "net.ipv4.tcp_wmem": "4096 16384 4194304"}
"""The settings of the paper's Table 3 that exist in a namespace. The topology turns off caching of a destination's
metrics."""
FILE_NAME = "16mb"
WARM_UP_SECONDS = 1.0
"""Length of the unmeasured download that precedes a measured one. The paper made twenty downloads over one VPN."""
OPEN_TIMEOUT = 20
"""Maximum seconds until a connection through the VPN is open."""
SECOND_ADDRESS = "10.77.1.3"
"""A second address of the client on its first path."""
VPN_NETWORK = "10.94.0.0/16"


@dataclass(frozen=True)
class Bed:
    """A testbed with an origin."""

    testbed: Testbed
    lab: Lab
    origin: Origin
    seconds: float
    """Seconds after which a download is aborted."""

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    @property
    def server(self) -> LiveNode:
        """The VPN server."""
        return self.testbed["proxy"]


@contextmanager
def vpn_bed(path_pair: Sequence[EmulatedPath], seed: int, seconds: float, octets: int = FILE_BYTES) -> Iterator[Bed]:
    """Build the testbed with two paths. A download of *octets* is aborted after *seconds*."""
    with Testbed(paths(path_pair, name="vpn"), seed=seed) as testbed:
        for name in ("client", "proxy", "origin"):
            testbed[name].run(["sysctl", "-qw", *(f"{key}={value}" for key, value in SYSCTLS.items())])
        testbed["proxy"].run(["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        testbed["core"].run(["ip", "route", "add", VPN_NETWORK, "via", testbed["proxy"].service_address()])
        origin = start_origin(testbed["origin"], {FILE_NAME: octets}, ports=(80,))
        yield Bed(testbed, lab_of(testbed), origin, seconds)


class RunningVpn(NamedTuple):
    """A running VPN, and the daemons of our tunnel if it carries the VPN."""

    ends: OpenVpn
    tunnel: Tunnel | None


@contextmanager
def running_vpn(bed: Bed, vpn: Vpn) -> Iterator[RunningVpn]:
    """Run *vpn*, and route the origin through it. Raises TestbedError."""
    client, server, way = bed.client, bed.server, WAYS[vpn.way]
    percent = None if way.share is None else round(100 * way.share)
    daemons = None
    with ExitStack() as stack:
        if vpn.way in OVER_TCP:
            for node in (client, server) if vpn.outer else ():
                set_control(node, vpn.outer)
            if vpn.way == "ports":
                stack.enter_context(_two_endpoints_on_one_path(bed))
            ends = stack.enter_context(over_tcp(client, server, multipath=vpn.way != "tcp"))
        else:
            if way.ours:
                mode = {} if percent is None else {"mode": "weights", "weights": [100 - percent, percent]}
                uplinks = dict(zip(("primary", "secondary"), DEVICES, strict=True))
                daemons = stack.enter_context(tunnel(client, server, uplinks, port=PORT, settings=mode))
            elif way.uses_both_paths and percent is not None:
                stack.enter_context(_split_at_random(bed, percent))
            local = client.address(DEVICES[1]) if vpn.way == "udp b" else None
            ends = stack.enter_context(over_udp(client, server, local=local))
        route = [bed.origin.host.service_address(), "dev", ends.device]
        stack.enter_context(client.changed(["ip", "route", "add", *route], ["ip", "route", "del", *route]))
        yield RunningVpn(ends, daemons)


def set_control(node: LiveNode, name: str) -> None:
    """Make *name* the congestion control of *node*. Raises TestbedError if that is impossible."""
    if not congestion.select(name, [node.namespace]):
        raise TestbedError(f"{node.name} cannot have the congestion control {name}")


@contextmanager
def _two_endpoints_on_one_path(bed: Bed) -> Iterator[None]:
    """Give connections two subflows on the first path, as the path manager ndiffports did in older kernels."""
    device = f"dev {DEVICES[0]}"
    changes = [
        (f"address add {SECOND_ADDRESS}/32 {device}", f"address del {SECOND_ADDRESS}/32 {device}"),
        (f"rule add from {SECOND_ADDRESS} table 101", f"rule del from {SECOND_ADDRESS} table 101"),
        (f"mptcp endpoint add {SECOND_ADDRESS} {device} id 200 subflow", "mptcp endpoint delete id 200"),
    ]
    for each in bed.testbed.topology.node("client").endpoints:
        restore = f"mptcp endpoint add {each.address} dev {each.device} id {each.id} subflow"
        changes.append((f"mptcp endpoint delete id {each.id}", restore))
    with ExitStack() as stack:
        for do, undo in changes:
            stack.enter_context(bed.client.changed(["ip", *do.split()], ["ip", *undo.split()]))
        yield


@contextmanager
def _split_at_random(bed: Bed, percent: int) -> Iterator[None]:
    """Send a random *percent* of the VPN's packets over the second path, without a resequencer.

    This is the paper's Multipath UDP. Both ends of the VPN know only the first path's address.
    """
    first, second = (bed.client.address(device) for device in DEVICES)
    share = f"udp sport {PORT} numgen random mod 100 < {percent}"
    rules = {
        bed.client: (
            f"ip saddr {first} {share} ip saddr set {second} meta mark set 7",
            f"ip daddr {second} udp dport {PORT} ip daddr set {first}",
        ),
        bed.server: (
            f"ip daddr {first} {share} ip daddr set {second}",
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
    """Run the VPN of the turn's variant, and download through it with each inner congestion control."""
    controls, points, vpn = turn.cell.inner, {}, VPNS[turn.variant]
    counters = Added(bed.client, bed.server)
    with running_vpn(bed, vpn):
        for control in controls if turn.number % 2 else reversed(controls):
            set_control(bed.testbed["origin"], control)
            points[control] = download(bed, vpn, counters, WARM_UP_SECONDS)
    return points


def download(bed: Bed, vpn: Vpn, counters: Added, warm_up: float) -> Point:
    """Measure a download through *vpn*, after an unmeasured download of *warm_up* seconds.

    *counters* began before the VPN. Raises TestbedError if nothing arrived, if the data differ from the server's, or if
    the VPN was not carried as intended.
    """
    url = bed.origin.url(FILE_NAME)
    bed.client.run(["curl", "-sS", "-o", "/dev/null", "-I", "-m", str(OPEN_TIMEOUT), url], timeout=2 * OPEN_TIMEOUT)
    if warm_up:
        observe(bed.lab, wget(url), timeout=warm_up)
    seen = observe(bed.lab, wget(url), timeout=bed.seconds)
    is_complete = seen.status == 0 and seen.sha256 == bed.origin.digests[FILE_NAME]
    if not (seen.timed_out and seen.octets) and not is_complete:
        raise TestbedError(f"wget ended with {seen.status} and {seen.octets} bytes: {seen.error_output}")
    client, server = counters.read()
    first, last = seen.samples[0].octets, seen.samples[-1].octets
    received = {path.name: last[path.name] - first[path.name] for path in bed.lab.paths}
    point = Point(
        goodput=seen.goodput,
        second=received["secondary"] / max(1, sum(received.values())),
        joined=server.get("MPTcpExtMPJoinAckRx", 0),
        fallbacks=fallbacks(client) + fallbacks(server),
    )
    if (reason := wrong(vpn, point)) is not None:
        raise TestbedError(reason)
    return point
