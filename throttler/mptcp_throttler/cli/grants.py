"""The command ``grant``: no caps for a client for a while, or more volume in this period."""

from __future__ import annotations

import argparse
import os
import pwd
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mptcp_common.exit_status import DONE, FAILED
from mptcp_throttler.cli.shared import complain, mistake

if TYPE_CHECKING:
    from mptcp_throttler.config.settings import Settings
    from mptcp_throttler.policy.budget import Grant
    from mptcp_throttler.policy.model import Budget, Policy

ALL, END = "all", "end"


def grant(options: argparse.Namespace) -> int:
    from mptcp_throttler.config.files import read_policy, read_settings
    from mptcp_throttler.storage.budget_ledger import LedgerError
    from mptcp_throttler.storage.grants import NAME, GrantsError

    settings = read_settings(options.config)
    policy, _ = read_policy(settings.policy, settings)
    path = settings.ledger.with_name(NAME)
    words = "".join(options.what)
    try:
        if options.client is None:
            return _list(path, policy)
        if not words:
            raise mistake("grant", options.client, 'says not what; write 2h, "+5 GB" or end')
        if not options.why.isprintable():
            raise mistake("--why", options.why, "has characters that cannot be printed; write one line of text")
        if options.budget is not None and not words.startswith("+"):
            raise mistake("--budget", options.budget, "belongs to a volume; a time lifts all caps")
        client = _client(options.client, words.startswith("+"))
        if words == END:
            return _end(path, client)
        if words.startswith("+"):
            return _volume(path, settings, policy, client, words, options)
        return _time(path, policy, client, words, options)
    except (GrantsError, LedgerError) as error:
        complain(error)
        return FAILED


def _client(text: str, is_volume: bool) -> str:
    """Return the address or prefix as stored; empty for all clients."""
    from mptcp_throttler.policy.values import parse_prefix

    if text == ALL and is_volume:
        return ""
    try:
        found = parse_prefix(text.removeprefix("::ffff:") if "." in text else text)
    except ValueError as error:
        raise mistake("CLIENT", text, str(error)) from None
    if found.prefixlen != found.max_prefixlen:
        if is_volume:
            raise mistake("CLIENT", text, f"{text} is a prefix; volumes are of addresses, or of all clients: {ALL}")
        return str(found)
    return str(found.network_address)


def _asked_by() -> str:
    name = os.environ.get("SUDO_USER")
    if name is None:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = str(os.getuid())
    return name


def _time(path: Path, policy: Policy, client: str, words: str, options: argparse.Namespace) -> int:
    from mptcp_throttler.policy.budget import Grant, parse_length
    from mptcp_throttler.storage.grants import change

    try:
        now = int(time.time())
        fresh = Grant(client, now, now + parse_length(words), _asked_by(), options.why)
    except ValueError as error:
        raise mistake("grant", words, str(error)) from None
    # A client has one lift at a time: the latest replaces the others.
    change(path, lambda before: [*(each for each in _present(before) if each.budget or each.client != client), fresh])
    besides = "; plain TCP stays capped" if policy.caps_plain_tcp else ""
    print(f"{client}: no caps until {_when(fresh.until, policy)}{besides}")
    return DONE


def _end(path: Path, client: str) -> int:
    from mptcp_throttler.storage.grants import change, read

    there = [each for each in _present(read(path)) if each.client == client and not each.budget]
    if not there:
        complain(f"{client} has no caps lifted")
        return FAILED
    change(path, lambda before: [each for each in _present(before) if each not in there])
    print(f"{client}: caps again")
    return DONE


def _volume(
    path: Path, settings: Settings, policy: Policy, client: str, words: str, options: argparse.Namespace
) -> int:
    from mptcp_common.units import approximate_size
    from mptcp_throttler.policy.budget import Account, Grant, parse_more, period
    from mptcp_throttler.storage.budget_ledger import Ledger
    from mptcp_throttler.storage.grants import change

    try:
        octets = parse_more(words)
    except ValueError as error:
        raise mistake("grant", words, str(error)) from None
    chosen = _budgets(policy, client, options.budget)
    now = int(time.time())
    ledger = Ledger(settings.ledger, create=False)
    try:
        for budget in chosen:
            begin, end = period(budget, policy.time_zone, now)
            fresh = Grant(client, now, end, _asked_by(), options.why, budget.name, octets)
            # First: a file that cannot be written leaves the volume as it is.
            change(path, lambda before, fresh=fresh: [*_present(before), fresh])  # type: ignore[misc]
            ledger.credit(Account(budget.name, client, begin), octets)
            more = f"{approximate_size(octets)} more of {budget.title}"
            print(f"{client or 'all clients'}: {more} until {_when(end, policy)}")
    finally:
        ledger.close()
    return DONE


def _budgets(policy: Policy, client: str, name: str | None) -> Sequence[Budget]:
    """Return the budget *name*, or all budgets per client, or those that all clients share."""
    from mptcp_common.problems import did_you_mean

    fitting = {each.name: each for each in policy.budgets.values() if each.per_client is bool(client)}
    known = ", ".join(fitting) or "none"
    of = "for each client" if client else "for all clients together"
    if name is not None and name not in fitting:
        raise mistake(
            "--budget", name, f'"{name}" is not a budget {of}{did_you_mean(name, fitting)}; there are: {known}'
        )
    if not fitting:
        raise mistake("grant", client or ALL, f"the policy has no budget {of}")
    return list(fitting.values()) if name is None else [fitting[name]]


def _present(grants: Sequence[Grant]) -> list[Grant]:
    now = time.time()
    return [each for each in grants if each.until > now]


def _list(path: Path, policy: Policy) -> int:
    from mptcp_throttler.storage.grants import read

    for each in _present(read(path)):
        print(f"{each.client or 'all clients'}: {each.words()}, until {_when(each.until, policy)}")
    return DONE


def _when(time: float, policy: Policy) -> str:
    return f"{datetime.fromtimestamp(time, policy.time_zone):%Y-%m-%d %H:%M %Z}"
