"""The commands that read the operator's files: check, plan, quota."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_common import journal
from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.problems import DocumentError, Severity
from mptcp_throttler.cli.shared import complain, mistake, policy_with_warnings

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from mptcp_throttler.config.settings import Settings
    from mptcp_throttler.mptcp.model import Connection
    from mptcp_throttler.policy.model import Policy


def check(options: argparse.Namespace) -> int:
    from mptcp_throttler.config.files import read_settings
    from mptcp_throttler.config.host import (
        distant_paths,
        host_problems,
        kernel_problems,
        library_problems_here,
        needed_of_kernel,
        ports_without_listener,
        silent_tunnels,
        stacked_interfaces,
        unreadable,
    )
    from mptcp_throttler.kernel import feature_probe
    from mptcp_throttler.kernel.tc import link

    if options.policy is not None:
        policy = policy_with_warnings(options.policy, None)
        _print_notes(options.policy, None)
        print(_no_errors(options.policy, policy))
        return DONE
    settings = read_settings(options.config)
    policy = policy_with_warnings(settings.policy, settings)
    _print_notes(settings.policy, settings)
    tried = feature_probe.try_out(needed_of_kernel(settings, policy))
    needs = [*library_problems_here(settings, policy), *kernel_problems(settings, policy, *tried)]
    lacking = [each for each in needs if each.severity is Severity.ERROR]
    unfit = (
        *ports_without_listener(settings),
        *silent_tunnels(settings),
        *stacked_interfaces(settings, link.stands_on()),
        *distant_paths(settings, policy, link.networks()),
    )
    for note in (each for each in (*unfit, *needs) if each.severity is Severity.NOTE):
        journal.say(note)
    for warning in (each for each in (*unfit, *needs) if each.severity is Severity.WARNING):
        journal.say(warning, journal.WARNING)
    if problems := [*host_problems(settings), *lacking, *unreadable((options.config, settings.policy))]:
        raise DocumentError(problems)
    print(f"{options.config}: no errors")
    print(_no_errors(settings.policy, policy))
    return DONE


def _print_notes(path: Path, settings: Settings | None) -> None:
    from mptcp_throttler.config.files import read_notes

    for note in read_notes(path, settings):
        journal.say(note)


def _no_errors(path: Path, policy: Policy) -> str:
    from mptcp_common.units import counted

    return f"{path}: {counted(len(policy.paths), 'path')}, {counted(len(policy.rules), 'rule')}, no errors"


def plan(options: argparse.Namespace) -> int:
    from mptcp_throttler.config.files import read_connections, read_settings
    from mptcp_throttler.kernel.netfilter import backends
    from mptcp_throttler.views.preview import preview

    settings = read_settings(options.config)
    policy = policy_with_warnings(options.policy or settings.policy, settings)
    now, used = _time_of(options.at, policy.time_zone), _volumes(options.used, policy)
    connections = (
        _live_connections(settings, now) if options.live else read_connections(options.subflows, settings, now)
    )
    for line in preview(settings, policy, connections, now, backends.preview(settings.netfilter), used):
        print(line)
    return DONE


def _live_connections(settings: Settings, now: float) -> list[Connection]:
    from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics
    from mptcp_throttler.kernel.tc.link import Routes
    from mptcp_throttler.mptcp.tracker import Tracker

    tracker = Tracker(settings.ownership.listen_ports)
    tracker.interface_of = Routes(settings.interfaces).interface
    tracker.resync(SocketDiagnostics(settings.ownership.listen_ports).subflows(), now)
    return list(tracker.connections.values())


def quota(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mptcp_common.units import counted
    from mptcp_throttler.config.files import read_policy, read_settings
    from mptcp_throttler.mptcp.model import unmap
    from mptcp_throttler.storage.budget_ledger import Ledger, LedgerError
    from mptcp_throttler.views.budget_table import ledger_accounts, names, print_accounts

    settings = read_settings(options.config)
    policy, _ = read_policy(settings.policy, settings)
    budgets = names(policy)
    if options.rule is not None and options.rule not in budgets:
        raise mistake("--rule", options.rule, _no_such_budget(options.rule, budgets))
    try:
        client = None if options.client is None else str(ip_address(unmap(ip_address(options.client).packed)))
    except ValueError:
        raise mistake("--client", options.client, f'"{options.client}" is not an address') from None
    try:
        ledger = Ledger(settings.ledger, create=False)
        found = {
            account: row
            for account, row in ledger_accounts(ledger, policy, time.time()).items()
            if options.rule in (None, row["budget"], *row["rules"]) and client in (None, row["client"])
        }
        if options.action == "reset":
            gone = ledger.reset(found)
            if not gone:
                complain("nothing to reset: nothing was used in the present period")
                return FAILED
            print(f"reset: {counted(gone, 'volume')}")
            return DONE
        if options.json:
            print(json.dumps(list(found.values()), indent=2))
        else:
            width = None if sys.stdout.isatty() else 120
            # emoji: ":a:" in an IPv6 address would become a picture.
            print_accounts(found.values(), Console(width=width, markup=False, emoji=False, highlight=False))
    except LedgerError as error:
        complain(error)
        return FAILED
    return DONE


def _no_such_budget(name: str, budgets: Sequence[str]) -> str:
    known = f"the rules with one are {', '.join(budgets)}" if budgets else "no rule has one"
    return f'"{name}" is not a rule with a budget; {known}'


_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def _volumes(given: Sequence[str], policy: Policy) -> dict[str, int]:
    from mptcp_common.problems import did_you_mean
    from mptcp_throttler.policy.values import parse_volume

    volumes = {}
    for each in given:
        name, _, volume = each.partition("=")
        if name not in policy.budgets:
            those = ", ".join(policy.budgets) or "none"
            guess = did_you_mean(name, policy.budgets)
            raise mistake("--used", each, f'"{name}" is not a budget{guess}; the policy\'s budgets: {those}')
        try:
            volumes[name] = parse_volume(volume)
        except ValueError as error:
            raise mistake("--used", each, str(error)) from None
    return volumes


def _time_of(text: str | None, zone: ZoneInfo) -> float:
    """Return seconds since the epoch. *zone* is the default of a time without one."""
    if text is None:
        return time.time()
    try:
        when = datetime.fromisoformat(text)
        at = (when if when.tzinfo else when.replace(tzinfo=zone)).timestamp()
        # The evaluation also computes with days before and after, in any time zone.
        if not 0 <= at < _LATEST:
            raise ValueError
        return at
    except (ValueError, OverflowError):
        raise mistake("--at", text, f'"{text}" is not a time; write e.g. "2026-11-20T18:30+02:00"') from None
