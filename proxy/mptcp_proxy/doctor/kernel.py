# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks the kernel's MPTCP and its settings (Documentation/networking/mptcp-sysctl.rst), routing, and congestion
control."""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from mptcp_common.findings import Finding, fail, ok, unseen, warn
from mptcp_common.units import counted

from ..places import Role

SYSCTLS = (
    "net.mptcp.enabled",
    "net.mptcp.checksum_enabled",
    "net.mptcp.allow_join_initial_addr_port",
    "net.mptcp.scheduler",
    "net.mptcp.pm_type",
    "net.mptcp.path_manager",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    "net.core.wmem_max",
)
SEND_BUFFER = 2 << 20
"""Minimum of net.core.wmem_max, bytes: half of the largest send buffer that the throttler sets (socket(7))."""
_SOCKET = "kernel MPTCP"
_LIMITS, _ENDPOINTS = "path manager", "endpoints"
_MULTIPATH_CONGESTION_CONTROL = {
    Role.PROXY: "congestion control towards clients",
    Role.RELAY: "congestion control towards parents",
}
_WITHOUT_BBR = {
    Role.PROXY: "with cubic, the packet scheduler considers a throttled subflow faster than it is, and"
    " may starve the other paths; the proxy still works",
    Role.RELAY: "with cubic, a lossy uplink carries little; the relay still works",
}
_GOOD_CONGESTION_CONTROLS = ("cubic", "bbr", "bbr2", "bbr3")


_WITHOUT_MPTCP = {
    Role.PROXY: "clients get plain TCP, over only one path",
    Role.RELAY: "parents are reached over plain TCP, over only one uplink",
}


def mptcp_socket(error: int | None, release: str, role: Role = Role.PROXY) -> Finding:
    """Check for MPTCP sockets. *error*: errno of socket(2) with IPPROTO_MPTCP, or None."""
    why = _WITHOUT_MPTCP[role]
    if error is None:
        return ok(_SOCKET, f"Linux {release} supports MPTCP sockets")
    if error == errno.ENOPROTOOPT:
        return fail(_SOCKET, "MPTCP is switched off in this kernel", why, lasting_sysctl("net.mptcp.enabled", "1"))
    if error in (errno.EPROTONOSUPPORT, errno.EINVAL):
        remedy = "apt install linux-image-$(dpkg --print-architecture) && reboot   # Linux 5.6 or later, CONFIG_MPTCP=y"
        return fail(_SOCKET, f"Linux {release} was built without MPTCP", why, remedy)
    text = f"no MPTCP socket: {os.strerror(error)}"
    return fail(_SOCKET, text, why, "ausearch -m avc -ts recent   # SELinux or a seccomp filter refuses it")


def mptcp_sysctls(values: Mapping[str, str], steers: bool | None = False) -> Iterator[Finding]:
    """Check sysctls. *values*: values by name, without the sysctls that this kernel lacks. *steers*: whether the
    throttler uses the user-space path manager, which it needs for rules that steer by order; None if
    unknown."""
    if values.get("net.mptcp.allow_join_initial_addr_port", "1") == "0":
        yield fail(
            "sysctl join address",
            "net.mptcp.allow_join_initial_addr_port is 0",
            "clients may not join at the address to which they connected, so there is never a second subflow",
            lasting_sysctl("net.mptcp.allow_join_initial_addr_port", "1"),
        )
    else:
        yield ok("sysctl join address", "clients may join at the address to which they connected")
    if values.get("net.mptcp.checksum_enabled", "0") != "0":
        yield warn(
            "sysctl checksum",
            "net.mptcp.checksum_enabled is 1",
            "the kernel computes another checksum of every byte (RFC 8684, 3.3.1), which slows small processors",
            lasting_sysctl("net.mptcp.checksum_enabled", "0"),
        )
    else:
        yield ok("sysctl checksum", "no DSS checksums")
    scheduler = values.get("net.mptcp.scheduler", "default")
    if scheduler != "default":
        yield warn(
            "sysctl scheduler",
            f"net.mptcp.scheduler is {scheduler}",
            "the throttler is tested only with the kernel's default scheduler",
            lasting_sysctl("net.mptcp.scheduler", "default"),
        )
    else:
        yield ok("sysctl scheduler", "the default packet scheduler")
    # Older kernels do not show this sysctl in every network namespace.
    maximum = values.get("net.core.wmem_max", str(SEND_BUFFER))
    if int(maximum) < SEND_BUFFER:
        yield warn(
            "sysctl send buffer",
            f"net.core.wmem_max is {maximum}",
            "if one path has a cap below 3 Mbit/s, the others may get only two thirds of their links",
            lasting_sysctl("net.core.wmem_max", str(SEND_BUFFER)),
        )
    else:
        yield ok("sysctl send buffer", "the limit allows send buffers that suffice for low caps")
    # net.mptcp.path_manager (Linux 6.16) is the path manager's name, and pm_type its number.
    manager = values.get("net.mptcp.path_manager") or {"0": "kernel", "1": "userspace"}.get(
        values.get("net.mptcp.pm_type", "0"), "unknown"
    )
    if manager == "userspace" and steers:
        yield ok("sysctl path manager", "in user space: the throttler's, because its policy steers by order")
    elif manager == "userspace" and steers is None:
        yield unseen("sysctl path manager", "whether the throttler needs a path manager in user space")
    elif manager != "kernel":
        key, value = (
            ("net.mptcp.path_manager", "kernel") if "net.mptcp.path_manager" in values else ("net.mptcp.pm_type", "0")
        )
        yield warn(
            "sysctl path manager",
            f"the path manager is {manager}, not the kernel's",
            "without a daemon for it (mptcpd, or a throttler that steers by order), joins are rarely accepted",
            f"mptcp-throttler cleanup; {lasting_sysctl(key, value)}",
        )
    else:
        yield ok("sysctl path manager", "the kernel's own path manager")


def path_manager_limits(text: str) -> Finding:
    """Check the limits. *text*: the output of ``ip mptcp limits show`` (ip-mptcp(8))."""
    match = re.search(r"subflows (\d+)", text)
    if match is None:
        return warn(
            _LIMITS,
            "the path manager's limits cannot be read",
            "with a limit of 0 clients could not join a second subflow",
            "apt install iproute2 && ip mptcp limits show",
        )
    subflows = int(match[1])
    if subflows == 0:
        return fail(
            _LIMITS,
            "the limit is 0 additional subflows for each connection",
            "the kernel refuses every MP_JOIN, so clients stay on one path",
            "ip mptcp limits set subflows 8   # mptcp-proxy.service does this at each boot",
        )
    return ok(_LIMITS, f"up to {counted(subflows, 'additional subflow')} for each connection")


def endpoints(found: Sequence[Mapping[str, Any]], listening: Collection[str]) -> Finding:
    """Check the proxy's endpoints. *found*: the output of ``ip -j mptcp endpoint show``. *listening*: addresses of the
    proxy's listeners, in the form of ss(8)."""
    subflow_endpoints = [each for each in found if each.get("subflow") or each.get("fullmesh")]
    everywhere = {"*", "0.0.0.0", "[::]"} & set(listening)
    without_listener = [
        each
        for each in found
        if each.get("signal")
        and not each.get("port")
        and not everywhere
        and not {each["address"], f"[{each['address']}]"} & set(listening)
    ]
    if subflow_endpoints:
        return warn(
            _ENDPOINTS,
            f"the proxy opens subflows to its clients from {_addresses(subflow_endpoints)}",
            "clients are behind NATs and firewalls, and the throttler does not cap subflows that the proxy opened",
            _deletions(subflow_endpoints),
        )
    if without_listener and listening:
        return warn(
            _ENDPOINTS,
            f"{_addresses(without_listener)} is announced to clients, but the proxy does not listen there",
            "the kernel resets each join to such an address",
            f"{_deletions(without_listener)}   # or add an http_port with this address",
        )
    text = f"announced to clients: {_addresses(found)}" if found else "no other address is announced to clients"
    return ok(_ENDPOINTS, text)


