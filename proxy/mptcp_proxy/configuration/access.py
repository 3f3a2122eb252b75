# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds out which clients a configuration serves, and whether it makes an open proxy.

This module computes which client addresses the rules may allow, as Squid evaluates them ("http_access" and "acl" in its
directive reference). The first rule whose names all match decides. If no rule matches, the result is the opposite of
the last rule. If there is no rule, the result is "deny".

A client chooses its request (port, method, destination), so a condition on the request does not keep any client out. A
rule that requires more than an address (a password, a certificate) does not allow strangers. A rule under an "if" that
differs from process to process may be in force or not, so an "allow" counts and a "deny" does not.

The same method finds the senders from which Squid accepts another client address (X-Forwarded-For, PROXY protocol). If
these include strangers, each rule that allows some clients also allows strangers, who can claim such an address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..problem import Problem
from .access_lists import AccessLists, access_rules, names_of
from .address_values import address_value
from .addresses import EVERYBODY, IPV4, IPV6, NOBODY, Addresses
from .claimed_addresses import accepts_proxy_protocol, rule_trusting_others, uses_forwarded_address
from .embedded import EMBEDDINGS, embedded_ipv4
from .list_values import list_values, without_flags
from .listeners import is_loopback
from .source import Statement, last_with_value

OVERRIDE = "--allow-open-proxy"
"""The option by which the operator states that the rules are intended."""
_REMEDY = f"http_access allow for the prefixes of your clients, then: http_access deny all; to accept this: {OVERRIDE}"
_MAX_ALLOWED = {"IPv4": (IPV4.public, 1 << 28), "IPv6": (IPV6.public, 1 << 115)}
"""For each IP version, its public addresses, and how many of them the clients may have: sixteen /8 of IPv4, one /13 of
IPv6. No operator has more. For comparison, IANA gave each regional registry a /12 of IPv6; 2a00::/12 is for Europe and
the Middle East."""


@dataclass(frozen=True, slots=True)
class _AllowedClients:
    """The client addresses that the rules of one directive allow."""

    addresses: Addresses
    rule: Statement | None = None
    """The rule that allows too many addresses, if any."""
    share: str = ""
    """The allowed share of all public addresses, as text."""
    by_default: bool = False
    """Whether *rule* allows too many addresses because it is the last rule, whose opposite is Squid's default."""


def open_proxy_problems(statements: Sequence[Statement]) -> Iterator[Problem]:
    """Yield a problem for each kind of rule that allows too many clients."""
    lists = AccessLists(statements)
    served = _find_allowed(statements, "http_access", lists)
    if served.rule is not None:
        why = (
            "for requests that no rule matches, Squid does the opposite of the last rule, which is this one"
            if served.by_default
            else 'none of its lists (without "!") keeps strangers out'
        )
        if uninformed := sorted({each for name in names_of(served.rule) for each in lists.uninformed_helpers(name)}):
            names = ", ".join(uninformed)
            why += f"; a user name from a helper does not identify the client, because external_acl_type {names} gets"
            why += ' no information about the client (in the same rule, also require "external NAME" of a helper that'
            why += " gets such information)"
        yield _open_proxy_problem(served.rule, f"it would serve {served.share}: {why}", _REMEDY)
    rules = list(access_rules(statements, "http_access"))
    decides_all = any([each.lower() for each in names_of(rule)] == ["all"] for rule in rules)
    if served.rule is None and rules and rules[-1].words[1] == "deny" and not decides_all:
        yield Problem(
            f"{' '.join(rules[-1].words)}: as the last rule, it allows all requests that no rule matches",
            rules[-1].file,
            rules[-1].number,
            allowed="http_access allow for your clients, then: http_access deny all",
            warning=True,
        )
    for directive, source, remedy, admits_strangers in (
        (
            "follow_x_forwarded_for",
            "X-Forwarded-For",
            "your own proxies, or acl_uses_indirect_client off and log_uses_indirect_client off",
            _forwarded_header_admits_strangers,
        ),
        ("proxy_protocol_access", "the PROXY protocol", "your own load balancers", _proxy_header_admits_strangers),
    ):
        trusted = _find_allowed(statements, directive, lists)
        if trusted.rule is not None and admits_strangers(statements, served.rule is not None):
            yield _open_proxy_problem(
                trusted.rule,
                f"{trusted.share} could claim any client address in {source}",
                f"{directive} allow for {remedy}; to accept this: {OVERRIDE}",
            )


