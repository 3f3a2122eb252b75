# SPDX-License-Identifier: GPL-2.0-or-later
"""Gathers the input for the checks of a proxy, and tests kernel features in a separate network namespace."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from mptcp_common.findings import Finding
from mptcp_common.library_counters import read
from mptcp_common.throttler_needs import KERNEL_TYPES, loads
from mptcp_common.yaml_document import parse_document

from .. import ss
from ..configuration.check import CheckedConfiguration, check_or_problem
from ..configuration.listeners import is_loopback
from ..configuration.source import read_with_includes, statements
from ..listening import listening_now
from ..log_files import is_full
from ..places import Places, Role
from ..process import children, is_program, pid_in
from ..reloads import Outcome, ReloadError, read_outcome
from ..shim import LISTEN, TURNS
from ..squid import find_squid
from . import bounds, features, host, kernel, libraries, reading, throttler
from .advisories import PACKAGES, advisories, package_version
from .black_holes import SS_ARGUMENTS, SYSCTL, black_holes
from .refused_paths import refused_paths

_CHECKOUT = Path(__file__).resolve().parents[3] / "conf"
_NFTABLES = "nftables/limit-new-connections.nft"
_CONNECTION_LIMIT_FILES = (
    Path("/usr/share/doc/mptcp-steering-proxy/examples", _NFTABLES),
    _CHECKOUT / _NFTABLES,
)
"""Files with rules that limit new connections: in the package, and in a checkout."""
_EXAMPLES = (
    (Path("/etc/mptcp-throttler/throttler.yaml.example"), Path("/etc/mptcp-throttler/policy.yaml.example")),
    (_CHECKOUT / "throttler.yaml", _CHECKOUT / "policy.yaml"),
)
"""The throttler's example settings and policy: in the package, and in a checkout."""


def examine_host(configuration: Path, places: Places, allow_open: bool, throttler_settings: Path) -> Iterator[Finding]:
    """Yield all findings, beginning with those about the kernel."""
    root = os.geteuid() == 0
    throttler_status, answer = _throttler_status(throttler_settings)
    values = {key: value for key in kernel.SYSCTLS if (value := reading.sysctl(key)) is not None}
    yield kernel.mptcp_socket(reading.mptcp_error(), os.uname().release)
    if throttler_status is not None:
        steers = throttler_status["path_manager"] != "kernel"
    else:
        steers = None if answer.lacks_permission else False
    yield from kernel.mptcp_sysctls(values, steers)
    yield kernel.path_manager_limits(reading.output("ip", "mptcp", "limits", "show"))
    yield kernel.reverse_path_filter(_reverse_path_filters(), _interfaces())
    yield kernel.congestion_control(values)
    yield kernel.multipath_congestion_control(values, reading.modules())

    library, build_error = reading.library()
    results, refusal = reading.probe(Role.PROXY, library)
    if refusal:
        yield features.not_probed(refusal, root)
    else:
        yield from features.throttler_features(results)
        yield from features.netfilter(results)
    yield libraries.pcap(loads)
    yield libraries.nftables(loads)
    yield throttler.bpf(throttler_status, loads, os.uname().release, Path(KERNEL_TYPES).exists())
    squid = find_squid()
    checked = check_or_problem(configuration, places.service_name, squid, allow_open=allow_open)
    unreadable = host.unreadable_file(checked, reading.is_hidden)
    ports = _ports_of_clients(checked)
    endpoints = reading.json_list("ip", "-j", "mptcp", "endpoint", "show")
    listening = () if unreadable else listening_now()
    yield kernel.endpoints(endpoints, {each.address for each in listening if each.port in ports})
    ports |= {each["port"] for each in endpoints if each.get("port") and each.get("signal")}
    yield from _throttler_findings(
        throttler_settings, throttler_status, answer, () if unreadable else ports, str(configuration)
    )
    yield from _refused_paths(throttler_settings, configuration, checked, places)
    yield from black_holes(reading.sysctl(SYSCTL), ss.output(*SS_ARGUMENTS), ports, root)

    yield host.squid(squid)
    yield from advisories(package_version(reading.output(*PACKAGES)) or (squid.version if squid else ""))
    yield features.shim(results, library, build_error)
    if squid is not None:
        yield host.listeners(squid)
    yield from instance_findings(checked, str(configuration), places, Role.PROXY, library)
    yield from _bound_findings(checked, str(configuration), places, unreadable)


