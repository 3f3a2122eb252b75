"""Whom this configuration serves: would it make an open proxy, and what of this host could clients reach?

Decided by meaning, by Squid's own rules ("http_access" and "acl" in its directive reference): which client addresses
may be allowed at all. The first rule whose names all match decides. Where none does, the answer is the opposite of the
last rule; with no rule at all it is "deny". Names of lists are the same in any letter case (src/acl/Acl.cc), words are
not.

What is asked for (a port, a method, a place) is the client's choice, so that a rule about it keeps nobody out. A rule
about who the client is other than by address (a password, a certificate) lets in no stranger. What depends on an "if"
that differs from process to process may be in force or not: such an "allow" counts, such a "deny" does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from pathlib import Path

from ..problem import Problem
from .addresses import EVERYBODY, IPV4, IPV6, NOBODY, Addresses
from .source import Statement

OVERRIDE = "--allow-open-proxy"
"""The option by which an operator says that the rules are meant as they are."""
_REMEDY = f"http_access allow for the prefixes of your clients, then: http_access deny all; as it is: {OVERRIDE}"
_MOST = {"IPv4": (IPV4.public, 1 << 28), "IPv6": (IPV6.public, 1 << 116)}
"""The most public addresses of which clients may come: sixteen /8, one /12. No operator has as many."""
_SAY_WHO = frozenset(
    """
src_as srcdomain srcdom_regex arp eui64 ident ident_regex proxy_auth proxy_auth_regex ext_user ext_user_regex
user_cert ca_cert external
""".split()  # noqa: SIM905  many quotation marks less
)
_ALL = ("all", "0/0", "0.0.0.0/0", "0.0.0.0/0.0.0.0", "0.0.0.0-255.255.255.255", "0.0.0.0-0.0.0.0/0")
"""What means both families in a "src" or "dst", in spite of what it says (src/acl/Ip.cc)."""
_SPECIAL = {**dict.fromkeys(_ALL, EVERYBODY), "ipv4": IPV4.all, "ipv6": IPV6.all}
_LOOPBACK = Addresses.of("127.0.0.0/8", "::1/128")
_LINK_LOCAL = Addresses.of("169.254.0.0/16", "fe80::/10")
_TRANSLATED = Addresses.of("64:ff9b::7f00:0/104", "64:ff9b::a9fe:0/112")
"""The former two's IPv4 addresses, as NAT64 has them (RFC 6052, 2.1)."""


@dataclass(frozen=True, slots=True)
class _Match:
    """The clients that a name may match, and those that it matches whatever they ask for."""

    possible: Addresses
    certain: Addresses


_UNRELATED = _Match(EVERYBODY, NOBODY)
"""A name that does not look at the client."""
_NO_STRANGER = _Match(NOBODY, NOBODY)


def open_proxy_problems(statements: Sequence[Statement]) -> Iterator[Problem]:
    """Yield the rule by which too many are served, if there is one."""
    lists = _AccessLists(statements)
    rules = list(_rules(statements))
    undecided, allowed = EVERYBODY, NOBODY
    for rule in rules:
        matches = [lists.match(name) for name in rule.words[2:]]
        if rule.words[1] == "deny":
            if rule.applies:
                undecided -= Addresses.common(match.certain for match in matches)
            continue
        allowed |= undecided & Addresses.common(match.possible for match in matches)
        if served := _too_many(allowed):
            yield _open(rule, f'would serve {served}: no name in it, without "!", keeps strangers out')
            return
    last = next((rule for rule in reversed(rules) if rule.words[1] == "deny" or rule.applies), None)
    if last is not None and last.words[1] == "deny" and (served := _too_many(allowed | undecided)):
        yield _open(
            last,
            f"would serve {served}: Squid answers what no rule matches with the opposite of the last rule, which is "
            "this one",
        )