def _forwarded_header_admits_strangers(statements: Sequence[Statement], allowed_anyway: bool) -> bool:
    """Return whether strangers are allowed because Squid trusts X-Forwarded-For. *allowed_anyway*: whether they are
    allowed without that."""
    by_rules, by_helpers = (
        uses_forwarded_address(statements, f"{kind}_uses_indirect_client") for kind in ("acl", "log")
    )
    lists = AccessLists(
        statements, trust_as_numbers=not by_rules, trust_host_names=not by_rules, trust_helpers=not by_helpers
    )
    served = _find_allowed(statements, "http_access", lists)
    # With acl_uses_indirect_client off, only a helper that gets the forwarded address can allow strangers.
    return bool(served.addresses) if by_rules else served.rule is not None and not allowed_anyway


def _proxy_header_admits_strangers(statements: Sequence[Statement], _: bool) -> bool:
    lists = AccessLists(statements, trust_as_numbers=False, trust_host_names=False, trust_helpers=False)
    return accepts_proxy_protocol(statements) and bool(_find_allowed(statements, "http_access", lists).addresses)


@dataclass(frozen=True, slots=True)
class _Port:
    """A UDP port of Squid."""

    names: tuple[str, ...]
    address: str
    protocol: str
    rules: dict[str, str]
    """For each directive with rules for this port: what it allows clients to do, as text."""


_PORTS = (
    _Port(
        ("snmp_port",),
        "snmp_incoming_address",
        "SNMP",
        {"snmp_access": "read the addresses of clients, and how many bytes each has downloaded"},
    ),
    _Port(
        ("icp_port", "udp_port"),
        "udp_incoming_address",
        "ICP",
        {"icp_access": "query which pages are in the cache"},
    ),
    _Port(
        ("htcp_port",),
        "udp_incoming_address",
        "HTCP",
        {
            "htcp_access": "query which pages are in the cache, and since when",
            "htcp_clr_access": "remove pages from the cache",
        },
    ),
)


def port_problems(statements: Sequence[Statement]) -> Iterator[Problem]:
    """Yield a warning for each rule (snmp_access, icp_access, htcp_access) that allows too many clients to use SNMP,
    ICP or HTCP, if the port is open. Clients cannot fetch pages through these ports, so it is only a warning."""
    for port in _PORTS:
        opening = _opening_statement(statements, port.names)
        if opening is None or _on_loopback(statements, port.address):
            continue
        lists = AccessLists(statements)
        for directive, action in port.rules.items():
            found = _find_allowed(statements, directive, lists)
            if found.rule is not None:
                yield Problem(
                    f"{' '.join(found.rule.words)}: {found.share} may {action}, over {port.protocol}"
                    f" ({' '.join(opening.words)})",
                    found.rule.file,
                    found.rule.number,
                    allowed=f"{directive} allow for clients that need it, then deny all; or {port.names[0]} 0",
                    warning=True,
                )


def _opening_statement(statements: Sequence[Statement], names: Sequence[str]) -> Statement | None:
    """Return the statement that opens a port in some process; None if no process opens it."""
    for statement in reversed(statements):
        if statement.directive in names and len(statement.words) > 1:
            if statement.words[1].strip("0"):
                return statement
            if statement.applies is True:
                return None
    return None


def _on_loopback(statements: Sequence[Statement], directive: str) -> bool:
    statement = last_with_value(statements, directive)
    return statement is not None and statement.applies is True and is_loopback(statement.words[1])


