# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands ``quota``, which shows and resets the used volumes of budgets, and ``grant``, which lifts caps or gives
more volume for a while."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.problems import did_you_mean
from mptcp_common.units import approximate_size, counted
from mptcp_throttler.cli.shared import complain, mistake
from mptcp_throttler.config.files import read_policy, read_settings
from mptcp_throttler.mptcp.model import unmap
from mptcp_throttler.policy.budget import Account, Grant, next_step, parse_duration, parse_extra_volume, period, step_of
from mptcp_throttler.policy.model import Budget, Policy
from mptcp_throttler.policy.values import parse_prefix
from mptcp_throttler.storage import GRANTS, Ledger, change_grants, read_grants

ALL = "all"


def quota(options: argparse.Namespace) -> int:
    settings = read_settings(options.config)
    policy, _ = read_policy(settings.policy, settings)
    # A budget may be named by itself, or by a rule that feeds it.
    names = list(dict.fromkeys([*(rule.name for rule in policy.rules if rule.budget is not None), *policy.budgets]))
    if options.rule is not None and options.rule not in names:
        known = f"the rules with a budget are {', '.join(names)}" if names else "no rule has a budget"
        raise mistake("--rule", f'"{options.rule}" is not a rule with a budget; {known}')
    try:
        client = None if options.client is None else str(ip_address(unmap(ip_address(options.client).packed)))
    except ValueError:
        raise mistake("--client", f'"{options.client}" is not an address') from None
    ledger = Ledger(settings.ledger, create=False)
    found = {
        account: row
        for account, row in ledger_accounts(ledger, policy, time.time()).items()
        if options.rule in (None, row["budget"], *row["rules"]) and client in (None, row["client"])
    }
    if options.action == "reset":
        removed = ledger.reset(found)
        if not removed:
            complain("nothing to reset: no volume was used in the current period")
            return FAILED
        print(f"reset: {counted(removed, 'volume')}")
    elif options.json:
        print(json.dumps(list(found.values()), indent=2))
    else:
        _print_accounts(found.values())
    return DONE


def ledger_accounts(ledger: Ledger, policy: Policy, now: float) -> dict[Account, dict[str, Any]]:
    """Return the rows of ``--json``, by account: accounts used in the current period, and all shared accounts. Volumes
    are bytes; times are ISO 8601.

    ``budget`` is the budget's own name, or its rule's name if it has none, ``rule`` the first rule that feeds it,
    ``client`` is empty for all clients together, ``step`` is the volume of the step in force, None before the first.
    """
    found = {}
    for budget in policy.budgets.values():
        begin, end = period(budget, policy.time_zone, now)
        since, until = (datetime.fromtimestamp(at, policy.time_zone).isoformat() for at in (begin, end))
        used = ledger.read_usage([(budget.name, begin)])
        rules = [rule.name for rule in policy.rules if rule.budget is not None and rule.budget.name == budget.name]
        for account in sorted(used) or ([] if budget.per_client else [Account(budget.name, "", begin)]):
            octets = used.get(account, 0)
            step, upcoming = step_of(budget, octets), next_step(budget, octets)
            found[account] = {
                "budget": budget.name,
                "rule": rules[0],
                "rules": rules,
                "client": account.client,
                "used": max(0, octets),
                "step": None if step is None else step.after,
                "next_step": None if upcoming is None else upcoming.after,
                "since": since,
                "until": until,
            }
    return found


def _print_accounts(accounts: Iterable[dict[str, Any]]) -> None:
    table = Table()
    for title in ("budget", "client", "used", "step", "next at", "until"):
        table.add_column(title, justify="right" if title in ("used", "step", "next at") else "left", no_wrap=True)
    for each in accounts:
        volumes = [each[key] for key in ("used", "step", "next_step")]
        sizes = ["-" if volume is None else approximate_size(volume) for volume in volumes]
        table.add_row(each["budget"], each["client"] or "all", *sizes, each["until"][:16].replace("T", " "))
    # emoji: ":a:" in an IPv6 address would become a picture.
    width = None if sys.stdout.isatty() else 120
    Console(width=width, markup=False, emoji=False, highlight=False).print(table)