def _addresses(endpoints: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(each["address"] + (f" port {each['port']}" if each.get("port") else "") for each in endpoints)


def _deletions(endpoints: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"ip mptcp endpoint delete id {each['id']}" for each in endpoints)


def reverse_path_filter(values: Mapping[str, int], interfaces: frozenset[str]) -> Finding:
    """Check rp_filter. *values*: net.ipv4.conf.NAME.rp_filter by NAME. *interfaces*: interfaces that have an address,
    without lo."""
    for_all = values.get("all", 0)
    # ip-sysctl.rst: the larger of "all" and the interface's own value applies; 1 is strict.
    strict = sorted(name for name in interfaces if max(for_all, values.get(name, 0)) == 1)
    if len(interfaces) < 2 or not strict:
        return ok("rp_filter", "strict reverse-path filtering drops no subflow")
    # In a name, sysctl(8) exchanges dots and slashes, so a dot of an interface name (VLANs) is written as a slash.
    commands = [lasting_sysctl(f"net.ipv4.conf.{name.replace('.', '/')}.rp_filter", "2") for name in strict]
    return warn(
        "rp_filter",
        f"strict reverse-path filtering on {', '.join(strict)}",
        "the kernel silently drops a subflow that arrives on an interface other than that of the route to its sender",
        " && ".join(commands),
    )


def congestion_control(values: Mapping[str, str]) -> Finding:
    current = values.get("net.ipv4.tcp_congestion_control", "unknown")
    if current in _GOOD_CONGESTION_CONTROLS:
        return ok("congestion control", f"TCP uses {current}")
    available = values.get("net.ipv4.tcp_available_congestion_control", "").split()
    better = "cubic" if "cubic" in available else "bbr"
    return warn(
        "congestion control",
        f"TCP uses {current}",
        "it does not use long or lossy paths fully; cubic and bbr do",
        ("" if better in available else f"modprobe tcp_{better} && ")
        + lasting_sysctl("net.ipv4.tcp_congestion_control", better),
    )


def multipath_congestion_control(values: Mapping[str, str], modules: str, role: Role = Role.PROXY) -> Finding:
    """Check for bbr, the default of "mptcp-proxy run". *modules*: modules.dep of this kernel (depmod(8))."""
    if "bbr" in values.get("net.ipv4.tcp_available_congestion_control", "").split():
        return ok(_MULTIPATH_CONGESTION_CONTROL[role], "bbr is available")
    if re.search(r"(?:^|/)tcp_bbr\.ko", modules, re.MULTILINE):
        text, remedy = "bbr is not loaded", "modprobe tcp_bbr && echo tcp_bbr > /etc/modules-load.d/mptcp-proxy.conf"
    else:
        text = "this kernel has no bbr"
        remedy = "modprobe tcp_bbr || (apt install linux-image-$(dpkg --print-architecture) && reboot)"
    return warn(_MULTIPATH_CONGESTION_CONTROL[role], text, _WITHOUT_BBR[role], remedy)


def lasting_sysctl(key: str, value: str) -> str:
    """Return the command that sets a sysctl now and at every boot (sysctl.d(5))."""
    return f"echo '{key} = {value}' >> /etc/sysctl.d/90-mptcp-proxy.conf && sysctl -w {shlex.quote(f'{key}={value}')}"
