# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-gateway doctor``: finds the problems that keep a home's devices from using all uplinks. It changes
nothing."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from mptcp_common.findings import Finding, fail, ok, warn
from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_common.units import counted
from mptcp_gateway import connect
from mptcp_gateway.firewall import TABLE, ruleset
from mptcp_gateway.kernel import firewall
from mptcp_gateway.kernel.resolver import try_look_up
from mptcp_gateway.model import STALLS, Lan, ParentAddress
from mptcp_gateway.settings import Settings

_NON_WEB_PORT: Final = 22
"""The port of the tunnels that test the parents."""
_TIMEOUT: Final = 3.0
"""Seconds within which a parent that refuses the tunnel has answered. A parent that accepts does not answer: it still
tries to reach the unused address."""
_UNUSED_ADDRESS: Final = "192.0.2.1"
_UNUSED_BANDWIDTH: Final = "its bandwidth is not used"


def examine(settings: Settings, status: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Yield all findings. *status*: the daemon's status; None if the daemon does not run."""
    if status is None:
        why = "the uplinks are not watched, and a home's devices have no gateway"
        yield fail("the daemon", "it does not run", why, "systemctl status mptcp-gateway")
    else:
        yield from uplinks(settings, status)
    lan = settings.lan
    if lan is None:
        return
    yield kernel(lan, settings.uplinks)
    for device in lan.devices:
        yield home_device(device, Path("/sys/class/net"))
    chains = _chains()
    yield other_firewalls(None if chains is None else dropping_chains(chains))
    for target in _parent_addresses(settings):
        yield parent(target, settings.login)
    if status is not None and status["home"]:
        yield forwarder(status["home"])


def uplinks(settings: Settings, status: Mapping[str, Any]) -> Iterator[Finding]:
    for uplink, device in settings.uplinks.items():
        check = f"uplink {uplink}"
        ways = [each for each in status["ways"] if each["uplink"] == uplink]
        if not ways:
            text = f"{device} is missing, or has no address or default route"
            yield warn(
                check, text, _UNUSED_BANDWIDTH, f"ip -brief address show {device}; ip route show default dev {device}"
            )
        for each in ways:
            text = f"IPv{each['version']} {each['address']}: {each['verdict']} for {each['for_seconds']} s"
            with_reason = f"{text} ({each['reason']})" if each["reason"] else text
            command = f"ping -I {device} {each['gateway'] or _UNUSED_ADDRESS}"
            if each["reason"] == STALLS:
                yield warn(check, with_reason, "downloads over it stall at first", f"ip link set {device} mtu 1400")
            elif each["verdict"] in ("good", "untried"):
                yield ok(check, with_reason)
            elif each["verdict"] == "plain TCP":
                why = "a device on the path removes the options of Multipath TCP, so it carries no subflows"
                yield warn(check, text, why, "use another provider, or a VPN over UDP: docs/tunnel.md")
            else:
                yield warn(
                    check,
                    with_reason,
                    _UNUSED_BANDWIDTH,
                    f"{command}   # if the gateway answers, the provider's network fails",
                )


def kernel(lan: Lan, uplinks: Mapping[str, str]) -> Finding:
    """Check whether the kernel would accept the gateway's rules."""
    try:
        firewall.check_ruleset(ruleset(lan, uplinks))
    except KernelError as error:
        why = "connections cannot be passed to the forwarder"
        return fail(
            "kernel", str(error), why, "install a kernel with nft_tproxy, nft_socket, nft_fib_inet and nft_masq"
        )
    return ok("kernel", "it accepts the rules: transparent proxying, marks, NAT")


def home_device(device: str, devices: Path) -> Finding:
    check = f"home's interface {device}"
    try:
        state = (devices / device / "operstate").read_text(encoding="ascii").strip()
    except OSError:
        return fail(check, "it does not exist", "no device reaches this host", "ip -brief link   # is its name right?")
    if state == "down":
        return fail(check, "it is down", "no device reaches this host", f"ip link set {device} up")
    return ok(check, "it exists")


def dropping_chains(chains: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names, as in nft, of the base chains whose policy drops forwarded packets or packets for the
    forwarder."""
    return [
        f"{each['family']} {each['table']} {each['name']}"
        for each in chains
        if each.get("hook") in ("forward", "input") and each.get("policy") == "drop" and each["table"] != TABLE
    ]


def other_firewalls(chains: list[str] | None) -> Finding:
    if chains is None:
        return warn(
            "other firewalls", "nft cannot list them", "a firewall may drop the home's packets", "nft list ruleset"
        )
    if not chains:
        return ok("other firewalls", "no chain of nftables drops by default")
    why = "they drop packets that they do not accept: at the hook forward, the home's packets; at input, all its TCP"
    return warn(
        "other firewalls", f"these chains drop by default: {', '.join(chains)}", why, "accept the home's packets there"
    )


def parent(target: ParentAddress, login: str) -> Finding:
    """Check whether a parent opens a tunnel to a port that is not a web port."""
    check = f"parent {target.address}, port {target.port}"
    received, timed_out = b"", False
    try:
        with socket.create_connection((str(target.address), target.port), _TIMEOUT) as connection:
            connection.sendall(connect.request(ip_address(_UNUSED_ADDRESS), _NON_WEB_PORT, login))
            try:
                while connect.answer(received) is None and (chunk := connection.recv(4096)):
                    received += chunk
            except TimeoutError:
                timed_out = True
        answer = connect.answer(received)
    except (OSError, ValueError) as error:
        return fail(
            check,
            reason(error) if isinstance(error, OSError) else str(error),
            "nothing is forwarded there",
            "on the proxy: mptcp-proxy doctor",
        )
    if answer is None and not timed_out:
        return fail(
            check,
            "it closes the connection without an answer",
            "nothing is forwarded there",
            "on the proxy: mptcp-proxy doctor",
        )
    if answer is not None and answer.status == 407:
        return fail(check, "it requires a password", "it serves no connection", "login: NAME:PASSWORD in gateway.yaml")
    if answer is not None and 400 <= answer.status < 500:
        return warn(
            check,
            f"it answers {answer.status} to CONNECT for port {_NON_WEB_PORT}",
            "connections to such ports bypass it, over one uplink",
            "acl homes in its squid.conf: docs/home.md",
        )
    return ok(check, f"it does not refuse tunnels to port {_NON_WEB_PORT}")


def forwarder(home: Mapping[str, Any]) -> Finding:
    answer, fails_open = home["forwarder"], home["fail"] == "open"
    why = "TCP uses one uplink" if fails_open else "TCP is refused"
    if answer is None:
        return fail("forwarder", "it does not run", why, "systemctl status mptcp-forwarder")
    if answer["silent"] is not None:
        return fail(
            "forwarder", f"no parent answers: {answer['silent']}", why, "on the proxy: systemctl status mptcp-proxy"
        )
    return ok("forwarder", f"{counted(answer['open'], 'connection')}, {answer['connections']} since its start")


def _parent_addresses(settings: Settings) -> Iterator[ParentAddress]:
    for each in settings.parents:
        yield from try_look_up(*each)[:1]


def _chains() -> list[dict[str, Any]] | None:
    try:
        listed = subprocess.run(["nft", "-j", "list", "chains"], capture_output=True, text=True, timeout=10, check=True)
        return [each["chain"] for each in json.loads(listed.stdout)["nftables"] if "chain" in each]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None
