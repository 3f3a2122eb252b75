# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks the throttler's settings, whether the throttler answers, whether it covers the proxy's ports, and which BPF
features it lacks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptcp_common.endpoints import PROXY_PORT
from mptcp_common.findings import Finding, fail, ok, unseen, warn
from mptcp_common.throttler_needs import BPF, WITHOUT_BPF, missing_bpf
from mptcp_common.units import counted
from mptcp_common.yaml_document import parse_document

_SETTINGS, _DAEMON, _PORTS, _BPF = "throttler settings", "throttler", "throttled ports", "BPF"
_DENIED = ("Permission denied", "permission denied")
_START = "systemctl enable --now mptcp-throttler; journalctl -u mptcp-throttler -p warning"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a ``mptcp-throttler`` command: its exit status and stderr."""

    status: int
    errors: str
    root: bool = True

    @property
    def lacks_permission(self) -> bool:
        """Whether the command failed because of missing permissions."""
        return not self.root and self.status != 0 and any(each in self.errors for each in _DENIED)


def settings(file: Path, checked: CommandResult | None, examples: tuple[Path, Path]) -> Finding:
    """Check the throttler's settings. *checked*: result of ``mptcp-throttler check``; None if *file* is missing.
    *examples*: example files of settings and of a policy."""
    if checked is None:
        targets = (file, file.with_name("policy.yaml"))
        copies = (shlex.join(["install", "-Dm644", *map(str, pair)]) for pair in zip(examples, targets, strict=True))
        return warn(
            _SETTINGS,
            f"there is no {file}",
            "the proxy runs without the throttler: nothing is capped",
            f"{' && '.join(copies)}   # then edit both",
        )
    if checked.lacks_permission:
        return unseen(_SETTINGS, checked.errors.splitlines()[0])
    if checked.status == 0:
        return ok(_SETTINGS, f"{file} and its policy are good for this host")
    messages = checked.errors.splitlines() or [f"mptcp-throttler check fails with status {checked.status}"]
    lines = [each for each in messages if ": note: " not in each] or messages
    more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
    return fail(
        _SETTINGS,
        f"{lines[0]}{more}",
        "the throttler does not start, or refuses the next reload",
        f"mptcp-throttler check --config {shlex.quote(str(file))}",
    )


def daemon(status: Mapping[str, Any] | None, answer: CommandResult) -> Finding:
    """Check the daemon. *status*: the output of ``mptcp-throttler status --json --brief``; None if the daemon does not
    answer, for the reason in *answer*."""
    if status is None:
        reason = answer.errors.strip().removeprefix("mptcp-throttler: ")
        if answer.lacks_permission:
            return unseen(_DAEMON, reason)
        return warn(_DAEMON, reason or "it does not answer", "nothing is capped while it does not run", _START)
    refused = status["reloads"]["last_refused"]
    if refused is not None:
        return warn(
            _DAEMON,
            f"it refused its last reload: {refused['errors'][0]}",
            "the previous policy is in force",
            "mptcp-throttler check && systemctl reload mptcp-throttler",
        )
    interfaces = ", ".join(status["interfaces"])
    rules = counted(len(status["policy"]["rules"]), "rule")
    return ok(_DAEMON, f"it runs, with {rules} on {interfaces} ({status['netfilter']})")


def listen_ports(status: Mapping[str, Any] | None, settings: str) -> tuple[int, ...]:
    """Return the ports that the throttler treats as the proxy's; none if they are unknown. *settings*: the text of its
    settings file, if that is valid. If the throttler runs, its *status* is used instead of the file."""
    if status is not None and "listen_ports" in status:
        return tuple(status["listen_ports"])
    data = parse_document(settings, "").data
    if data is None:
        return ()
    configured = data.get("listen_ports", [PROXY_PORT])
    return tuple(each for each in configured if isinstance(each, int)) if isinstance(configured, list) else ()


def ports(
    proxy_ports: Collection[int], throttled: Collection[int], squid_conf: str, settings: Path
) -> Iterator[Finding]:
    """Check that the throttler covers all ports of *squid_conf* and all announced ports, if both are known. The proxy
    and the throttler have separate settings, so an operator who changes the proxy's ports may forget the throttler's.
    """
    if not proxy_ports or not throttled:
        return
    uncovered = sorted(set(proxy_ports) - set(throttled))
    if not uncovered:
        yield ok(_PORTS, f"the throttler covers every port of {squid_conf}")
        return
    sets = (uncovered, throttled, {*proxy_ports, *throttled})
    missing, covered, all_ports = (", ".join(map(str, sorted(each))) for each in sets)
    yield warn(
        _PORTS,
        f"{squid_conf} or an announced address has port {missing}, but the throttler covers only {covered}",
        f"no client of {missing} is capped",
        f"add {missing} to listen_ports of {settings}, as in listen_ports: [{all_ports}]; "
        "systemctl restart mptcp-throttler",
    )


def bpf(status: Mapping[str, Any] | None, loads: Callable[[str], bool], release: str, has_btf: bool) -> Finding:
    """Check BPF. *has_btf*: whether ``KERNEL_TYPES`` exists. If the throttler runs, its *status* decides, because the
    throttler has tried to load its BPF programs."""
    if status is not None and status["paced"]:
        return ok(_BPF, "the throttler's programs run in the kernel")
    if missing_feature := missing_bpf(loads, release, has_btf):
        return warn(_BPF, *missing_feature)
    if status is not None:
        remedy = (
            "journalctl -u mptcp-throttler --grep pacing   # shows the reason; then: systemctl restart mptcp-throttler"
        )
        return warn(_BPF, "the throttler could not load its programs", WITHOUT_BPF, remedy)
    return ok(_BPF, f"{BPF[0]} loads, and the kernel has type information (BTF)")
