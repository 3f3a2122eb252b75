# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the senders from which Squid accepts another client address, in X-Forwarded-For or the PROXY protocol. Pure.

Such a sender may claim any client address, including this host's. Squid then uses the claimed address in its rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from .access_lists import AccessLists, access_rules, names_of
from .addresses import EVERYBODY, LOOPBACK, Addresses
from .source import Statement


def rule_trusting_others(statements: Sequence[Statement], lists: AccessLists) -> Statement | None:
    """Return the rule by which Squid accepts a client address from another host, if any. *lists* must include clients
    that a password identifies (``only_strangers=False``)."""
    for directive, matters in (
        ("follow_x_forwarded_for", uses_forwarded_address(statements)),
        ("proxy_protocol_access", accepts_proxy_protocol(statements)),
    ):
        if matters and (rule := _first_trusting_rule(statements, directive, lists)) is not None:
            return rule
    return None


def _first_trusting_rule(statements: Sequence[Statement], directive: str, lists: AccessLists) -> Statement | None:
    undecided = EVERYBODY - LOOPBACK
    rules = list(access_rules(statements, directive))
    for rule in rules:
        matches = [lists.match(name) for name in names_of(rule)]
        if rule.words[1] == "allow":
            if undecided & Addresses.intersection(match.possible for match in matches):
                return rule
        elif rule.applies is True:
            undecided -= Addresses.intersection(match.certain for match in matches)
    last = next((rule for rule in reversed(rules) if rule.words[1] == "deny" or rule.applies), None)
    return last if last is not None and last.words[1] == "deny" and undecided else None


def uses_forwarded_address(statements: Sequence[Statement], directive: str = "acl_uses_indirect_client") -> bool:
    """Return whether rules may use the address in X-Forwarded-For, which is the default. For helpers, which get the
    address that Squid logs, *directive* is "log_uses_indirect_client"."""
    values = {True}
    for statement in statements:
        if statement.directive == directive:
            value = statement.words[1:2] != ("off",)
            values = {value} if statement.applies is True else {*values, value}
    return True in values


def accepts_proxy_protocol(statements: Sequence[Statement]) -> bool:
    """Return whether a port accepts the PROXY protocol."""
    return any(each.directive.endswith("_port") and "require-proxy-header" in each.words for each in statements)
