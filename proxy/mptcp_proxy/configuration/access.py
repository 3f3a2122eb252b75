"""Would this configuration make an open proxy, one that serves the whole Internet?

Rules (Squid's directive reference, "http_access" and "acl"): the first rule whose names all match decides. Where none
does, the answer is the opposite of the last rule; with no rule at all it is "deny".

So an "allow" is closed only if one of its names, without "!", says who the client is. What is asked for (a port, a
method) and where it was received (localip, localport) does not: anybody may ask for a page on port 80. Neither does
"!clients", which is everybody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network, summarize_address_range
from pathlib import Path

from ..problem import Problem
from .source import Statement

_REMEDY = "http_access allow for the prefixes of your clients, then: http_access deny all"
_SAY_WHO = frozenset(
    """
src_as srcdomain srcdom_regex arp eui64 ident ident_regex proxy_auth proxy_auth_regex ext_user ext_user_regex
user_cert ca_cert external
""".split()  # noqa: SIM905  many quotation marks less
)
# What Squid takes for "all", both families, in spite of the words (ClientAcls: src/acl/Ip.cc).
_ALL = frozenset({"all", "0/0", "0.0.0.0/0", "0.0.0.0/0.0.0.0", "0.0.0.0-255.255.255.255"})
_EVERYBODY_4 = ip_network("0.0.0.0/0")
_MAPPED = IPv6Network("::ffff:0:0/96")
"""Squid keeps an IPv4 address as an IPv6 one."""
_GLOBAL_6 = IPv6Network("2000::/3")
"""All of IPv6 that is given out to anybody (RFC 4291, 2.4); Squid's word for it is "ipv6"."""
Network = IPv4Network | IPv6Network
_BOTH = frozenset({4, 6})
_NOBODY: frozenset[int] = frozenset()


def _values(words: Iterable[str]) -> Iterator[str]:
    """Yield the values, with a list in a file (a name in quotation marks) in its place."""
    for word in words:
        if len(word) > 2 and word[0] == word[-1] == '"':
            # One that cannot be read is Squid's to complain about.
            with suppress(OSError):
                for line in Path(word[1:-1]).read_text(errors="replace").splitlines():
                    yield from line.partition("#")[0].split()
        else:
            yield word


def _networks(value: str) -> Iterator[Network]:
    """Yield the prefixes that *value* of a "src" stands for; none for a name of a host."""
    if value in _ALL:
        yield from (_EVERYBODY_4, _GLOBAL_6)
    elif value in ("ipv4", "ipv6"):
        yield _EVERYBODY_4 if value == "ipv4" else _GLOBAL_6
    else:
        with suppress(ValueError, TypeError):
            first, dash, last = value.partition("-")
            if dash:
                yield from summarize_address_range(ip_address(first), ip_address(last.partition("/")[0]))
            else:
                yield ip_network(value, strict=False)


def _families_open(values: Iterable[str]) -> frozenset[int]:
    """Return the IP versions of which these values of a "src" name every address."""
    v4: list[IPv4Network] = []
    v6: list[IPv6Network] = []
    for network in (network for value in values for network in _networks(value)):
        if isinstance(network, IPv4Network):
            v4.append(network)
            continue
        v6.append(network)
        if network.supernet_of(_MAPPED):
            v4.append(IPv4Network("0.0.0.0/0"))
        elif network.subnet_of(_MAPPED):
            low = int(network.network_address) & 0xFFFFFFFF
            v4.append(IPv4Network((low, network.prefixlen - 96)))
    found = {4} if any(network.prefixlen == 0 for network in collapse_addresses(v4)) else set()
    if any(network.supernet_of(_GLOBAL_6) for network in collapse_addresses(v6)):
        found.add(6)
    return frozenset(found)


class _AccessLists:
    """What the names in rules stand for. Several "acl" lines of one name match what any of them does."""

    def __init__(self, statements: Iterable[Statement]) -> None:
        self._lines: dict[str, list[tuple[str, tuple[str, ...]]]] = {
            "all": [("src", ("all",))],
            "localhost": [("src", ("127.0.0.1", "::1"))],
            **{name: [("predefined", ())] for name in ("manager", "to_localhost", "to_linklocal", "CONNECT")},
        }
        for statement in statements:
            match statement.words:
                case ("acl", name, kind, *values):
                    self._lines.setdefault(name, []).append((kind, tuple(values)))

    def open_to(self, name: str, asked: frozenset[str] = frozenset()) -> frozenset[int]:
        """Return the IP versions of which *name* may match clients with any address whatever."""
        if name.startswith("!"):
            # Only the complement of everybody is nobody.
            return _BOTH - self.everybody(name[1:]) if name[1:] in self._lines else _NOBODY
        lines = self._lines.get(name)
        if lines is None or name in asked:
            return _NOBODY  # Squid refuses a name that is not defined before it is used
        found = _families_open(_values(value for kind, values in lines if kind == "src" for value in values))
        for kind, values in lines:
            parts = [self.open_to(part, asked | {name}) for part in values]
            if kind == "any-of":
                found |= _NOBODY.union(*parts)
            elif kind == "all-of":
                found |= _BOTH.intersection(*parts)
            elif kind != "src" and kind not in _SAY_WHO:
                found = _BOTH
        return found

    def everybody(self, name: str) -> frozenset[int]:
        """Return the IP versions of which *name* matches every client, whatever the client asks for."""
        lines = self._lines.get(name, [])
        return _families_open(_values(value for kind, values in lines if kind == "src" for value in values))

    def outsiders(self, name: str) -> frozenset[int]:
        """Return the IP versions of which *name* certainly matches every client that nobody has let in."""
        if name.startswith("!"):
            return _BOTH - self.open_to(name[1:]) if name[1:] in self._lines else _NOBODY
        return self.everybody(name)


def open_proxy_problems(statements: Sequence[Statement]) -> Iterator[Problem]:
    """Yield the rule by which everyone is served, if there is one."""
    lists = _AccessLists(statements)
    rules = [
        statement
        for statement in statements
        if statement.directive == "http_access"
        and len(statement.words) >= 3
        and statement.words[1] in ("allow", "deny")
    ]
    outside = _BOTH  # the IP versions whose outsiders no rule has turned away so far
    for rule in rules:
        if rule.conditional:
            continue
        names = rule.words[2:]
        if rule.words[1] == "deny":
            outside -= _BOTH.intersection(*map(lists.outsiders, names))
        elif outside.intersection(*map(lists.open_to, names)):
            yield Problem(
                f"{' '.join(rule.words)}: an open proxy, it would serve the whole Internet: no name in it, without"
                ' "!", says who the client is',
                rule.file,
                rule.number,
                allowed=_REMEDY,
            )
            return
        if not outside:
            return
    if rules and rules[-1].words[1] == "deny":
        yield Problem(
            f"{' '.join(rules[-1].words)}: an open proxy: Squid answers what no rule matches with the opposite of"
            " the last rule, which is this one",
            rules[-1].file,
            rules[-1].number,
            allowed=_REMEDY,
        )
