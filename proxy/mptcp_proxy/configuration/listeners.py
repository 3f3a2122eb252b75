# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the listening ports from ``http_port`` and ``https_port``, so that no other setting must repeat them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from ..listening import covers_all_addresses
from ..problem import Problem
from .source import PhysicalLine, Statement, replace_statement, statements

_DIRECTIVES = ("http_port", "https_port")
_PORT = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^:\[\]]+):)?(?P<port>[0-9]{1,5})")
# "transparent" is the old name of "intercept" and still accepted.
_REDIRECTION_OPTIONS = ("intercept", "transparent")
_WEB_PORTS = (80, 443)
MPTCP = "mptcp"
"""The option of http_port for Multipath TCP, in a Squid that was built with it (proxy/squid)."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One ``http_port`` or ``https_port`` statement."""

    statement: Statement
    host: str
    """Address or name; empty for all addresses, IPv4 and IPv6."""
    port: int
    options: tuple[str, ...]

    def overlaps(self, other: Listener) -> bool:
        """Return whether one process cannot bind both, because they have the same port and a common address."""
        if self.port != other.port:
            return False
        return any(covers_all_addresses(each.host) for each in (self, other)) or _same_host(self.host, other.host)

    def __str__(self) -> str:
        return f"{f'{self.host}:' if self.host else ''}{self.port}"


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach *host*, an address or a name."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _same_host(first_host: str, second_host: str) -> bool:
    first, second = _address(first_host), _address(second_host)
    if first is None or second is None:
        return first_host.lower() == second_host.lower()
    return first == second or (first.version == second.version and (first.is_unspecified or second.is_unspecified))


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Return *host* as an address as Squid reads it ("::ffff:10.0.0.1" is 10.0.0.1); None for a name."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def listeners(statements: Iterable[Statement]) -> Iterator[Listener]:
    """Yield the listeners. Squid's own check reports malformed statements."""
    for statement in statements:
        words = statement.words
        if len(words) < 2 or words[0] not in _DIRECTIVES:
            continue
        match = _PORT.fullmatch(words[1])
        if match and 0 < int(match["port"]) <= 65535:
            yield Listener(statement, match["host"] or "", int(match["port"]), words[2:])


def listener_problems(
    found: Iterable[Listener],
    file: str,
    has_port_statement: bool,
    *,
    with_mptcp: bool = True,
    several_workers: bool = False,
) -> Iterator[Problem]:
    """Yield the problems of the listeners of the configuration *file*. *has_port_statement*: whether the file has any
    port statement. *with_mptcp*: whether the listeners use MPTCP. *several_workers*: Squid will have several workers,
    and bind with SO_REUSEPORT (socket(7)), which allows both "[::]" and an address."""
    checked: list[Listener] = []
    for listener in found:
        place = (listener.statement.file, listener.statement.number)
        for option in listener.options:
            if option in _REDIRECTION_OPTIONS and with_mptcp:
                yield Problem(
                    f"{listener.statement.directive} {listener} {option}: an MPTCP socket does not know the"
                    " destination of a redirected connection (no SO_ORIGINAL_DST), so every request would fail",
                    *place,
                    allowed="tproxy; or no option, with the proxy set in the browser",
                )
        if "tproxy" in listener.options and with_mptcp and listener.port not in _WEB_PORTS:
            yield Problem(
                f"{listener.statement.directive} {listener} tproxy: clients connect to another port, and keep one path,"
                " because the kernel refuses joins to a port without a listener",
                *place,
                allowed="http_port 80 tproxy, http_port 443 tproxy: a listener on each redirected port",
                warning=True,
            )
        for earlier in checked:
            may_differ = listener.statement.conditional or earlier.statement.conditional
            if listener.overlaps(earlier) and not may_differ:
                # With several workers, different hosts work. Equal hosts are a mistake with any number of workers.
                both_given = bool(listener.host and earlier.host)
                is_possible = several_workers and both_given and not _same_host(listener.host, earlier.host)
                yield Problem(
                    f"{listener.statement.directive} {listener}: the port is already taken by"
                    f" {earlier.statement.directive} {earlier} in line {earlier.statement.number}"
                    f"{'; this works only with several workers' if is_possible else ''}",
                    *place,
                    allowed="each address and port once",
                    warning=is_possible,
                )
                break
        checked.append(listener)
    if not checked and not has_port_statement:
        yield Problem(
            "no http_port: Squid would not listen for clients", file, allowed="at least one line like: http_port 3128"
        )


def states_a_port(statements: Iterable[Statement]) -> bool:
    """Return whether there is any port statement, even a malformed one."""
    return any(statement.directive in _DIRECTIVES for statement in statements)


def with_option(lines: Sequence[PhysicalLine], option: str) -> tuple[PhysicalLine, ...]:
    """Return *lines* with *option* in each port statement, line for line."""
    changed = list(lines)
    # Keep the macro ${service_name} in the lines: Squid replaces it.
    for statement in statements(lines, "${service_name}"):
        if statement.directive not in _DIRECTIVES or len(statement.words) < 2 or option in statement.words:
            continue
        # Insert it after the port, because the statement may end in a comment.
        replace_statement(changed, statement, re.sub(r"^\S+\s+\S+", rf"\g<0> {option}", statement.text))
    return tuple(changed)
