# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the processes that listen on ports of this network namespace, and their protocol, with ``ss -Hltnpi`` (ss(8)).

The kernel's socket diagnostics (sock_diag(7)) name a socket by its inode; ss finds its process in /proc.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from . import ss

_MPTCP = "tcp-ulp-mptcp"
_OWNER = re.compile(r'\("(?P<program>[^"]+)",pid=(?P<pid>\d+)')


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """One listening TCP or MPTCP socket."""

    address: str
    """Address in the form of ss: ``*`` means all addresses, IPv4 and IPv6."""
    port: int
    program: str
    """Name of the program; empty if this process is not allowed to see it."""
    pids: tuple[int, ...]
    mptcp: bool = False
    """Whether the socket accepts Multipath TCP; otherwise clients fall back to TCP."""

    def __str__(self) -> str:
        return f"{self.program or 'another process'}{f' (process {self.pids[0]})' if self.pids else ''}"


def read_listening(text: str) -> Iterator[ListeningSocket]:
    """Parse the output of ``ss -Hltnpi``: for each socket, a line and an indented line with its internal state."""
    for line in text.replace("\n\t", "\t").splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0] != "LISTEN":
            continue
        address, _, port = fields[3].rpartition(":")
        owners = list(_OWNER.finditer(line))
        if port.isdigit():
            program = owners[0]["program"] if owners else ""
            yield ListeningSocket(
                address, int(port), program, tuple(int(owner["pid"]) for owner in owners), _MPTCP in line
            )


def listening_now() -> tuple[ListeningSocket, ...]:
    """Return the listening sockets; none if ss fails."""
    return tuple(read_listening(ss.output("-Hltnpi") or ""))


def listening_or_none() -> tuple[ListeningSocket, ...] | None:
    """Return the listening sockets; None if ss fails, so that it is unknown which sockets exist."""
    text = ss.output("-Hltnpi")
    return None if text is None else tuple(read_listening(text))


def identities(ports: Collection[int]) -> tuple[str, ...] | None:
    """Return unique identities of the sockets that listen on *ports*; None if ss fails.

    With these options, ss lists only listening sockets and does not search /proc for their processes. With a process
    that has 20,000 sockets, ss took 1.5 to 2.4 s on a busy machine with that search, and 0.06 to 0.08 s without it.
    """
    text = ss.output("-HOltne")
    return None if text is None else tuple(sorted(read_identities(text, ports)))


def read_identities(text: str, ports: Collection[int]) -> Iterator[str]:
    """Yield, from the output of ``ss -HOltne``, each socket's address with the numbers that identify the socket."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0] != "LISTEN":
            continue
        port = fields[3].rpartition(":")[2]
        if port.isdigit() and int(port) in ports:
            yield " ".join((fields[3], *(field for field in fields[4:] if field.startswith(("ino:", "sk:")))))


def conflicting_socket(host: str, port: int, sockets: Iterable[ListeningSocket]) -> ListeningSocket | None:
    """Return a socket that prevents another process from binding *host*:*port*, if any. An empty *host* means all
    addresses."""
    requested = host.strip("[]").lower()
    return next((s for s in sockets if s.port == port and _overlap(requested, s.address.strip("[]").lower())), None)


def may_belong_to_host(host: str, socket: ListeningSocket) -> bool:
    """Return whether *socket* may belong to a listener on *host*. A host name may have any address."""
    requested = host.strip("[]").lower()
    return _address(requested) is None or _overlap(requested, socket.address.strip("[]").lower())


def covers_all_addresses(host: str) -> bool:
    """Return whether a listener of Squid on *host* accepts connections to all addresses, IPv4 and IPv6, because *host*
    is empty or "[::]"."""
    return not host or _address(host.strip("[]")) == IPv6Address(0)


def _overlap(requested: str, bound: str) -> bool:
    """Return whether both hosts have a common address. *bound* is in the form of ss, without brackets."""
    if "%" not in requested:
        bound = bound.partition("%")[0]
    if requested == bound or bound == "*":
        return True
    # In the output of ss, "[::]" means only IPv6.
    if covers_all_addresses(requested):
        return True
    first, second = _address(requested), _address(bound)
    if first is None or second is None:
        # The addresses of a host name are known only when Squid binds it.
        return bound in ("0.0.0.0", "::")
    return first == second or (first.version == second.version and (first.is_unspecified or second.is_unspecified))


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
