# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks the settings against the host. The daemon refuses to start after an error; it starts despite warnings."""

from __future__ import annotations

import grp
import os
import pwd
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path

from mptcp_common import readable
from mptcp_common import throttler_needs as needs
from mptcp_common.problems import Problem, Severity, did_you_mean
from mptcp_common.tcp_table import ESTABLISHED, LISTEN, sockets
from mptcp_common.trust import THROTTLER_USER
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.mptcp.model import unmap
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.policy.values import Network, Prefixes


def host_problems(settings: Settings, *, as_daemon: bool = False) -> Iterator[Problem]:
    """Yield a problem for each item of *settings* that this host lacks. *as_daemon*: the process becomes the daemon."""
    present = sorted(name for _, name in socket.if_nameindex())
    for name in settings.interfaces:
        if name not in present:
            hint = f"{did_you_mean(name, present)}; there are: {', '.join(present) or 'none'}"
            yield settings.problem("interfaces", f"there is no interface {name} on this host{hint}")
    if (group := settings.status_group) is None:
        return
    try:
        group_id = grp.getgrnam(group).gr_gid
    except KeyError:
        yield settings.problem("status_group", f"there is no group {group}; addgroup --system {group}")
        return
    # chown(2): an unprivileged process can give a file only to its own groups.
    if as_daemon and os.geteuid() != 0 and group_id not in (os.getegid(), *os.getgroups()):
        remedy = f"systemctl edit mptcp-throttler, and write SupplementaryGroups={group} below [Service]"
        yield settings.problem("status_group", f"the throttler's user is not in {group}; {remedy}")


def stacked_interfaces(settings: Settings, lower_interfaces: Mapping[str, Collection[str]]) -> Iterator[Problem]:
    """Yield a warning for each pair of listed interfaces if one is stacked on the other, directly or not.

    *lower_interfaces*: for each interface, those directly below. Both may be listed if the policy identifies paths by
    clients and caps only downloads, or if all capped traffic uses only the lower interface.
    """
    for upper in settings.interfaces:
        lower = [upper]
        for name in lower:  # this list grows during the loop
            lower += [each for each in lower_interfaces.get(name, ()) if each not in lower]
        for name in settings.interfaces:
            if name in lower[1:]:
                message = (
                    f"{upper} is stacked on {name}, and packets of {upper} pass both: they are capped twice, "
                    f"and subflows on {upper} may count as subflows on {name}; list only {upper} or {name}"
                )
                yield settings.problem("interfaces", message, Severity.WARNING)


def check_client_addresses(settings: Settings, policy: Policy, networks: Collection[Network]) -> Iterator[Problem]:
    """Yield a warning if clients are connected and none is on a path of *policy*; if none is connected, a note if no
    path overlaps *networks*, the networks of the host's addresses."""
    paths = list(policy.paths.values())
    if not paths or any(path.clients is None for path in paths):
        return  # a path without clients may have any client
    ranges = [each for path in paths for each in path.clients or ()]
    prefixes = Prefixes((each, True) for each in ranges)
    clients = {unmap(each.remote) for each in sockets(ESTABLISHED) if each.local_port in settings.listen_ports}
    # Ignore connections of this host itself, such as those of monitoring.
    remote = sorted(each for each in clients if not ip_address(each).is_loopback)
    if remote and not any(map(prefixes.contains, remote)):
        message = f"no path contains any of the connected clients ({len(remote)}), e.g. {ip_address(remote[0])}"
        yield Problem(str(settings.policy), 0, 0, "paths", None, message, Severity.WARNING)
    if not remote and networks and not any(a.version == b.version and a.overlaps(b) for a in ranges for b in networks):
        message = (
            f"no path has clients in this host's networks, {', '.join(map(str, networks))}: this is correct if all "
            "clients are behind a router, and wrong if the policy still has the addresses of an example"
        )
        yield Problem(str(settings.policy), 0, 0, "paths", None, message, Severity.NOTE)


def ports_without_listener(settings: Settings) -> Iterator[Problem]:
    """Yield a warning for each port of the proxy without a listener: the throttler then has nothing to do."""
    listening = {each.local_port for each in sockets(LISTEN)}
    for port in settings.listen_ports:
        if port not in listening:
            message = f"no program listens on port {port} now; is mptcp-proxy running, and with this port?"
            yield settings.problem("listen_ports", message, Severity.WARNING)


