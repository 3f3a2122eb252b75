# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the parents of a relay from ``cache_peer``, and checks that every request goes to one of them.

Squid evaluates "always_direct" first, and then "never_direct"; the first matching rule of each decides
(src/peer_select.cc). So if "never_direct allow all" comes before any "never_direct deny all", requests bypass the
parents only because of rules for particular destinations, for example local names. Such rules count as intended.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from ..problem import Problem
from .listeners import is_loopback
from .source import Statement

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?")
EXAMPLE = "cache_peer proxy.example.net parent 3128 0 no-query no-digest"


@dataclass(frozen=True, slots=True)
class Parent:
    """One ``cache_peer`` statement."""

    statement: Statement
    host: str
    """Name or address, without brackets."""
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parents(statements: Iterable[Statement]) -> Iterator[Parent]:
    """Yield the parents on other hosts. A parent on this host is left out, because only one path leads to it. Squid
    reports malformed statements, so they are left out as well."""
    for statement in statements:
        match statement.words:
            case ("cache_peer", host, "parent", port, *_):
                number = _port(port)
                if 0 < number <= 65535 and not is_loopback(host):
                    yield Parent(statement, host.strip("[]"), number)


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return _NAME.fullmatch(text) is not None
    return True


def _port(text: str) -> int:
    """Return the port that *text* means: a number or a name in services(5) (GetService in src/cache_cf.cc); 0 if
    *text* is neither."""
    if text.isascii() and text.isdigit():
        return int(text) if len(text) < 10 else 0
    try:
        return socket.getservbyname(text, "tcp")
    except (OSError, UnicodeError):
        return 0


def parent_problems(statements: Sequence[Statement], file: str) -> Iterator[Problem]:
    """Yield the problems of the configuration *file* of a relay that concern its parents."""
    peers = [statement for statement in statements if statement.directive == "cache_peer"]
    if not any(parents(peers)):
        own_peer = next((each for each in peers if len(each.words) > 1 and is_loopback(each.words[1])), None)
        if own_peer is None:
            yield Problem("no cache_peer: a relay needs a parent for its requests", file, allowed=EXAMPLE)
        else:
            text = (
                f"cache_peer {own_peer.words[1]}: this host cannot be a parent; a relay needs a parent on another host"
            )
            yield Problem(text, own_peer.file, own_peer.number, allowed=EXAMPLE)
    for parent in parents(peers):
        if not _is_host(parent.host):
            text = f"cache_peer {parent.host}: neither an address nor a name, so no request would be answered"
            yield Problem(text, parent.statement.file, parent.statement.number, allowed=EXAMPLE)
    for statement in peers:
        match statement.words:
            case ("cache_peer", _, kind, _, icp, *options):
                place = (statement.file, statement.number)
                if kind != "parent":
                    text = f"{' '.join(statement.words)}: a {kind} does not get every request, and uses plain TCP"
                    yield Problem(text, *place, allowed=EXAMPLE, warning=True)
                elif "no-query" not in options and icp not in ("0", "7"):
                    text = (
                        f"{' '.join(statement.words)}: without no-query, a parent that does not answer ICP gets no"
                        " requests"
                    )
                    yield Problem(text, *place, allowed=EXAMPLE, warning=True)
    yield from _direct_problems(statements, file)


def _direct_problems(statements: Sequence[Statement], file: str) -> Iterator[Problem]:
    rules = [each for each in statements if len(each.words) > 2]
    always_rule = next((each for each in rules if each.words[0] == "always_direct" and _is_for_all(each)), None)
    if always_rule is not None and always_rule.words[1] == "allow":
        yield Problem(
            "always_direct allow all: every request bypasses the parents, over one path",
            always_rule.file,
            always_rule.number,
            allowed="always_direct allow for some destinations, or none",
        )
    never_rule = next((each for each in rules if each.words[0] == "never_direct" and _is_for_all(each)), None)
    if never_rule is None or never_rule.words[1] != "allow" or never_rule.conditional:
        yield Problem(
            "never_direct does not apply to all requests: if no parent answers, or if Squid considers a direct"
            " connection better, the relay contacts the origin itself, over one path",
            never_rule.file if never_rule else file,
            never_rule.number if never_rule else None,
            allowed="never_direct allow all",
        )


def _is_for_all(rule: Statement) -> bool:
    return [word.lower() for word in rule.words[2:]] == ["all"]
