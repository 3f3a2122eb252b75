# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands ``quota``, which shows and resets the used volumes of budgets, and ``grant``, which lifts caps or grants
more volume for a limited time."""

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
from mptcp_throttler.cli.shared import option_error, print_error
from mptcp_throttler.config.files import read_policy, read_settings
from mptcp_throttler.mptcp.model import unmap
from mptcp_throttler.policy.budget import Account, Grant, next_step, parse_duration, parse_extra_volume, period, step_of
from mptcp_throttler.policy.model import Budget, Policy
from mptcp_throttler.policy.values import parse_prefix
from mptcp_throttler.storage import GRANTS, Ledger, change_grants, read_grants

ALL_CLIENTS = "all"


def quota(options: argparse.Namespace) -> int:
    settings = read_settings(options.config)
    policy, _ = read_policy(settings.policy, settings)
    # A budget is selected by its own name, or by the name of a rule with this budget.
    names = list(dict.fromkeys([*(rule.name for rule in policy.rules if rule.budget is not None), *policy.budgets]))
    if options.rule is not None and options.rule not in names:
        choices = f"the rules with a budget are {', '.join(names)}" if names else "no rule has a budget"
        raise option_error("--rule", f'"{options.rule}" is not a rule with a budget; {choices}')
    try:
        client = None if options.client is None else str(ip_address(unmap(ip_address(options.client).packed)))
    except ValueError:
        raise option_error("--client", f'"{options.client}" is not an address') from None
    ledger = Ledger(settings.ledger, create=False)
    selected = {
        account: row
        for account, row in ledger_accounts(ledger, policy, time.time()).items()
        if options.rule in (None, row["budget"], *row["rules"]) and client in (None, row["client"])
    }
    if options.action == "reset":
        removed = ledger.reset(selected)
        if not removed:
            print_error("nothing to reset: no volume was used in the current period")
            return FAILED
        print(f"reset: {counted(removed, 'volume')}")
    elif options.json:
        print(json.dumps(list(selected.values()), indent=2))
    else:
        _print_accounts(selected.values())
    return DONE


def ledger_accounts(ledger: Ledger, policy: Policy, now: float) -> dict[Account, dict[str, Any]]:
    """Return the rows of ``--json``, by account: accounts used in the current period, and all shared accounts. Volumes
    are bytes; times are ISO 8601.

    ``budget`` is the budget's name, or its rule's name if it has none; ``rule`` is the first rule with the budget;
    ``client`` is empty for all clients together; ``step`` is the volume of the current step, None before the first.
    """
    rows = {}
    for budget in policy.budgets.values():
        begin, end = period(budget, policy.time_zone, now)
        since, until = (datetime.fromtimestamp(each, policy.time_zone).isoformat() for each in (begin, end))
        used = ledger.read_usage([(budget.name, begin)])
        rules = [rule.name for rule in policy.rules if rule.budget is not None and rule.budget.name == budget.name]
        for account in sorted(used) or ([] if budget.per_client else [Account(budget.name, "", begin)]):
            octets = used.get(account, 0)
            step, upcoming = step_of(budget, octets), next_step(budget, octets)
            rows[account] = {
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
    return rows


def _print_accounts(accounts: Iterable[dict[str, Any]]) -> None:
    table = Table()
    for title in ("budget", "client", "used", "step", "next at", "until"):
        table.add_column(title, justify="right" if title in ("used", "step", "next at") else "left", no_wrap=True)
    for each in accounts:
        volumes = [each[key] for key in ("used", "step", "next_step")]
        sizes = ["-" if volume is None else approximate_size(volume) for volume in volumes]
        table.add_row(each["budget"], each["client"] or "all", *sizes, each["until"][:16].replace("T", " "))
    # emoji=False: otherwise ":a:" in an IPv6 address would become an emoji.
    width = None if sys.stdout.isatty() else 120
    Console(width=width, markup=False, emoji=False, highlight=False).print(table)


def grant(options: argparse.Namespace) -> int:
    settings = read_settings(options.config)
    policy, _ = read_policy(settings.policy, settings)
    path = settings.ledger.with_name(GRANTS)
    in_force = [each for each in read_grants(path) if each.until > time.time()]
    if options.client is None:
        for each in in_force:
            print(f"{each.client or 'all clients'}: {each.text()}, until {_time_text(each.until, policy)}")
        return DONE
    amount = "".join(options.amount)
    is_volume = amount.startswith("+")
    if not amount:
        raise option_error("grant", 'has no time and no volume; write 2h, "+5 GB" or end')
    if not options.why.isprintable():
        raise option_error("--why", "has characters that cannot be printed; write one line of text")
    if options.budget is not None and not is_volume:
        raise option_error("--budget", 'applies only to a volume ("+5 GB"); a time lifts all caps')
    client, now = _parse_client(options.client, is_volume), int(time.time())

    def other_grants(grants: Sequence[Grant]) -> list[Grant]:
        return [each for each in grants if each.client != client or each.budget]

    if amount == "end":
        if other_grants(in_force) == in_force:
            print_error(f"the caps of {client} are not lifted")
            return FAILED
        change_grants(path, other_grants)
        print(f"{client}: caps apply again")
        return DONE
    try:
        octets, seconds = (parse_extra_volume(amount), 0) if is_volume else (0, parse_duration(amount))
    except ValueError as error:
        raise option_error("grant", str(error)) from None
    new = Grant(client, now, now + seconds, _user_name(), options.why)
    if is_volume:
        _grant_volume(settings.ledger, policy, _select_budgets(policy, client, options.budget), new, octets)
    else:
        # A client has at most one grant without a volume; a new grant replaces it.
        change_grants(path, lambda before: [*other_grants(before), new])
        note = "; plain TCP stays capped" if policy.caps_plain_tcp else ""
        print(f"{client}: no caps until {_time_text(new.until, policy)}{note}")
    return DONE


def _parse_client(text: str, is_volume: bool) -> str:
    """Return the address or prefix as stored; empty for all clients."""
    if text == ALL_CLIENTS and is_volume:
        return ""
    try:
        network = parse_prefix(text.removeprefix("::ffff:") if "." in text else text)
    except ValueError as error:
        raise option_error("CLIENT", str(error)) from None
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    if is_volume:
        message = f"{text} is a prefix; more volume can be granted to an address, or to all clients ({ALL_CLIENTS})"
        raise option_error("CLIENT", message)
    return str(network)


def _user_name() -> str:
    try:
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _grant_volume(path: Path, policy: Policy, budgets: Sequence[Budget], template: Grant, octets: int) -> None:
    """Grant *octets* more of each of *budgets*, for the rest of its period. *path*: the ledger."""
    with closing(Ledger(path, create=False)) as ledger:
        for budget in budgets:
            begin, end = period(budget, policy.time_zone, template.since)
            new = msgspec.structs.replace(template, until=end, budget=budget.name, octets=octets)
            # Write the file first: if that fails, the volume stays unchanged.
            change_grants(path.with_name(GRANTS), lambda before, new=new: [*before, new])  # type: ignore[misc]
            ledger.credit(Account(budget.name, new.client, begin), octets)
            volume = f"{approximate_size(octets)} more of {budget.title}"
            print(f"{new.client or 'all clients'}: {volume} until {_time_text(end, policy)}")


def _select_budgets(policy: Policy, client: str, name: str | None) -> Sequence[Budget]:
    """Return the budget *name*; without a name, all budgets per client, or if *client* is empty, all shared budgets."""
    candidates = {each.name: each for each in policy.budgets.values() if each.per_client is bool(client)}
    names = ", ".join(candidates) or "none"
    scope = "for each client" if client else "for all clients together"
    if name is not None and name not in candidates:
        guess = did_you_mean(name, candidates)
        raise option_error("--budget", f'"{name}" is not a budget {scope}{guess}; there are: {names}')
    if not candidates:
        raise option_error("grant", f"the policy has no budget {scope}")
    return list(candidates.values()) if name is None else [candidates[name]]


def _time_text(time: float, policy: Policy) -> str:
    return f"{datetime.fromtimestamp(time, policy.time_zone):%Y-%m-%d %H:%M %Z}"
