# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds out which clients each ``acl`` may match (*possible*), and which it matches in any case (*certain*).

Rules (Squid's directive reference, "acl"; src/acl): if several lines have the same name, the list matches a client if
any of its lines does. Names ignore the case of ASCII letters; words do not. Squid 5 and 6 drop a value of a list that
overlaps an earlier one, so only values that do not overlap are certain. A line under an "if" that differs from process
to process is possible, not certain.
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

_IDENTIFYING = frozenset(("arp", "eui64", "user_cert", "ca_cert"))
"""Types that identify the client by a property that no stranger has. The type ident is left out, because the client
chooses its answer."""
_BY_NAME = ("srcdomain", "srcdom_regex")
_BY_LOGIN = frozenset(("proxy_auth", "proxy_auth_regex"))
_BY_ANSWER = frozenset(("ext_user", "ext_user_regex"))
_KNOWN_COMMUNITIES = frozenset(("public", "private"))
"""SNMP communities that are generally known. HTTP requests have no community."""
_STRANGERS = (
    "none",
    "host-1-2-3-4.strangers.com",
    "c-203-0-113-9.isp.strangers.net",
    "static.stranger.org",
    *(f"a.b.xy.{first}{second}" for first in ascii_lowercase for second in ascii_lowercase),
)
"""Sample host names of strangers. A pattern that matches one of them is not meant for certain clients only. There is
one name per two-letter country domain, among others. "none" stands for a client without a name (PTR)."""

_EVERYBODYS = frozenset(("", "none", "com", "net", "org", "info", "biz", "edu", "gov", "arpa"))


@dataclass(frozen=True, slots=True)
class Match:
    """The clients that a name may match, and the clients that it matches for every request."""

    possible: Addresses
    certain: Addresses


_UNRELATED = Match(EVERYBODY, NOBODY)
"""Result for a name that does not depend on the client: it may match every client, and matches none for certain."""
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
    """Return the names of lists in *rule*, including names that are in a file."""
    return [value.text for value in list_values(rule.words[2:])]


class AccessLists:
    """The lists of a configuration, by name."""

    def __init__(
        self,
        statements: Sequence[Statement],
        *,
        numbers_count: bool = True,
        names_count: bool = True,
        helpers_count: bool = True,
        strangers_alone: bool = True,
    ) -> None:
        """Choose which properties identify a client: the number of its network (*numbers_count*), its host name, which
        the owner of the reverse zone chooses (*names_count*), a helper's answer (*helpers_count*). *strangers_alone*:
        among the clients that a name may match, count only clients that nothing but their address identifies."""
        self._numbers_count = numbers_count
        self._names_count = names_count
        self._strangers_alone = strangers_alone
        self._helpers = helpers(statements, addresses_count=helpers_count, names_count=names_count and helpers_count)
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
        self._found: dict[str, Match] = {}
        self._targets: dict[str, Match] = {}

    @property
    def have_names(self) -> bool:
        """Whether any list may depend on host names. A helper may get host names as well."""
        return any(line.kind in (*_BY_NAME, "external") for lines in self._lines.values() for line in lines)

    def lines(self, name: str) -> Sequence[Line]:
        """Return the lines of the list *name*. Empty if there is no such list, which Squid refuses."""
        return self._lines.get(ascii_lower(name), ())

    def match(self, name: str) -> Match:
        """Return which clients *name* matches. It is a name as in a rule, possibly with "!"."""
        name = ascii_lower(name)
        if name.startswith("!"):
            if name[1:] not in self._lines:
                return _NO_STRANGER
            inner = self.match(name[1:])
            return Match(EVERYBODY - inner.certain, EVERYBODY - inner.possible)
        if name not in self._lines:
            return _NO_STRANGER
        if name not in self._found:
            self._found[name] = _NO_STRANGER  # ends the recursion if a list names itself
            lines = self._lines[name]
            by_address = addresses_of(line for line in lines if line.kind == "src")
            others = [(self._line(line), line.in_force) for line in lines if line.kind != "src"]
            self._found[name] = Match(
                Addresses.union([by_address.possible, *(match.possible for match, _ in others)]),
                Addresses.union([by_address.certain, *(match.certain for match, in_force in others if in_force)]),
            )
        return self._found[name]

    def _line(self, line: Line) -> Match:
        if line.kind in ("any-of", "all-of"):
            parts = [self.match(value.text) for value in line.values]
            join = Addresses.union if line.kind == "any-of" else Addresses.common
            return Match(join(part.possible for part in parts), join(part.certain for part in parts))
        return _NO_STRANGER if self._strangers_alone and self._identifies(line) else _UNRELATED

    def _identifies(self, line: Line) -> bool:
        if line.kind in _BY_NAME:
            means_all = _any_domain if line.kind == "srcdomain" else _any_name
            return self._names_count and not any(means_all(value.text) for value in line.values)
        if line.kind == "src_as":
            return self._numbers_count
        if line.kind == "external":
            # The helper's name may follow "--", or may be in a file.
            return not self._helpers.uninformed.intersection(value.text for value in line.values[:1])
        if line.kind in _BY_LOGIN:
            return not self._helpers.any_login_counts
        if line.kind in _BY_ANSWER:
            return self._helpers.answers_identify
        if line.kind == "snmp_community":
            return not any(value.text in _KNOWN_COMMUNITIES for value in line.values)
        return line.kind in _IDENTIFYING

    def uninformed_helpers(self, name: str) -> tuple[str, ...]:
        """Return the external helpers that *name* uses and whose answers do not identify a client."""
        needs_helpers = any(line.kind == "external" or line.kind in _BY_ANSWER for line in self.lines(name.lstrip("!")))
        return tuple(sorted(self._helpers.uninformed)) if needs_helpers and not self._helpers.answers_identify else ()

    def destinations(self, name: str, by_name: bool) -> Addresses:
        """Return the destination addresses for which *name* matches every request. *by_name*: it must also match a
        request for a host name with such an address."""
        lines = self.lines(name)
        if not by_name or not any("-n" in line.words for line in lines):
            return self.targets(name).certain
        return addresses_of(line for line in lines if line.kind == "dst" and "-n" not in line.words).certain

    def targets(self, name: str) -> Match:
        """Return the destination addresses for which *name* matches requests, either by address or by host name."""
        name = ascii_lower(name)
        if name not in self._targets:
            self._targets[name] = addresses_of(line for line in self.lines(name) if line.kind == "dst")
        return self._targets[name]

    def reads(self, name: str, file: str, by_name: bool) -> bool:
        """Return whether *name* reads destinations from *file*; *by_name* has the same meaning as in
        ``destinations``."""
        return any(
            line.in_force and next((f for word in line.words if (f := listed_file(word)) is not None), None) == file
            for line in self.lines(name)
            if line.kind == "dst" and not (by_name and "-n" in line.words)
        )


def _any_domain(value: str) -> bool:
    """Return whether a domain also contains strangers: if it is a top-level domain, or "none"."""
    name = ascii_lower(value.strip("."))
    return name in _EVERYBODYS or (len(name) == 2 and name.isalpha())


def _any_name(pattern: str) -> bool:
    return matches_any(pattern, _STRANGERS)


def addresses_of(lines: Iterable[Line]) -> Match:
    """Return the clients that the addresses of *lines* of one list match together."""
    possible: list[Addresses] = []
    certain = _Apart()
    doubtful = NOBODY
    """Addresses that may already be in the list, so that Squid may drop later values that overlap them."""
    for line in lines:
        values = [address_value(value.text) for value in line.values]
        possible.extend(value.possible for value in values)
        if not line.in_force:
            doubtful |= Addresses.union(value.possible for value in values)
            continue
        for value in values:
            doubtful |= certain.take(value, doubtful)
    return Match(Addresses.union(possible), Addresses(certain.ranges))


class _Apart:
    """Sorted ranges of addresses that do not overlap."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return Addresses.union([Addresses(tuple(zip(self._lows, self._highs, strict=True)))]).ranges

    def take(self, value: AddressValue, doubtful: Addresses) -> Addresses:
        """Add the certain part of *value*. Return the part that may have been added but is not certain."""
        clear = not doubtful or not value.possible & doubtful
        if self._overlaps(value.certain):
            return NOBODY if clear and value.certain == value.possible else value.possible
        if not clear:
            return value.possible
        for low, high in value.certain.ranges:
            at = bisect_right(self._lows, low)
            self._lows.insert(at, low)
            self._highs.insert(at, high)
        return value.possible - value.certain if value.certain != value.possible else NOBODY

    def _overlaps(self, addresses: Addresses) -> bool:
        for low, high in addresses.ranges:
            at = bisect_right(self._lows, high) - 1
            if at >= 0 and self._highs[at] >= low:
                return True
        return False