def exposure_problems(
    statements: Sequence[Statement], own_addresses: str, *, connects: bool = True
) -> Iterator[Problem]:
    """Yield a warning that names the protections that are missing before the first rule that lets clients in.

    *own_addresses* is the file in which the running proxy has this host's addresses. *connects*: Squid looks names up
    and connects to what they stand for, so that a "dst -n", which knows addresses alone, is no protection.
    """
    lists = _AccessLists(statements)
    elsewhere = _never_direct(statements)
    denied, file_denied, tunnels_denied = NOBODY, False, False
    first = None
    for rule in _rules(statements):
        names = [name.lower() for name in rule.words[2:]]
        if rule.words[1] == "allow":
            if "manager" in names or names == ["localhost"] or elsewhere.intersection(names):
                continue
            first = rule
            break
        if not rule.applies:
            continue
        if len(names) == 1:
            denied |= lists.destinations(names[0], connects)
            file_denied = file_denied or lists.reads(names[0], own_addresses, connects)
        tunnels_denied = tunnels_denied or "connect" in names
    if first is None:
        return
    protected = {
        "loopback addresses": not (_LOOPBACK - denied),
        "link-local addresses": not (_LINK_LOCAL - denied),
        "127.0.0.0/8 and 169.254.0.0/16 behind NAT64 (64:ff9b::/96)": not (_TRANSLATED - denied),
        f'this host\'s own addresses ("{own_addresses}")': file_denied,
        "CONNECT to any port": tunnels_denied,
    }
    if missing := [what for what, is_so in protected.items() if not is_so]:
        yield Problem(
            f"{' '.join(first.words)}: no rule before this one denies {', '.join(missing)}: clients reach services "
            "that are not meant for them",
            first.file,
            first.number,
            allowed="the rules of the shipped conf/squid.conf",
            warning=True,
        )


def _never_direct(statements: Sequence[Statement]) -> frozenset[str]:
    """Return the names of requests that Squid gives to its peers alone, wherever they seem to be for.

    "always_direct" comes before "never_direct", in which the first rule decides.
    """
    found = set()
    for statement in statements:
        words = tuple(word.lower() for word in statement.words)
        if words[:2] == ("always_direct", "allow"):
            return frozenset()
        if words[:1] == ("never_direct",):
            if words[1:2] != ("allow",):
                break
            if len(words) == 3 and statement.applies:
                found.add(words[2])
    return frozenset(found)


def _rules(statements: Iterable[Statement]) -> Iterator[Statement]:
    for statement in statements:
        words = statement.words
        if statement.directive == "http_access" and len(words) >= 3 and words[1] in ("allow", "deny"):
            yield statement


def _open(rule: Statement, why: str) -> Problem:
    return Problem(f"{' '.join(rule.words)}: an open proxy, it {why}", rule.file, rule.number, allowed=_REMEDY)


def _too_many(allowed: Addresses) -> str:
    """Return what share of which family's public addresses is *allowed*; empty where that is no open proxy."""
    for family, (public, most) in _MOST.items():
        count = (allowed & public).count
        if count > most:
            return f"{max(1, round(100 * count / public.count))} % of the Internet's {family} addresses"
    return ""


