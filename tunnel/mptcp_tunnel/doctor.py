# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-tunnel doctor``: finds the problems that keep a tunnel of this host from working. It changes nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from mptcp_common.findings import Finding, fail, ok, warn
from mptcp_common.kernel_error import KernelError
from mptcp_common.units import counted
from mptcp_tunnel.kernel.network import index_of
from mptcp_tunnel.kernel.routes import Routes
from mptcp_tunnel.kernel.trial import find_missing_features
from mptcp_tunnel.settings import Settings, Tunnel

_BOUND_PORT = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) ", re.M)
"""A line of /proc/net/udp: the local address and port. proc(5)."""
_DAEMON = "the daemon"


def examine(settings: Settings, status: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Yield all findings. *status*: the daemon's status; None if the daemon does not answer."""
    missing_features = find_missing_features()
    for need, reason in missing_features.items():
        yield fail("kernel", f"{need.what}: {reason}", need.why, need.remedy)
    if not missing_features:
        yield ok("kernel", "it supports virtual devices, BPF programs at clsact and netfilter queues")
    with closing(Routes()) as routes:
        path_interfaces = {interface for each in settings.tunnels for _, interface in each.paths}
        for name in settings.uplinks:
            if name not in path_interfaces:
                yield check_uplink(name)
        for tunnel in settings.tunnels:
            yield from _check_routes(routes, tunnel)
            yield check_program(tunnel, _bound_ports())
    yield from check_paths(settings.tunnels, status)


def check_uplink(name: str) -> Finding:
    check = f"uplink {name}"
    try:
        index_of(name)
        state = Path(f"/sys/class/net/{name}/operstate").read_text(encoding="ascii").strip()
    except KernelError as error:
        return warn(check, str(error), "the daemon waits for it", "ip -brief link   # is its name right?")
    except OSError:
        return ok(check, "it exists")
    if state == "down":
        return warn(check, "it is down", "it carries no packets", f"ip link set {name} up")
    return ok(check, "it exists")


def _check_routes(routes: Routes, tunnel: Tunnel) -> Iterator[Finding]:
    for name, interface in tunnel.paths:
        check = f"tunnel {tunnel.name}: path {name}"
        assert tunnel.peer is not None
        try:
            next_hop, source = routes.route(tunnel.peer.address, interface, routes.addresses())
        except KernelError as error:
            yield fail(
                check,
                str(error),
                "it carries no packets",
                f"ip route get {tunnel.peer.address} oif {interface}   # see docs/relay.md for routes of uplinks",
            )
        else:
            yield ok(check, f"packets are sent from {source} on {interface} to the next hop {next_hop}")


def check_program(tunnel: Tunnel, bound: Collection[int]) -> Finding:
    """Check whether the tunnel program runs. *bound*: the UDP ports in use on this host."""
    check = f"tunnel {tunnel.name}: program"
    if tunnel.port in bound:
        return ok(check, f"a program uses UDP port {tunnel.port}")
    return warn(
        check,
        f"no program uses UDP port {tunnel.port}",
        "the tunnel carries no packets",
        f"ss -lun   # does it run, with ListenPort = {tunnel.port} (WireGuard) or lport {tunnel.port} (OpenVPN)?",
    )


def check_paths(tunnels: Sequence[Tunnel], status: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Check the state of the paths that the running daemon reports."""
    if status is None:
        yield warn(_DAEMON, "it does not answer", "the tunnels' packets are not split", "systemctl status mptcp-tunnel")
        return
    paths_by_tunnel = {each["name"]: each["paths"] for each in status["tunnels"]}
    for tunnel in tunnels:
        check = f"tunnel {tunnel.name}: paths"
        paths = paths_by_tunnel.get(tunnel.name, ())
        silent = [each["path"] for each in paths if not each["alive"]]
        if not paths or len(silent) == len(paths):
            yield fail(
                check,
                "no path is alive",
                "the other end does not answer: its key differs, its daemon does not run, or a firewall drops messages",
                "run mptcp-tunnel doctor at the other end; its firewall must accept UDP to the tunnel's port",
            )
        elif silent:
            text = f"{counted(len(paths) - len(silent), 'path')} up; silent: {', '.join(silent)}"
            yield warn(check, text, "their bandwidth is not used", "see the lines about uplinks")
        else:
            yield ok(check, f"{counted(len(paths), 'path')}, none silent")


def _bound_ports() -> set[int]:
    found: set[int] = set()
    for name in ("udp", "udp6"):
        path = Path("/proc/thread-self/net", name)
        if path.exists():
            found |= {int(port, 16) for port in _BOUND_PORT.findall(path.read_text(encoding="ascii"))}
    return found
