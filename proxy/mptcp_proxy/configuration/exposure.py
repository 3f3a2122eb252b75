# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds services that clients can reach through the proxy although they should not: services of this host or its cloud,
and services other than the web.

This module has a few sample requests that the rules should deny. For each of them, it evaluates the rules of
"http_access" in order. A list in a rule matches the request always, never, or perhaps. A "deny" counts if all its lists
always match, an "allow" unless one of its lists never matches. A rule for clients on this host may allow such requests,
unless senders on other hosts may claim this host's address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..problem import Problem
from .access_lists import AccessLists, Line, access_rules, ascii_lower, names_of
from .addresses import EVERYBODY, LOOPBACK, NOBODY, Addresses
from .claimed_addresses import rule_trusting_others
from .source import Statement

_LINK_LOCAL = Addresses.from_prefixes("169.254.0.0/16", "fe80::/10")
_METADATA = Addresses.from_prefixes(
    *("168.63.129.16", "192.0.0.192", "100.100.100.200", "100.96.0.96", "100.80.80.80"),
    *("fd00:ec2::/32", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:a9fe:a9fe::1", "fd00:42::42", "fd00:100::100:200"),
)
"""Addresses, except link-local addresses, of clouds' metadata services, from which clients could read credentials.
IPv4: Azure, Oracle (Classic), Alibaba, Volcengine, UCloud. IPv6: Amazon, Google, Oracle, Akamai, Scaleway, Alibaba."""
_TRANSLATED = Addresses.from_prefixes(
    *("64:ff9b::7f00:0/104", "64:ff9b::a9fe:0/112", "64:ff9b::a83f:8110", "64:ff9b::c000:c0"),
    *("64:ff9b::6464:64c8", "64:ff9b::6460:60", "64:ff9b::6450:5050"),
)
"""NAT64 addresses (RFC 6052, 2.1) of IPv4 loopback, link-local and metadata addresses."""
_OTHER_SERVICES = (22, 25, 6379)
"""Sample ports of services other than the web: a remote shell, mail, and a database on a high port."""
_TRUST_REMEDY = " instead of this one; or accept client addresses from no other host"
_Matches = bool | None
"""Whether a list matches a request: True means always, False never, None perhaps."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A sample request."""

    to: Addresses | None = None
    """Destination addresses; None if the request is for no particular address."""
    to_file: str = ""
    """File with the destination addresses, if these may change."""
    tunnel: int | None = None
    """Destination port of a tunnel (CONNECT)."""
    manager: bool = False
    """Whether the request is for Squid's status pages."""


def exposure_problems(
    statements: Sequence[Statement], own_addresses: str, *, connects: bool = True
) -> Iterator[Problem]:
    """Yield a warning for each rule that allows sample requests because no rule before it denies them. *own_addresses*:
    the running proxy's file of this host's addresses. *connects*: whether Squid itself looks up host names and connects
    to the addresses. If so, "dst -n", which ignores names, does not protect."""
    rules = _Rules(statements, connects)
    reachable_port = next((port for port in _OTHER_SERVICES if rules.first_rule_allowing(_Request(tunnel=port))), None)
    requests = {
        "loopback addresses": _Request(to=LOOPBACK),
        "link-local addresses": _Request(to=_LINK_LOCAL),
        "metadata services of clouds such as 168.63.129.16": _Request(to=_METADATA),
        "127.0.0.0/8, 169.254.0.0/16 and metadata services behind NAT64 (64:ff9b::/96)": _Request(to=_TRANSLATED),
        f'this host\'s own addresses ("{own_addresses}")': _Request(to_file=own_addresses),
        f"CONNECT to ports such as {reachable_port}": _Request(tunnel=reachable_port or _OTHER_SERVICES[0]),
        "Squid's own status pages (manager)": _Request(manager=True),
    }
    descriptions_by_rule: dict[Statement, list[str]] = {}
    for description, request in requests.items():
        if (rule := rules.first_rule_allowing(request)) is not None:
            descriptions_by_rule.setdefault(rule, []).append(description)
    for rule, descriptions in descriptions_by_rule.items():
        trusting_rule = rules.trusting_rule if rules.matches_this_host(rule) else None
        claim = (
            f"; other hosts can claim this host's address ({' '.join(trusting_rule.words)})" if trusting_rule else ""
        )
        yield Problem(
            f"{' '.join(rule.words)}: no rule before this one denies {', '.join(descriptions)}: clients reach services"
            f" that are not meant for them{claim}",
            rule.file,
            rule.number,
            allowed=f"the rules of the shipped conf/squid.conf{_TRUST_REMEDY if trusting_rule else ''}",
            warning=True,
        )


class _Rules:
    def __init__(self, statements: Sequence[Statement], connects: bool) -> None:
        self._lists = AccessLists(statements, only_strangers=False)
        self.trusting_rule = rule_trusting_others(statements, self._lists)
        """The rule by which senders on other hosts may claim this host's address, if any."""
        self._rules = [(rule, names_of(rule)) for rule in access_rules(statements, "http_access")]
        self._never_direct_lists = _never_direct_lists_of(statements)
        self._connects = connects

    def first_rule_allowing(self, request: _Request) -> Statement | None:
        """Return the first rule that may allow *request* of a client on another host, if any."""
        matcher = self._matcher(request)
        for rule, names in self._rules:
            if rule.words[1] == "allow":
                if not any(matcher.matches(name) is False for name in names):
                    return rule
            elif rule.applies is True:
                denied = Addresses.intersection(matcher.denied_addresses(name) for name in names)
                if request.to is None and denied:
                    return None
                if request.to is not None and denied:
                    request = replace(request, to=request.to - denied)
                    if not request.to:
                        return None
                    matcher = self._matcher(request)
        return None

    def matches_this_host(self, rule: Statement) -> bool:
        return any(_matches_only_this_host(self._lists, name) for name in names_of(rule))

    def _matcher(self, request: _Request) -> _ListMatcher:
        return _ListMatcher(
            self._lists, self._never_direct_lists, self._connects, self.trusting_rule is not None, request
        )


class _ListMatcher:
    """Decides which lists match one request."""

    def __init__(
        self,
        lists: AccessLists,
        never_direct_lists: frozenset[str],
        by_name: bool,
        can_claim_this_host: bool,
        request: _Request,
    ) -> None:
        self._lists = lists
        self._never_direct_lists = never_direct_lists
        self._by_name = by_name
        self._can_claim_this_host = can_claim_this_host
        self._request = request
        self._results: dict[str, _Matches] = {}

    def denied_addresses(self, name: str) -> Addresses:
        """Return the destination addresses for which *name*, in a "deny" rule, always matches the request. For a
        request without a particular address, return EVERYBODY if *name* matches it, otherwise NOBODY."""
        if self.matches(name) is True:
            return EVERYBODY
        has_addresses = self._request.to is not None and not name.startswith("!")
        return self._lists.destinations(name, self._by_name) if has_addresses else NOBODY

    def matches(self, name: str) -> _Matches:
        if name.startswith("!"):
            inner = self.matches(name[1:])
            return None if inner is None else not inner
        name = ascii_lower(name)
        if name not in self._results:
            self._results[name] = None  # ends the recursion if a list names itself
            self._results[name] = self._evaluate(name)
        return self._results[name]

    def _evaluate(self, name: str) -> _Matches:
        if name in self._never_direct_lists:
            return False
        if not self._can_claim_this_host and _matches_only_this_host(self._lists, name):
            return False
        clients = self._lists.match(name)
        request, lines = self._request, self._lists.lines(name)
        if clients.certain == EVERYBODY or (
            request.to_file and self._lists.reads(name, request.to_file, self._by_name)
        ):
            return True
        if all(line.kind == "dst" for line in lines):
            return self._evaluate_destinations(name, lines)
        found = [self._evaluate_line(line) for line in lines]
        if any(matches is True and line.in_force for matches, line in zip(found, lines, strict=True)):
            return True
        return False if all(matches is False for matches in found) else None

    def _evaluate_destinations(self, name: str, lines: Sequence[Line]) -> _Matches:
        to = self._request.to
        if not (EVERYBODY if to is None else to) - self._lists.destinations(name, self._by_name):
            return True
        return False if lines and to is not None and not self._lists.destination_match(name).possible & to else None

    def _evaluate_line(self, line: Line) -> _Matches:
        request, values = self._request, [value.text for value in line.values]
        match line.kind:
            case "manager":
                return request.manager
            case "method" if request.tunnel is not None:
                return "CONNECT" in values
            case "port" if request.tunnel is not None:
                return _has_port(values, request.tunnel)
            case "any-of" | "all-of":
                parts = [self.matches(value) for value in values]
                decisive = line.kind == "any-of"
                if decisive in parts:
                    return decisive
                return None if None in parts else not decisive
        return None


def _matches_only_this_host(lists: AccessLists, name: str) -> bool:
    clients = lists.match(name).possible
    return bool(clients) and not clients - LOOPBACK


def _has_port(values: Sequence[str], port: int) -> _Matches:
    found = False
    for value in values:
        first, _, last = value.partition("-")
        if not (first.isascii() and first.isdigit() and (not last or (last.isascii() and last.isdigit()))):
            return None
        found = found or int(first) <= port <= int(last or first)
    return found


def _never_direct_lists_of(statements: Sequence[Statement]) -> frozenset[str]:
    """Return the names of lists whose requests Squid always sends to its peers. Squid evaluates "always_direct" before
    "never_direct"; the first matching rule of each decides."""
    found = set()
    for statement in statements:
        words = tuple(ascii_lower(word) for word in statement.words)
        if words[:2] == ("always_direct", "allow"):
            return frozenset()
        if words[:1] == ("never_direct",):
            if words[1:2] != ("allow",):
                break
            if len(words) == 3 and statement.applies is True:
                found.add(words[2])
    return frozenset(found)
