# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks Squid, its ports and descriptors, and whether AppArmor allows the preload libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from mptcp_common.findings import Finding, fail, ok, unseen, warn

from ..configuration.check import NO_SQUID, CheckedConfiguration
from ..listening import ListeningSocket, conflicting_socket
from ..places import Role
from ..reloads import Outcome
from ..shim import TURNS
from ..squid import Squid

_OLDEST_TESTED = 5
"""The oldest tested major version of Squid."""
_MIN_DESCRIPTORS = 16384
"""Number of descriptors below which this module warns."""
_PATH = re.compile(r"/[^\s\"';,:]+")
_RELOAD, _SERVICE = "last reload", "the running service"


def squid(found: Squid | None) -> Finding:
    if found is None:
        return fail("Squid", "Squid is not installed", "it is the proxy", "apt install squid")
    major = re.match(r"\d+", found.version)
    if major and int(major[0]) < _OLDEST_TESTED:
        return warn(
            "Squid",
            f"{found.path} is version {found.version}",
            f"versions before {_OLDEST_TESTED} were never tested, and get no security fixes",
            "apt update && apt install squid",
        )
    return ok("Squid", f"{found.path} is version {found.version}")


def listeners(found: Squid) -> Finding:
    """Report how Squid's listeners are opened for Multipath TCP: by the preload library or with Squid's own option."""
    if found.has_mptcp_option:
        return ok("listeners", f"Squid opens them for Multipath TCP with its own option mptcp, which {found.path} has")
    return ok("listeners", "the preload library opens them for Multipath TCP: this Squid has no option for that")


def unreadable_file(checked: CheckedConfiguration, is_hidden: Callable[[str], bool]) -> str:
    """Return the name of a file of the configuration that this user may not read, or an empty string. *is_hidden*:
    return whether this user may not read a file."""
    file_names = (name for each in checked.errors for name in (each.file, *_PATH.findall(each.text)))
    return next((name for name in file_names if is_hidden(name)), "")


def configuration(checked: CheckedConfiguration, file: str, role: Role, unreadable: str = "") -> Finding:
    """Check the configuration. *unreadable*: a file of it that this user may not read, or empty."""
    if unreadable:
        return unseen("configuration", f"whether {file} is good, because you may not read {unreadable}")
    # Another finding already reports a missing Squid.
    errors = [problem for problem in checked.errors if problem != NO_SQUID]
    if not errors and checked.unit_warnings:
        others = f", and {len(checked.unit_warnings) - 1} more" if len(checked.unit_warnings) > 1 else ""
        return warn(
            "configuration",
            f"{replace(checked.unit_warnings[0], warning=False)}{others}",
            f"the {role.value} works if a user starts it, but as a service it does not start, or loses files that it"
            " writes",
            f"mptcp-proxy check --role {role.value} --config {file}",
        )
    if not errors:
        return ok("configuration", f"{file} is good")
    others = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return fail(
        "configuration", f"{errors[0]}{others}", "the proxy refuses to start", f"mptcp-proxy check --config {file}"
    )


def last_reload(outcome: Outcome | None, why_unknown: str, file: str, service_name: str, role: Role) -> Finding:
    """Check the last reload. *outcome*: the outcome of this instance; None if the instance does not run, or if the
    outcome is unknown for the reason *why_unknown*."""
    if why_unknown:
        return unseen(_RELOAD, f"whether the running {role.value} uses the settings of its file")
    if outcome is None:
        return ok(_RELOAD, f"no {role.value} with the name {service_name} runs")
    if not outcome.count:
        return ok(_RELOAD, f"the {role.value} has not reloaded since its start")
    when = datetime.fromtimestamp(outcome.time).astimezone().isoformat(" ", "seconds")
    if outcome.unconfirmed:
        text = "clients may be unable to reach the ports in the file"
        return warn(
            _RELOAD, f"accepted at {when}, but {outcome.unconfirmed}", text, f"journalctl -u mptcp-{role.value}"
        )
    if not outcome.refused:
        return ok(_RELOAD, f"accepted at {when}")
    return warn(
        _RELOAD,
        f"refused at {when}: {outcome.refused}",
        f"the running {role.value} still has its earlier settings",
        f"mptcp-proxy check --role {role.value} --config {file} && mptcp-proxy reload --service-name {service_name}",
    )


def service(outcome: Outcome | None, role: Role) -> Iterator[Finding]:
    """Yield the state that this instance's supervisor reports, if it is known."""
    if outcome is None:
        return
    if outcome.problems:
        unit = f"mptcp-{role.value}"
        why = "some clients may have to wait, or some logs and state are lost"
        yield warn(_SERVICE, "; ".join(outcome.problems), why, f"journalctl -u {unit} -p warning")
    else:
        yield ok(_SERVICE, outcome.serving or "Squid does not listen yet")


def free_space(directory: Path, is_full: bool, consequence: str, remedy: str) -> Finding:
    """Report whether *directory* has free space. *consequence*: the effect if it has none."""
    check = f"free space in {directory}"
    if is_full:
        return warn(check, "its file system is full", consequence, remedy)
    return ok(check, "its file system is not full")