def grant(options: argparse.Namespace) -> int:
    settings = read_settings(options.config)
    policy, _ = read_policy(settings.policy, settings)
    path = settings.ledger.with_name(GRANTS)
    in_force = [each for each in read_grants(path) if each.until > time.time()]
    if options.client is None:
        for each in in_force:
            print(f"{each.client or 'all clients'}: {each.text()}, until {_when(each.until, policy)}")
        return DONE
    text = "".join(options.what)
    is_volume = text.startswith("+")
    if not text:
        raise mistake("grant", 'says nothing to grant; write 2h, "+5 GB" or end')
    if not options.why.isprintable():
        raise mistake("--why", "has characters that cannot be printed; write one line of text")
    if options.budget is not None and not is_volume:
        raise mistake("--budget", 'applies only to a volume ("+5 GB"); a time lifts all caps')
    client, now = _client(options.client, is_volume), int(time.time())

    def others(grants: Sequence[Grant]) -> list[Grant]:
        return [each for each in grants if each.client != client or each.budget]

    if text == "end":
        if others(in_force) == in_force:
            complain(f"{client} has no caps lifted")
            return FAILED
        change_grants(path, others)
        print(f"{client}: caps again")
        return DONE
    try:
        octets, seconds = (parse_extra_volume(text), 0) if is_volume else (0, parse_duration(text))
    except ValueError as error:
        raise mistake("grant", str(error)) from None
    fresh = Grant(client, now, now + seconds, _asked_by(), options.why)
    if is_volume:
        _grant_volume(settings.ledger, policy, _budgets(policy, client, options.budget), fresh, octets)
    else:
        # A client has at most one grant of no caps; a new grant replaces it.
        change_grants(path, lambda before: [*others(before), fresh])
        note = "; plain TCP stays capped" if policy.caps_plain_tcp else ""
        print(f"{client}: no caps until {_when(fresh.until, policy)}{note}")
    return DONE


def _client(text: str, is_volume: bool) -> str:
    """Return the address or prefix as stored; empty for all clients."""
    if text == ALL and is_volume:
        return ""
    try:
        found = parse_prefix(text.removeprefix("::ffff:") if "." in text else text)
    except ValueError as error:
        raise mistake("CLIENT", str(error)) from None
    if found.prefixlen == found.max_prefixlen:
        return str(found.network_address)
    if is_volume:
        raise mistake(
            "CLIENT", f"{text} is a prefix; more volume can be granted to an address, or to all clients ({ALL})"
        )
    return str(found)


def _asked_by() -> str:
    try:
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _grant_volume(path: Path, policy: Policy, budgets: Sequence[Budget], common: Grant, octets: int) -> None:
    """Grant *octets* more of each of *budgets*, for the rest of its period. *path*: the ledger."""
    with closing(Ledger(path, create=False)) as ledger:
        for budget in budgets:
            begin, end = period(budget, policy.time_zone, common.since)
            fresh = msgspec.structs.replace(common, until=end, budget=budget.name, octets=octets)
            # Write the file first: if that fails, the volume stays unchanged.
            change_grants(path.with_name(GRANTS), lambda before, fresh=fresh: [*before, fresh])  # type: ignore[misc]
            ledger.credit(Account(budget.name, fresh.client, begin), octets)
            more = f"{approximate_size(octets)} more of {budget.title}"
            print(f"{fresh.client or 'all clients'}: {more} until {_when(end, policy)}")


def _budgets(policy: Policy, client: str, name: str | None) -> Sequence[Budget]:
    """Return the budget *name*, or all budgets per client, or those that all clients share."""
    fitting = {each.name: each for each in policy.budgets.values() if each.per_client is bool(client)}
    known = ", ".join(fitting) or "none"
    scope = "for each client" if client else "for all clients together"
    if name is not None and name not in fitting:
        guess = did_you_mean(name, fitting)
        raise mistake("--budget", f'"{name}" is not a budget {scope}{guess}; there are: {known}')
    if not fitting:
        raise mistake("grant", f"the policy has no budget {scope}")
    return list(fitting.values()) if name is None else [fitting[name]]


def _when(time: float, policy: Policy) -> str:
    return f"{datetime.fromtimestamp(time, policy.time_zone):%Y-%m-%d %H:%M %Z}"
