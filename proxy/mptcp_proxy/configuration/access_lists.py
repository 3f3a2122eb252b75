# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds out which clients each ``acl`` may match (*possible*), and which it matches for every request (*certain*).

Rules (Squid's directive reference, "acl"; src/acl): several lines with the same name are one list, which matches a
client if any of its lines does. Names of lists ignore the case of ASCII letters, values do not. Squid 5 and 6 drop a
value of a list that overlaps an earlier value, so only values that do not overlap are certain. A line under an "if"
that differs from process to process is possible, not certain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase

from .address_values import AddressValue, address_value
from .addresses import EVERYBODY, NOBODY, Addresses
from .helpers import helpers
from .list_values import Value, list_values, listed_file, without_flags
from .patterns import matches_any
from .source import Statement

_IDENTIFYING_TYPES = frozenset(("arp", "eui64", "user_cert", "ca_cert"))
"""Types of lists that identify the client by a property that no stranger has. The type ident is missing, because the
client chooses its answer."""
_HOST_NAME_TYPES = ("srcdomain", "srcdom_regex")
_LOGIN_TYPES = frozenset(("proxy_auth", "proxy_auth_regex"))
_ANSWER_TYPES = frozenset(("ext_user", "ext_user_regex"))
_KNOWN_COMMUNITIES = frozenset(("public", "private"))
"""SNMP communities that everybody knows. HTTP requests have no community."""
_SAMPLE_NAMES = (
    "none",
    "host-1-2-3-4.strangers.com",
    "c-203-0-113-9.isp.strangers.net",
    "static.stranger.org",
    *(f"a.b.xy.{first}{second}" for first in ascii_lowercase for second in ascii_lowercase),
)
"""Sample host names of strangers. A pattern that matches one of them does not identify particular clients. Among them
are names for all two-letter country domains. "none" stands for a client without a name (PTR)."""

_PUBLIC_DOMAINS = frozenset(("", "none", "com", "net", "org", "info", "biz", "edu", "gov", "arpa"))


@dataclass(frozen=True, slots=True)
class Match:
    """The clients that a list may match, and the clients that it matches for every request."""

    possible: Addresses
    certain: Addresses


_UNRELATED = Match(EVERYBODY, NOBODY)
"""Result for a list that does not depend on the client: it may match every client, and certainly matches none."""
_NO_STRANGER = Match(NOBODY, NOBODY)


@dataclass(frozen=True)
class Line:
    """One line of a list."""

    kind: str
    words: tuple[str, ...]
    in_force: bool
    """Whether the line is in force in every process; False if an ``if`` may leave it out."""

    @cached_property
    def values(self) -> list[Value]:
        """The values of the line, without flags. A file with values is read only once."""
        return list(list_values(without_flags(self.words)))


def ascii_lower(text: str) -> str:
    """Return *text* in the lower case of strcasecmp(3)."""
    return "".join(each.lower() if each.isascii() else each for each in text)


def access_rules(statements: Iterable[Statement], directive: str) -> Iterator[Statement]:
    """Yield the "allow" and "deny" rules of *directive*. Rules without a name are left out, because Squid ignores
    them."""
    for statement in statements:
        words = statement.words
        if statement.directive == directive and words[1:2] in (("allow",), ("deny",)) and names_of(statement):
            yield statement


def names_of(rule: Statement) -> list[str]:
    """Return the names of lists in *rule*, including those in a file."""
    return [value.text for value in list_values(rule.words[2:])]


class AccessLists:
    """The lists of a configuration, by name."""

    def __init__(
        self,
        statements: Sequence[Statement],
        *,
        trust_as_numbers: bool = True,
        trust_host_names: bool = True,
        trust_helpers: bool = True,
        only_strangers: bool = True,
    ) -> None:
        """Choose which properties identify a client: the AS number of its network (*trust_as_numbers*), its host name,
        which the owner of the reverse zone chooses (*trust_host_names*), a helper's answer (*trust_helpers*).
        *only_strangers*: leave out clients that are identified by anything other than their address."""
        self._trust_as_numbers = trust_as_numbers
        self._trust_host_names = trust_host_names
        self._only_strangers = only_strangers
        self._helpers = helpers(
            statements, trust_addresses=trust_helpers, trust_host_names=trust_host_names and trust_helpers
        )
        self._lines: dict[str, list[Line]] = {
            "all": [Line("src", ("all",), True)],
            "localhost": [Line("src", ("127.0.0.1", "::1"), True)],
            "to_localhost": [Line("dst", ("127.0.0.0/8", "0.0.0.0/32", "::1/128", "::/128"), True)],
            "to_linklocal": [Line("dst", ("169.254.0.0/16", "fe80::/10"), True)],
            "manager": [Line("manager", (), True)],
            "connect": [Line("method", ("CONNECT",), True)],
        }
        for statement in statements:
            match statement.words:
                case ("acl", name, kind, *words):
                    line = Line(kind, tuple(words), statement.applies is True)
                    self._lines.setdefault(ascii_lower(name), []).append(line)
        self._matches: dict[str, Match] = {}
        self._destination_matches: dict[str, Match] = {}

    @property
    def use_host_names(self) -> bool:
        """Whether any list may depend on host names, directly or through a helper."""
        return any(line.kind in (*_HOST_NAME_TYPES, "external") for lines in self._lines.values() for line in lines)

    def lines(self, name: str) -> Sequence[Line]:
        """Return the lines of the list *name*; none if there is no such list, which Squid reports."""
        return self._lines.get(ascii_lower(name), ())

    def match(self, name: str) -> Match:
        """Return which clients the list *name* matches. As in a rule, *name* may begin with "!"."""
        name = ascii_lower(name)
        if name.startswith("!"):
            if name[1:] not in self._lines:
                return _NO_STRANGER
            inner = self.match(name[1:])
            return Match(EVERYBODY - inner.certain, EVERYBODY - inner.possible)
        if name not in self._lines:
            return _NO_STRANGER
        if name not in self._matches:
            self._matches[name] = _NO_STRANGER  # ends the recursion if a list names itself
            lines = self._lines[name]
            by_address = addresses_of(line for line in lines if line.kind == "src")
            others = [(self._match_of(line), line.in_force) for line in lines if line.kind != "src"]
            self._matches[name] = Match(
                Addresses.union([by_address.possible, *(match.possible for match, _ in others)]),
                Addresses.union([by_address.certain, *(match.certain for match, in_force in others if in_force)]),
            )
        return self._matches[name]

    def _match_of(self, line: Line) -> Match:
        if line.kind in ("any-of", "all-of"):
            parts = [self.match(value.text) for value in line.values]
            join = Addresses.union if line.kind == "any-of" else Addresses.intersection
            return Match(join(part.possible for part in parts), join(part.certain for part in parts))
        return _NO_STRANGER if self._only_strangers and self._identifies(line) else _UNRELATED

    def _identifies(self, line: Line) -> bool:
        if line.kind in _HOST_NAME_TYPES:
            matches_strangers = _is_public_domain if line.kind == "srcdomain" else _matches_a_sample
            return self._trust_host_names and not any(matches_strangers(value.text) for value in line.values)
        if line.kind == "src_as":
            return self._trust_as_numbers
        if line.kind == "external":
            # The helper's name may come after "--" or be in a file.
            return not self._helpers.uninformed.intersection(value.text for value in line.values[:1])
        if line.kind in _LOGIN_TYPES:
            return not self._helpers.any_login_counts
        if line.kind in _ANSWER_TYPES:
            return self._helpers.answers_identify
        if line.kind == "snmp_community":
            return not any(value.text in _KNOWN_COMMUNITIES for value in line.values)
        return line.kind in _IDENTIFYING_TYPES

    def uninformed_helpers(self, name: str) -> tuple[str, ...]:
        """Return the external helpers that *name* uses and whose answers do not identify a client."""
        needs_helpers = any(
            line.kind == "external" or line.kind in _ANSWER_TYPES for line in self.lines(name.lstrip("!"))
        )
        return tuple(sorted(self._helpers.uninformed)) if needs_helpers and not self._helpers.answers_identify else ()

    def destinations(self, name: str, by_name: bool) -> Addresses:
        """Return the destination addresses for which the list *name* matches every request. *by_name*: it must also
        match a request for a host name with such an address."""
        lines = self.lines(name)
        if not by_name or not any("-n" in line.words for line in lines):
            return self.destination_match(name).certain
        return addresses_of(line for line in lines if line.kind == "dst" and "-n" not in line.words).certain

    def destination_match(self, name: str) -> Match:
        """Return the destination addresses for which the list *name* matches requests by address or by host name."""
        name = ascii_lower(name)
        if name not in self._destination_matches:
            self._destination_matches[name] = addresses_of(line for line in self.lines(name) if line.kind == "dst")
        return self._destination_matches[name]

    def reads(self, name: str, file: str, by_name: bool) -> bool:
        """Return whether the list *name* reads destinations from *file*. *by_name*: as in ``destinations``."""
        return any(
            line.in_force and next((f for word in line.words if (f := listed_file(word)) is not None), None) == file
            for line in self.lines(name)
            if line.kind == "dst" and not (by_name and "-n" in line.words)
        )


def _is_public_domain(value: str) -> bool:
    """Return whether strangers have host names in this domain, because it is a top-level domain or "none"."""
    name = ascii_lower(value.strip("."))
    return name in _PUBLIC_DOMAINS or (len(name) == 2 and name.isalpha())


def _matches_a_sample(pattern: str) -> bool:
    return matches_any(pattern, _SAMPLE_NAMES)


def addresses_of(lines: Iterable[Line]) -> Match:
    """Return the addresses that *lines* match. They belong to the same list, and their values are addresses."""
    possible: list[Addresses] = []
    certain = _DisjointRanges()
    doubtful = NOBODY
    """Addresses that may already be in the list. Squid may drop later values that overlap them."""
    for line in lines:
        values = [address_value(value.text) for value in line.values]
        possible.extend(value.possible for value in values)
        if not line.in_force:
            doubtful |= Addresses.union(value.possible for value in values)
            continue
        for value in values:
            doubtful |= certain.add(value, doubtful)
    return Match(Addresses.union(possible), Addresses(certain.ranges))


class _DisjointRanges:
    """Sorted ranges of addresses that do not overlap."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return Addresses.union([Addresses(tuple(zip(self._lows, self._highs, strict=True)))]).ranges

    def add(self, value: AddressValue, doubtful: Addresses) -> Addresses:
        """Add the certain part of *value*. Return the part that Squid may, but need not, have added."""
        is_clear = not doubtful or not value.possible & doubtful
        if self._overlaps(value.certain):
            return NOBODY if is_clear and value.certain == value.possible else value.possible
        if not is_clear:
            return value.possible
        for low, high in value.certain.ranges:
            index = bisect_right(self._lows, low)
            self._lows.insert(index, low)
            self._highs.insert(index, high)
        return value.possible - value.certain if value.certain != value.possible else NOBODY

    def _overlaps(self, addresses: Addresses) -> bool:
        for low, high in addresses.ranges:
            index = bisect_right(self._lows, high) - 1
            if index >= 0 and self._highs[index] >= low:
                return True
        return False