class _AccessLists:
    """What the names in rules stand for. Several "acl" lines of one name match what any of them does."""

    def __init__(self, statements: Iterable[Statement]) -> None:
        self._lines: dict[str, list[tuple[str, tuple[str, ...], bool]]] = {
            "all": [("src", ("all",), True)],
            "localhost": [("src", ("127.0.0.1", "::1"), True)],
            "to_localhost": [("dst", ("127.0.0.0/8", "0.0.0.0/32", "::1/128", "::/128"), True)],
            "to_linklocal": [("dst", ("169.254.0.0/16", "fe80::/10"), True)],
            **{name: [("predefined", (), True)] for name in ("manager", "connect")},
        }
        for statement in statements:
            match statement.words:
                case ("acl", name, kind, *values):
                    certain = statement.applies is True
                    self._lines.setdefault(name.lower(), []).append((kind, tuple(values), certain))
        self._found: dict[str, _Match] = {}

    def match(self, name: str) -> _Match:
        """Return which clients *name*, of a rule, matches."""
        name = name.lower()
        if name.startswith("!"):
            if name[1:] not in self._lines:
                return _NO_STRANGER  # Squid refuses a name that is not defined
            inner = self.match(name[1:])
            return _Match(EVERYBODY - inner.certain, EVERYBODY - inner.possible)
        if name not in self._lines:
            return _NO_STRANGER
        if name not in self._found:
            self._found[name] = _NO_STRANGER  # for a list that names itself
            lines = [(self._line(kind, values), in_force) for kind, values, in_force in self._lines[name]]
            self._found[name] = _Match(
                Addresses.union(line.possible for line, _ in lines),
                Addresses.union(line.certain for line, in_force in lines if in_force),
            )
        return self._found[name]

    def _line(self, kind: str, values: tuple[str, ...]) -> _Match:
        if kind == "src":
            return _match_of(values)
        if kind in ("any-of", "all-of"):
            parts = [self.match(part) for part in values]
            join = Addresses.union if kind == "any-of" else Addresses.common
            return _Match(join(part.possible for part in parts), join(part.certain for part in parts))
        return _NO_STRANGER if kind in _SAY_WHO else _UNRELATED

    def destinations(self, name: str, by_name: bool) -> Addresses:
        """Return the addresses to which *name* matches every request; *by_name*: also those for a name of theirs."""
        lines = self._destinations(name, by_name)
        return Addresses.union(_match_of(values).certain for values, sure in lines if sure)

    def reads(self, name: str, file: str, by_name: bool) -> bool:
        """Say whether *name* has destinations from *file*; *by_name* as above."""
        return any(f'"{file}"' in values for values, _ in self._destinations(name, by_name))

    def _destinations(self, name: str, by_name: bool) -> Iterator[tuple[tuple[str, ...], bool]]:
        for kind, values, sure in self._lines.get(name, []):
            if kind == "dst" and not (by_name and "-n" in values):
                yield values, sure


def _match_of(values: Iterable[str]) -> _Match:
    """Return what the values of a "src" or "dst" match."""
    found = [_addresses(value) for value in _values(values)]
    certain = Addresses.union(each for each in found if each is not None)
    return _Match(EVERYBODY if None in found else certain, certain)


def _values(words: Iterable[str]) -> Iterator[str]:
    """Yield the values, with a list in a file (a name in quotation marks) in its place, without flags ("-n")."""
    for word in words:
        if len(word) > 2 and word[0] == word[-1] == '"':
            # One that cannot be read is Squid's to complain about.
            with suppress(OSError):
                for line in Path(word[1:-1]).read_text(errors="replace").splitlines():
                    yield from line.partition("#")[0].split()
        elif not word.startswith("-"):
            yield word


def _addresses(value: str) -> Addresses | None:
    """Return the addresses of a value; those of a host's name are nobody's, None where it cannot be understood."""
    value = value.lower()
    if value in _SPECIAL:
        return _SPECIAL[value]
    first, dash, rest = value.partition("-")
    last, _, mask = rest.partition("/")
    try:
        if not dash:
            return Addresses.of(value)
        if not mask:
            return Addresses.between(ip_address(first), ip_address(last))
        # Squid compares what the mask leaves of an address with both ends.
        begin, end = (ip_network(f"{each}/{mask}", strict=False) for each in (first, last))
        return Addresses.between(begin.network_address, end.broadcast_address)
    except (ValueError, TypeError):
        # A mask with gaps Squid does take; what it does not take it complains about itself.
        return None if set(value.rpartition("/")[2]) & set(".:") and "/" in value else NOBODY


def as_warnings(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield *problems* as warnings, for an operator who has said that they are meant."""
    for problem in problems:
        yield replace(problem, warning=True)