def claimed_name_problems(statements: Sequence[Statement]) -> Iterator[Problem]:
    """Yield a warning for the rule that keeps strangers out only by their host names. Squid looks up the name of a
    client's address (PTR) but not the addresses of that name, so the owner of the reverse zone can choose any name."""
    lists = AccessLists(statements)
    if not lists.use_host_names:
        return  # do not read long lists in files again
    if _find_allowed(statements, "http_access", lists).rule is not None:
        return  # open_proxy_problems reports this
    rule = _find_allowed(statements, "http_access", AccessLists(statements, trust_host_names=False)).rule
    if rule is not None:
        yield Problem(
            f"{' '.join(rule.words)}: only host names keep strangers out, and the owner of an address's reverse zone"
            " chooses its name",
            rule.file,
            rule.number,
            allowed="addresses (src) or passwords (proxy_auth) in addition to srcdomain and srcdom_regex",
            warning=True,
        )


def _find_allowed(statements: Sequence[Statement], directive: str, lists: AccessLists) -> _AllowedClients:
    rules = list(access_rules(statements, directive))
    undecided, allowed = EVERYBODY, NOBODY
    for rule in rules:
        matches = [lists.match(name) for name in names_of(rule)]
        if rule.words[1] == "deny":
            if rule.applies is True:
                undecided -= Addresses.intersection(match.certain for match in matches)
            continue
        matching = undecided & Addresses.intersection(match.possible for match in matches)
        if not matching - allowed:
            continue
        allowed |= matching
        if share := _excessive_share(allowed):
            return _AllowedClients(allowed, rule, share)
    last_rule = next((rule for rule in reversed(rules) if rule.words[1] == "deny" or rule.applies), None)
    if last_rule is not None and last_rule.words[1] == "deny":
        allowed |= undecided
        if share := _excessive_share(allowed):
            return _AllowedClients(allowed, last_rule, share, by_default=True)
    return _AllowedClients(allowed)


def possibly_allowed(statements: Sequence[Statement]) -> Addresses | None:
    """Return the client addresses that some rule may allow, possibly only with a password. None if unknown."""
    lists = AccessLists(statements, only_strangers=False)
    if rule_trusting_others(statements, lists) is not None or any(map(_names_a_host, statements)):
        return None
    rules = list(access_rules(statements, "http_access"))
    undecided, allowed = EVERYBODY, NOBODY
    for rule in rules:
        matches = [lists.match(name) for name in names_of(rule)]
        if rule.words[1] == "allow":
            allowed |= undecided & Addresses.intersection(match.possible for match in matches)
        elif rule.applies is True:
            undecided -= Addresses.intersection(match.certain for match in matches)
    # A request that no rule matches gets the opposite of the last rule.
    denied_last = any(rule.words[1] == "deny" for rule in rules[-1:])
    return allowed | undecided if denied_last else allowed


def _names_a_host(statement: Statement) -> bool:
    """Return whether *statement* contains a client's host name. Only Squid looks up the addresses of such a name."""
    match statement.words:
        case ("acl", _, "src", *words):
            return any(not address_value(value.text).possible for value in list_values(without_flags(words)))
    return False


def _open_proxy_problem(rule: Statement, why: str, remedy: str) -> Problem:
    return Problem(f"{' '.join(rule.words)}: an open proxy, {why}", rule.file, rule.number, allowed=remedy)


def _excessive_share(allowed: Addresses) -> str:
    """Return, as text, which share of an IP version's public addresses is *allowed*; "" if no share is too large."""
    embedded = ((embedded_ipv4(allowed, each), "IPv4", f", embedded as {each.name}") for each in EMBEDDINGS)
    for addresses, family, note in ((allowed, "IPv4", ""), (allowed, "IPv6", ""), *embedded):
        public, maximum = _MAX_ALLOWED[family]
        count = (addresses & public).count
        if count > maximum:
            return f"{max(1, round(100 * count / public.count))} % of the Internet's {family} addresses{note}"
    return ""


def as_warnings(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield *problems* as warnings, because the operator states that the rules are intended."""
    for problem in problems:
        yield replace(problem, warning=True)
