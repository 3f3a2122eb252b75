# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds out from whom Squid accepts another client address, in X-Forwarded-For or by the PROXY protocol. Pure.

A believed sender may claim any address, including this host's. Squid checks its lists against the claimed address, and
only before that against the connection's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from .access_lists import AccessLists, access_rules, names_of
from .addresses import EVERYBODY, LOOPBACK, Addresses
from .source import Statement


def believed_others(statements: Sequence[Statement], lists: AccessLists) -> Statement | None:
    """Return the rule by which a sender on another host is believed, if any. *lists* includes all clients that a name
    may match, also by a password."""
    for directive, matters in (
        ("follow_x_forwarded_for", counts_forwarded(statements)),
        ("proxy_protocol_access", takes_proxy_header(statements)),
    ):
        if matters and (rule := _first(statements, directive, lists)) is not None:
            return rule
    return None


def _first(statements: Sequence[Statement], directive: str, lists: AccessLists) -> Statement | None:
    undecided = EVERYBODY - LOOPBACK
    rules = list(access_rules(statements, directive))
    for rule in rules:
        matches = [lists.match(name) for name in names_of(rule)]
        if rule.words[1] == "allow":
            if undecided & Addresses.common(match.possible for match in matches):
                return rule
        elif rule.applies is True:
            undecided -= Addresses.common(match.certain for match in matches)
    last = next((rule for rule in reversed(rules) if rule.words[1] == "deny" or rule.applies), None)
    return last if last is not None and last.words[1] == "deny" and undecided else None


def counts_forwarded(statements: Sequence[Statement], directive: str = "acl_uses_indirect_client") -> bool:
    """Return whether rules may see the address in X-Forwarded-For, which is the default. Helpers see the address for
    the log: for them *directive* is "log_uses_indirect_client"."""
    values = {True}
    for statement in statements:
        if statement.directive == directive:
            value = statement.words[1:2] != ("off",)
            values = {value} if statement.applies is True else {*values, value}
    return True in values


def takes_proxy_header(statements: Sequence[Statement]) -> bool:
    """Return whether clients may use the PROXY protocol."""
    return any(each.directive.endswith("_port") and "require-proxy-header" in each.words for each in statements)