def apparmor(profiles: str | None, local_rules: str, library: str, service_name: str) -> Finding:
    """Check AppArmor. *profiles*: content of /sys/kernel/security/apparmor/profiles; None if hidden.
    *local_rules*: content of /etc/apparmor.d/local/usr.sbin.squid."""
    if profiles is None:
        return unseen("AppArmor", "whether a profile for Squid is enforced")
    enforced = re.search(r"^(?:/usr/sbin/)?squid \(enforce\)$", profiles, re.MULTILINE)
    if not enforced:
        return ok("AppArmor", "no enforced profile for Squid")
    needed = (
        *(f"{each} mr," for each in dict.fromkeys((library, str(Path(library).with_name(TURNS))))),
        f"/{{,var/}}run/{service_name}/** rwk,",
        f"/var/log/{service_name}/** rwk,",
    )
    missing = [rule for rule in needed if rule.split()[0] not in local_rules]
    if not missing:
        return ok("AppArmor", "Squid's profile allows the preload libraries and the proxy's directories")
    lines = " ".join(f"'{rule}'" for rule in missing)
    return fail(
        "AppArmor",
        "the enforced profile of Squid does not allow the preload libraries and the proxy's directories",
        "Squid then cannot load the libraries or write its logs, and ends at once",
        f"printf '%s\\n' {lines} >> /etc/apparmor.d/local/usr.sbin.squid"
        " && apparmor_parser -r /etc/apparmor.d/usr.sbin.squid",
    )


def ports(
    checked: CheckedConfiguration,
    sockets: Iterable[ListeningSocket],
    own_pids: frozenset[int],
    root: bool,
    role: Role = Role.PROXY,
    in_force: Collection[int] = (),
) -> Iterator[Finding]:
    """Check each port. *own_pids*: processes of the running proxy, which listens on the ports *in_force*."""
    all_sockets = tuple(sockets)
    for listener in checked.listeners:
        name = f"port {listener.port}"
        found = conflicting_socket(listener.host, listener.port, all_sockets)
        if found and own_pids.intersection(found.pids) and found.mptcp:
            yield ok(name, "the running proxy listens on it over Multipath TCP")
        elif found and own_pids.intersection(found.pids) and role is Role.RELAY:
            yield ok(name, "the running relay listens on it")
        elif found and own_pids.intersection(found.pids):
            yield fail(
                name,
                "the running proxy listens on it over plain TCP",
                "every client has only one path",
                "journalctl -u mptcp-proxy --grep mptcp_listen   # shows the reason; then: systemctl restart"
                " mptcp-proxy",
            )
        elif found and not found.pids and not root:
            yield unseen(name, f"which process listens on it{', over Multipath TCP' if found.mptcp else ''}")
        elif found:
            command = f"kill {found.pids[0]}" if found.pids else f"ss -ltnp 'sport = :{listener.port}'"
            yield fail(
                name,
                f"{found} listens on it",
                "the proxy cannot listen on it as well",
                f"{command}   # or another http_port in line {listener.statement.number} of {listener.statement.file}",
            )
        elif own_pids and listener.port in in_force:
            unit = f"mptcp-{role.value}"
            yield fail(
                name,
                f"the {role.value} runs, but no process listens on it",
                "clients are refused",
                f"journalctl -u {unit} -p warning; tail /var/log/mptcp{role.value}/cache.log   # shows the reason;"
                f" then: systemctl restart {unit}",
            )
        elif listener.port < 1024 and not root:
            yield warn(name, "free, but below 1024", "only root may listen on it", "start the proxy as root")
        else:
            yield ok(name, "free")


def transparent(checked: CheckedConfiguration, packet_filter: str | None, delivers_locally: bool) -> Iterator[Finding]:
    """Check that each transparent listener gets its connections. *packet_filter*: the output of nft and iptables-save;
    None if unknown. *delivers_locally*: whether a routing rule delivers marked packets for any address to this host."""
    for listener in checked.listeners:
        if "tproxy" not in listener.options:
            continue
        name, port = f"transparent port {listener.port}", listener.port
        if packet_filter is None:
            yield unseen(name, "whether a packet filter redirects connections to it")
        elif not re.search(rf"tproxy (?:ip6? )?to \S*:{port}\b|TPROXY .*--on-port {port}\b", packet_filter):
            yield fail(name, "no packet filter redirects connections to it", "clients bypass it", "docs/transparent.md")
        elif not delivers_locally:
            text = "no rule with a mark selects a table with: local default dev lo"
            yield fail(name, text, "marked packets are forwarded, and bypass the proxy", "docs/transparent.md")
        else:
            yield ok(name, "connections are redirected to it")


def descriptors(hard_limit: int, file_nr: str) -> Finding:
    """Check descriptors. *hard_limit*: RLIMIT_NOFILE, -1 for none. *file_nr*: /proc/sys/fs/file-nr (proc(5))."""
    fields = [int(field) for field in file_nr.split()]
    free_count = fields[2] - fields[0] if len(fields) == 3 else _MIN_DESCRIPTORS
    why = "each transfer takes two descriptors; if none is free, clients wait"
    if free_count < _MIN_DESCRIPTORS:
        remedy = f"sysctl -w fs.file-max={fields[0] + 4 * _MIN_DESCRIPTORS}"
        return warn("descriptors", f"only {free_count} are left on this host", why, remedy)
    if 0 <= hard_limit < _MIN_DESCRIPTORS:
        return warn(
            "descriptors",
            f"a process may have {hard_limit}",
            why,
            "systemctl start mptcp-proxy   # its unit sets LimitNOFILE; in a shell: ulimit -Hn 65536",
        )
    limit = "without limit" if hard_limit < 0 else f"up to {hard_limit}"
    return ok("descriptors", f"{limit} for a process, {free_count} left on this host")
