"""Reads what the checks need, and tries kernel features out without touching this network namespace."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from mptcp_common.throttler_needs import KERNEL_TYPES, loads

from .. import shim
from ..configuration.check import check
from ..listening import listening_now
from ..places import Places
from ..process import children, pid_in
from ..squid import installed
from . import features, host, kernel, libraries, throttler
from .advisories import PACKAGES, advisories, packaged
from .model import Finding


def examine_host(configuration: Path, places: Places, allow_open: bool, throttler_settings: Path) -> Iterator[Finding]:
    """Yield all findings, the kernel's first."""
    head, no_answer = _throttler_head(throttler_settings)
    values = {key: value for key in kernel.SYSCTLS if (value := _sysctl(key)) is not None}
    yield kernel.mptcp_socket(_mptcp_error(), os.uname().release)
    yield from kernel.mptcp_sysctls(values, head is not None and head["path_manager"] != "kernel")
    yield kernel.path_manager_limits(_output("ip", "mptcp", "limits", "show"))
    yield kernel.reverse_path_filter(_reverse_path_filters(), _interfaces())
    yield kernel.congestion_control(values)
    yield kernel.congestion_control_towards_clients(values, _text(f"/lib/modules/{os.uname().release}/modules.dep"))

    library, build_error = _library()
    results, refusal = _probe(library)
    if refusal:
        yield features.not_probed(refusal)
    else:
        yield from features.traffic_control(results)
        yield from features.netfilter(results)
    yield libraries.pcap(loads)
    yield libraries.nftables(loads)
    yield throttler.bpf(head, loads, os.uname().release, Path(KERNEL_TYPES).exists())
    present = throttler_settings.exists()
    good, _ = _throttler("check", "--config", str(throttler_settings)) if present else (throttler.Answer(0, ""), "")
    yield throttler.settings(str(throttler_settings), present, good)
    yield throttler.daemon(head, no_answer)

    squid = installed()
    checked = check(configuration, places.service_name, squid, allow_open=allow_open)
    yield host.squid(squid)
    yield from advisories(packaged(_output(*PACKAGES)) or (squid.version if squid else ""))
    yield features.shim(results, library, build_error)
    yield host.apparmor(
        _text("/sys/kernel/security/apparmor/profiles"),
        _text("/etc/apparmor.d/local/usr.sbin.squid"),
        library,
        places.service_name,
    )
    yield host.configuration(checked, str(configuration))
    running = pid_in(places.pid_file, "squid")
    own = frozenset((running, *children(running))) if running else frozenset()
    yield from host.ports(checked, listening_now(), own, os.geteuid() == 0)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    yield host.descriptors(-1 if hard == resource.RLIM_INFINITY else hard, _text("/proc/sys/fs/file-nr"))


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _sysctl(key: str) -> str | None:
    try:
        return Path("/proc/sys", *key.split(".")).read_text().strip()
    except OSError:
        return None


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except OSError:
        return ""


def _mptcp_error() -> int | None:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()
    except OSError as error:
        return error.errno
    return None


def _reverse_path_filters() -> dict[str, int]:
    # The names may hold dots (VLANs), so the directory is read instead of a sysctl by name.
    found = Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter")
    return {path.parent.name: int(path.read_text()) for path in found}


def _interfaces() -> frozenset[str]:
    with IPRoute() as routes:
        addresses = routes.get_addr(family=socket.AF_INET)
        return frozenset(str(label) for a in addresses if (label := a.get_attr("IFA_LABEL")) and label != "lo")


def _library() -> tuple[str, str]:
    """Return the preload library and why there is none. It is not built here: a doctor only looks."""
    packaged = os.environ.get(shim.PACKAGED)
    library = Path(packaged) if packaged else shim.DEFAULT_LIBRARY
    if not library.is_file():
        return str(library), f"{library} is not built"
    if not packaged and not shim.is_current(library):
        return str(library), f"{library} is older than its source"
    return str(library), ""


def _throttler_head(settings: Path) -> tuple[dict[str, Any] | None, str]:
    """Return what the throttler says of itself; None and why, where it does not."""
    answer, text = _throttler("status", "--json", "--brief", "--config", str(settings))
    try:
        head: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        return None, answer.errors.strip().removeprefix("mptcp-throttler: ")
    return head, ""


def _throttler(*arguments: str) -> tuple[throttler.Answer, str]:
    """Run the other command of this environment; return what it says, and its standard output."""
    command = [sys.executable, "-I", "-m", "mptcp_throttler.cli", *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return throttler.Answer(1, f"mptcp-throttler {arguments[0]}: {error}"), ""
    return throttler.Answer(answer.returncode, answer.stderr), answer.stdout


def _probe(library: str) -> tuple[dict[str, str | None], str]:
    """Run the probe in a network namespace of its own. Return its results, or why it could not be run."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0:
        return {}, "only root may make a network namespace"
    if unshare is None:
        return {}, "unshare is not installed (apt install util-linux)"
    command = [unshare, "--net", "--", sys.executable, "-I", "-m", "mptcp_proxy.doctor.probe"]
    if Path(library).is_file():
        command.append(library)
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        results: dict[str, str | None] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        return {}, f"the trial failed: {error}"
    return results, ""