def check_tunnel_daemon(settings: Settings) -> Iterator[Problem]:
    """Yield a warning if the settings name tunnels and the tunnel daemon does not answer."""
    with socket.socket(socket.AF_UNIX) as client:
        if settings.tunnel_ports and (code := client.connect_ex(str(settings.tunnel_socket))):
            message = f"the tunnel daemon does not answer ({os.strerror(code)}); is mptcp-tunnel running?"
            yield settings.problem("tunnel_socket", message, Severity.WARNING)


def unreadable_files(paths: Iterable[Path], user: str = THROTTLER_USER) -> Iterator[Problem]:
    """Yield a problem for each of *paths* that the daemon's *user* cannot read. Only root can check; without that user,
    the daemon runs as root and can read all."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return
    if os.geteuid() != 0:
        return
    groups = [*os.getgrouplist(user, entry.pw_gid), *readable.groups_of_unit("mptcp-throttler.service")]
    for path in readable.unreadable(paths, entry.pw_uid, entry.pw_gid, groups):
        message = f"the throttler's user {user} cannot read it; chmod o+r it, or chgrp {user} and chmod g+r"
        yield Problem(str(path), 0, 0, "", None, message)


def library_problems(
    settings: Settings, policy: Policy, loads: Callable[[str], bool], release: str, has_btf: bool
) -> Iterator[Problem]:
    """Yield a problem for each missing library, and for missing kernel types. *loads*: whether a library can be
    loaded; *release*: of the kernel; *has_btf*: ``KERNEL_TYPES`` exists."""
    if missing := needs.missing_pcap(loads):
        yield _problem(settings, "", missing, Severity.ERROR)
    if (missing := needs.missing_nftables(loads)) and (policy.acts_on_upload or policy.caps_plain_tcp):
        yield _problem(settings, "policy", missing._replace(why="uploads and plain TCP need it"), Severity.ERROR)
    elif missing and needs.uses_nftables(settings.netfilter):
        yield _problem(settings, "netfilter", missing._replace(why=f"{settings.netfilter} needs it"), Severity.ERROR)
    elif missing and settings.netfilter == needs.ANY_BACKEND:
        yield _problem(settings, "netfilter", missing, Severity.WARNING)
    if missing := needs.missing_bpf(loads, release, has_btf):
        yield _problem(settings, "", missing, Severity.WARNING)


def needed_features(settings: Settings, policy: Policy, loads: Callable[[str], bool] = needs.loads) -> tuple[str, ...]:
    """Return the kernel features that *settings* and *policy* need, without nftables if its library is missing."""
    features = dict.fromkeys(
        [*needs.KERNEL_FEATURES, settings.netfilter, *(needs.UPLOAD_FEATURES if policy.acts_on_upload else ())]
    )
    if policy.caps_plain_tcp:
        features[needs.NFTABLES_BACKEND] = None
    lacks_nftables = needs.missing_nftables(loads) is not None
    return tuple(feature for feature in features if not (lacks_nftables and needs.uses_nftables(feature)))


def kernel_problems(
    settings: Settings, policy: Policy, results: Mapping[str, str | None], refusal: str = ""
) -> Iterator[Problem]:
    """Yield the needed features that the kernel lacks according to *results* of ``kernel.feature_probe``. *refusal*:
    why they could not be tried."""
    if refusal:
        yield settings.problem("", f"the kernel's features were not tested: {refusal}", Severity.NOTE)
    for feature, missing in needs.missing_kernel_features(results, needed_features(settings, policy)):
        is_backend = feature in (*needs.BACKENDS, needs.ANY_BACKEND)
        key = "policy" if feature in needs.UPLOAD_FEATURES else "netfilter" if is_backend else ""
        yield _problem(settings, key, missing, Severity.ERROR)


def _problem(settings: Settings, key: str, missing: needs.MissingFeature, severity: Severity) -> Problem:
    return settings.problem(key, f"{missing.what}: {missing.why}; {missing.remedy}", severity)
