"""Would this configuration make an open proxy, one that serves the whole Internet?

Rules (Squid's directive reference, "http_access"): the first rule whose names all match decides. Where none does,
the answer is the opposite of the last rule; with no rule at all it is "deny".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_network

from ..problem import Problem
from .source import Statement

_REMEDY = "http_access allow for the prefixes of your clients, then: http_access deny all"


def _names_everyone(values: Iterable[str]) -> bool:
    for value in values:
        if value in ("all", "0/0", "0.0.0.0/0.0.0.0", "0.0.0.0-255.255.255.255", "ipv4", "ipv6"):
            return True
        try:
            if ip_network(value, strict=False).prefixlen == 0:
                return True
        except ValueError:
            continue
    return False


def _names_of_everyone(statements: Iterable[Statement]) -> set[str]:
    """Return the names of the access lists that match every client."""
    names = {"all"}
    for statement in statements:
        match statement.words:
            case ("acl", name, "src", *values) if _names_everyone(values):
                names.add(name)
    return names


def open_proxy_problems(statements: Sequence[Statement]) -> Iterator[Problem]:
    """Yield the rule by which everyone is served, if there is one."""
    everyone = _names_of_everyone(statements)
    rules = [
        statement
        for statement in statements
        if statement.directive == "http_access"
        and len(statement.words) >= 3
        and statement.words[1] in ("allow", "deny")
    ]
    for rule in rules:
        if rule.conditional or not all(name in everyone for name in rule.words[2:]):
            continue
        if rule.words[1] == "allow":
            yield Problem(
                f"{' '.join(rule.words)}: an open proxy, it would serve the whole Internet",
                rule.file,
                rule.number,
                allowed=_REMEDY,
            )
        return
    if rules and rules[-1].words[1] == "deny":
        yield Problem(
            f"{' '.join(rules[-1].words)}: an open proxy: Squid answers what no rule matches with the opposite of"
            " the last rule, which is this one",
            rules[-1].file,
            rules[-1].number,
            allowed=_REMEDY,
        )
