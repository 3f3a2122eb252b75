"""The listening ports, read from ``http_port`` and ``https_port`` so that each is stated once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from ..problem import Problem
from .source import PhysicalLine, Statement, put, statements

_DIRECTIVES = ("http_port", "https_port")
_PORT = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^:\[\]]+):)?(?P<port>[0-9]{1,5})")
# "transparent" is the old name of "intercept" and still accepted.
_REDIRECTED = ("intercept", "transparent")
MPTCP = "mptcp"
"""The option by which a Squid that knows it opens a listener for Multipath TCP (proxy/squid)."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One ``http_port`` or ``https_port`` statement."""

    statement: Statement
    host: str
    """Address or name; empty for all addresses, IPv4 and IPv6."""
    port: int
    options: tuple[str, ...]

    def overlaps(self, other: Listener) -> bool:
        """Whether both cannot be bound at once: same port, and an address in common."""
        if self.port != other.port:
            return False
        return not self.host or not other.host or _same(self.host, other.host)

    def __str__(self) -> str:
        return f"{f'{self.host}:' if self.host else ''}{self.port}"


def is_loopback(host: str) -> bool:
    """Whether this host alone reaches *host*, an address or a name."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _same(one: str, other: str) -> bool:
    try:
        first, second = ip_address(one.strip("[]")), ip_address(other.strip("[]"))
    except ValueError:
        return one.lower() == other.lower()
    return first == second or (first.version == second.version and (first.is_unspecified or second.is_unspecified))


def listeners(statements: Iterable[Statement]) -> Iterator[Listener]:
    """Yield the listeners. Statements that are not well formed are left to Squid's own check."""
    for statement in statements:
        words = statement.words
        if len(words) < 2 or words[0] not in _DIRECTIVES:
            continue
        match = _PORT.fullmatch(words[1])
        if match and 0 < int(match["port"]) <= 65535:
            yield Listener(statement, match["host"] or "", int(match["port"]), words[2:])


def listener_problems(
    found: Iterable[Listener], file: str, any_stated: bool, *, by_mptcp: bool = True
) -> Iterator[Problem]:
    """Yield what is wrong with the listeners of the configuration *file*."""
    seen: list[Listener] = []
    for listener in found:
        place = (listener.statement.file, listener.statement.number)
        for option in listener.options:
            if option in _REDIRECTED and by_mptcp:
                yield Problem(
                    f"{listener.statement.directive} {listener} {option}: an MPTCP socket cannot tell where a"
                    " redirected connection was going (no SO_ORIGINAL_DST), every request would fail",
                    *place,
                    allowed="tproxy, or no mode at all with the proxy set in the browser",
                )
        for earlier in seen:
            apart = listener.statement.conditional or earlier.statement.conditional
            if listener.overlaps(earlier) and not apart:
                yield Problem(
                    f"{listener.statement.directive} {listener}: the port is already taken by"
                    f" {earlier.statement.directive} {earlier} in line {earlier.statement.number}",
                    *place,
                    allowed="each address and port once",
                )
                break
        seen.append(listener)
    if not seen and not any_stated:
        yield Problem(
            "no http_port: nothing would listen for clients", file, allowed="at least one line like: http_port 3128"
        )


def states_a_port(statements: Iterable[Statement]) -> bool:
    """Whether there is any port statement, well formed or not."""
    return any(statement.directive in _DIRECTIVES for statement in statements)


def with_option(lines: Sequence[PhysicalLine], option: str) -> tuple[PhysicalLine, ...]:
    """Return *lines*, in which each port statement has *option*.

    There are as many as before: the n-th stands for the n-th.
    """
    changed = list(lines)
    # Nothing is replaced: this goes to Squid.
    for statement in statements(lines, "${service_name}"):
        if statement.directive not in _DIRECTIVES or len(statement.words) < 2 or option in statement.words:
            continue
        # After the port, since the rest may end in a comment.
        put(changed, statement, re.sub(r"^\S+\s+\S+", rf"\g<0> {option}", statement.text))
    return tuple(changed)