def _ports_of_clients(checked: CheckedConfiguration) -> set[int]:
    return {listener.port for listener in checked.listeners if not is_loopback(listener.host)}


def _throttler_findings(
    settings: Path,
    status: dict[str, Any] | None,
    answer: throttler.CommandResult,
    ports: Collection[int],
    squid_conf: str,
) -> Iterator[Finding]:
    exists = reading.is_hidden(str(settings)) or reading.exists(settings)
    checked = _throttler("check", "--config", str(settings))[0] if exists else None
    examples = next((each for each in _EXAMPLES if all(map(reading.exists, each))), _EXAMPLES[0])
    yield throttler.settings(settings, checked, examples)
    yield throttler.daemon(status, answer)
    text = reading.text(str(settings)) if checked is not None and checked.status == 0 else ""
    yield from throttler.ports(ports, throttler.listen_ports(status, text), squid_conf, settings)


def _refused_paths(
    settings: Path, configuration: Path, checked: CheckedConfiguration, places: Places
) -> Iterator[Finding]:
    settings_data = parse_document(reading.text(str(settings)), "").data
    policy = settings_data.get("policy") if isinstance(settings_data, dict) else None
    if checked.errors or not isinstance(policy, str):
        return
    # Do not use the checked lines, because they name copies of lists that only the running proxy has.
    lines, unreadable, _ = read_with_includes(configuration, places.service_name)
    if not unreadable:
        directives = list(statements(lines, places.service_name))
        yield from refused_paths(reading.text(str(settings.parent / policy)), directives, str(configuration))


def _bound_findings(checked: CheckedConfiguration, file: str, places: Places, unreadable: str) -> Iterator[Finding]:
    connections = bounds.connections_of_one_client(list(statements(checked.lines, places.service_name)))
    sizes = (reading.sysctl("net.ipv4.tcp_rmem") or "").split()
    if checked.lines and len(sizes) == 3 and not unreadable:
        minimum, initial, maximum = map(int, sizes)
        page_size = os.sysconf("SC_PAGE_SIZE")
        memory, pages = os.sysconf("SC_PHYS_PAGES") * page_size, (reading.sysctl("net.ipv4.tcp_mem") or "").split()
        # tcp_mem exists only in the initial network namespace.
        all_tcp = int(pages[1]) * page_size if len(pages) == 3 else memory
        count = checked.workers.count
        yield bounds.unread_uploads(connections, count, (minimum, initial, maximum), memory, all_tcp, file)
    table_listing = reading.output("nft", "list", "table", "inet", bounds.TABLE) if os.geteuid() == 0 else None
    yield bounds.new_connections(
        table_listing, next((path for path in _CONNECTION_LIMIT_FILES if path.exists()), _CONNECTION_LIMIT_FILES[0])
    )


def instance_findings(
    checked: CheckedConfiguration, file: str, places: Places, role: Role, library: str
) -> Iterator[Finding]:
    """Yield the findings about one instance of either role: configuration *file*, ports, limits."""
    profiles = "/sys/kernel/security/apparmor/profiles"
    yield host.apparmor(
        None if reading.is_hidden(profiles) else reading.text(profiles),
        reading.text("/etc/apparmor.d/local/usr.sbin.squid"),
        library,
        places.service_name,
    )
    yield host.configuration(checked, file, role, host.unreadable_file(checked, reading.is_hidden))
    outcome, unknown = _outcome(places)
    yield host.last_reload(outcome, unknown, file, places.service_name, role)
    yield from host.service(outcome, role)
    yield from _free_space(places)
    own_pids, in_force = own_processes(places), _ports_in_force(places)
    # Only root and Squid's user may read the environment.
    if own_pids and (entries := reading.text(f"/proc/{min(own_pids)}/environ")):
        environment = dict(each.partition("=")[::2] for each in entries.split("\0"))
        maps = reading.text(f"/proc/{min(own_pids)}/maps")
        yield features.library_features(
            environment, [name for name in (LISTEN, TURNS) if name in maps], role, read(places.counters)
        )
    yield from host.ports(checked, listening_now(), own_pids, os.geteuid() == 0, role, in_force)
    yield from host.transparent(checked, *_redirection())
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    yield host.descriptors(
        -1 if hard_limit == resource.RLIM_INFINITY else hard_limit, reading.text("/proc/sys/fs/file-nr")
    )


