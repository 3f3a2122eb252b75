# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands that read the operator's files: ``check`` and ``plan``."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from mptcp_common import throttler_needs
from mptcp_common.exit_status import DONE
from mptcp_common.problems import DocumentError, Severity, did_you_mean
from mptcp_common.units import counted
from mptcp_throttler.cli.shared import option_error, policy_with_warnings, print_problems
from mptcp_throttler.config import host
from mptcp_throttler.config.files import read_connections, read_settings
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel import feature_probe
from mptcp_throttler.kernel.netfilter import backends
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics
from mptcp_throttler.kernel.tc import link
from mptcp_throttler.mptcp.model import Connection
from mptcp_throttler.mptcp.tracker import Tracker
from mptcp_throttler.policy.budget import Account
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.model import Direction, Policy
from mptcp_throttler.policy.values import parse_volume
from mptcp_throttler.shaping import commands
from mptcp_throttler.shaping.cap import PlanError
from mptcp_throttler.shaping.model import gso_limit
from mptcp_throttler.shaping.plan import Planner, plain_tcp_caps
from mptcp_throttler.stages.budget import BudgetStage
from mptcp_throttler.views.text import address_text, planned_reason

_MAX_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def check(options: argparse.Namespace) -> int:
    if options.policy is not None:
        policy = policy_with_warnings(options.policy, None, with_notes=True)
        print(_success_text(options.policy, policy))
        return DONE
    settings = read_settings(options.config)
    policy = policy_with_warnings(settings.policy, settings, with_notes=True)
    probe_results = feature_probe.try_features(host.needed_features(settings, policy))
    has_btf = Path(throttler_needs.KERNEL_TYPES).exists()
    library_problems = host.library_problems(settings, policy, throttler_needs.loads, os.uname().release, has_btf)
    feature_problems = [*library_problems, *host.kernel_problems(settings, policy, *probe_results)]
    missing = [each for each in feature_problems if each.severity is Severity.ERROR]
    warnings = [
        *host.ports_without_listener(settings),
        *host.check_tunnel_daemon(settings),
        *host.stacked_interfaces(settings, link.read_lower_interfaces()),
        *host.check_client_addresses(settings, policy, link.networks()),
        *(each for each in feature_problems if each not in missing),
    ]
    print_problems(sorted(warnings, key=lambda each: each.severity is Severity.WARNING))
    if problems := [*host.host_problems(settings), *missing, *host.unreadable_files((options.config, settings.policy))]:
        raise DocumentError(problems)
    print(f"{options.config}: no errors")
    print(_success_text(settings.policy, policy))
    return DONE


def _success_text(path: Path, policy: Policy) -> str:
    return f"{path}: {counted(len(policy.paths), 'path')}, {counted(len(policy.rules), 'rule')}, no errors"


def plan(options: argparse.Namespace) -> int:
    settings = read_settings(options.config)
    policy = policy_with_warnings(options.policy or settings.policy, settings)
    now, used = _parse_time(options.at, policy.time_zone), _parse_volumes(options.used, policy)
    if options.live:
        tracker = Tracker(settings.ownership.listen_ports)
        tracker.interface_of = link.Routes(settings.interfaces).interface
        tracker.resync(SocketDiagnostics(settings.ownership.listen_ports).subflows(), now)
        connections: Collection[Connection] = tracker.connections.values()
    else:
        connections = read_connections(options.subflows, settings, now)
    for line in _plan_lines(settings, policy, connections, now, used):
        print(line)
    return DONE


def _parse_volumes(assignments: Sequence[str], policy: Policy) -> dict[str, int]:
    """Return the bytes of each assignment ``BUDGET=VOLUME``, by budget."""
    volumes = {}
    for each in assignments:
        name, _, volume = each.partition("=")
        if name not in policy.budgets:
            hint = f"{did_you_mean(name, policy.budgets)}; the policy's budgets: {', '.join(policy.budgets) or 'none'}"
            raise option_error("--used", f'"{name}" is not a budget{hint}')
        try:
            volumes[name] = parse_volume(volume)
        except ValueError as error:
            raise option_error("--used", str(error)) from None
    return volumes


def _parse_time(text: str | None, zone: ZoneInfo) -> float:
    """Return seconds since the epoch; now without *text*. *zone* is the default time zone."""
    if text is None:
        return time.time()
    try:
        parsed = datetime.fromisoformat(text)
        seconds = (parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)).timestamp()
        # The evaluation also computes times on the days before and after, in any time zone.
        if not 0 <= seconds < _MAX_TIME:
            raise ValueError
        return seconds
    except (ValueError, OverflowError):
        raise option_error("--at", f'"{text}" is not a time; write e.g. "2026-11-20T18:30+02:00"') from None


def _plan_lines(
    settings: Settings, policy: Policy, connections: Collection[Connection], now: float, used: Mapping[str, int]
) -> Iterator[str]:
    """Yield the verdicts with reasons, as comments, then the kernel objects that they need, as shell commands."""
    download, upload = planners = [Planner(settings.ownership, direction) for direction in Direction]
    budgets = BudgetStage()
    budgets.set_policy(policy)
    budgets.advance(now, 0.0)
    for each in planners:
        each.set_policy(policy)
    for connection in connections:
        verdicts = evaluate(policy, connection, now)
        if used:
            clients = {address_text(each.four_tuple.remote) or "" for each in connection.subflows}
            accounts = {
                Account(name, client, start): used.get(name, 0)
                for name, start in budgets.accounts.periods
                for client in (clients if policy.budgets[name].per_client else {""})
            }
            budgets.accounts.set_used(budgets.accounts.periods, accounts)
            verdicts = budgets.apply(connection, verdicts, now)
        yield f"# connection {connection.token:08x}"
        for each in planners:
            try:
                each.set_verdicts(connection.token, verdicts, now)
            except PlanError as error:
                yield f"#   cannot be capped ({each.direction.value}): {error}"
        for verdict in verdicts:
            reason = planned_reason(verdict, with_budget=not used)
            yield f"#   {verdict.four_tuple}  path {verdict.path or 'none'}: {reason}"
    for each in planners:
        try:
            each.prepare_path_classes(now)
        except PlanError as error:
            yield f"# {error}"
    if policy.dry_run:
        yield "# dry run: the kernel would not be changed"
        return
    ownership, size = settings.ownership, settings.gso_max_size
    for interface in settings.interfaces if size != "keep" else ():
        yield f"ip link set dev {interface} gso_max_size {gso_limit(policy, 65536) if size == 'auto' else size}"
    yield from commands.traffic_control(settings.interfaces, download.classes.desired, ownership, Direction.DOWN)
    yield from backends.preview(settings.netfilter, download.entries.desired, ownership)
    for command in commands.plain_tcp_table(list(plain_tcp_caps(policy, download)), ownership):
        yield f"nft '{command}'"
    if policy.acts_on_upload:
        yield from commands.upload_device(upload.classes.desired, ownership)
        yield from commands.NftTable(ownership, settings.interfaces).shell_commands(upload.entries.desired)