def _redirection() -> tuple[str | None, bool]:
    """Return the packet filter rules (None if only root can see them), and whether a routing rule delivers marked
    packets for any address to this host."""
    rules = [("nft", "list", "ruleset"), *((each, "-t", "mangle") for each in ("iptables-save", "ip6tables-save"))]
    marked_tables = {str(each["table"]) for each in reading.json_list("ip", "-j", "rule") if each.get("fwmark")}
    delivers_locally = any(
        "local default dev lo" in reading.output("ip", "route", "show", "table", each) for each in marked_tables
    )
    return "".join(reading.output(*each) for each in rules) if os.geteuid() == 0 else None, delivers_locally


def _outcome(places: Places) -> tuple[Outcome | None, str]:
    """Return the supervisor's outcome and an empty text, or None and the reason why it is unknown. If both are empty,
    no supervisor runs."""
    try:
        return read_outcome(places.reloads), ""
    except ReloadError as error:
        return None, str(error)


def _free_space(places: Places) -> Iterator[Finding]:
    """Report whether the directories to which the proxy writes have free space. The proxy creates them at its start."""
    lost_lines = "requests are served without a line in the logs"
    refused_reloads = "reloads are refused, and requests for new addresses of this host may pass"
    for directory, consequence in ((places.logs, lost_lines), (places.runtime, refused_reloads)):
        try:
            full = is_full(directory)
        except OSError:
            continue
        yield host.free_space(directory, full, consequence, f"df {directory}; du -xsh {directory.parent}/*")


def _ports_in_force(places: Places) -> frozenset[int]:
    text = reading.text(str(places.listen_ports))
    return frozenset(int(word) for word in text.strip().split(",") if word.isdigit())


def own_processes(places: Places) -> frozenset[int]:
    """Return the PIDs of an instance's Squid processes; none if it does not run. They are found through the pid file.
    If the configuration has another pid_filename or none, they are found among the supervisor's children."""
    running = {pid_in(places.pid_file, "squid")} - {None}
    outcome = None if running else _outcome(places)[0]
    if outcome is not None:
        running = {child for child in children(outcome.pid) if is_program(child, "squid")}
    return frozenset(each for pid in running if pid for each in (pid, *children(pid)))


def _reverse_path_filters() -> dict[str, int]:
    # Read the directory instead of a sysctl by name, because interface names may contain dots (VLANs).
    paths = Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter")
    return {path.parent.name: int(path.read_text()) for path in paths}


def _interfaces() -> frozenset[str]:
    with IPRoute() as routes:
        addresses = routes.get_addr(family=socket.AF_INET)
        # Use the interface's name, not the label of the address, which may differ (eth0:1).
        return frozenset(_interface_name(address["index"]) for address in addresses) - {"lo", ""}


def _interface_name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return ""  # the interface has been removed


def _throttler_status(settings: Path) -> tuple[dict[str, Any] | None, throttler.CommandResult]:
    answer, text = _throttler("status", "--json", "--brief", "--config", str(settings))
    try:
        status: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        return None, answer
    return status, answer


def _throttler(*arguments: str) -> tuple[throttler.CommandResult, str]:
    command = [sys.executable, "-I", "-m", "mptcp_throttler.cli", *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return throttler.CommandResult(1, f"mptcp-throttler {arguments[0]}: {error}"), ""
    return throttler.CommandResult(answer.returncode, answer.stderr, os.geteuid() == 0), answer.stdout
