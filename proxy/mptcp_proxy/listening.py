"""Who listens on which port of this network namespace, and by which protocol, as ``ss -Hltnpi`` (ss(8)) says.

The kernel's socket diagnostics (sock_diag(7)) name a socket by its inode; ss looks in /proc for the process that has
it.
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
class Listening:
    """One listening TCP or MPTCP socket."""

    address: str
    """As ss prints it: ``*`` for all addresses, IPv4 and IPv6."""
    port: int
    program: str
    """Empty where this process may not know."""
    pids: tuple[int, ...]
    mptcp: bool = False
    """Whether it takes Multipath TCP; clients that ask for it get plain TCP otherwise."""

    def __str__(self) -> str:
        return f"{self.program or 'another process'}{f' (process {self.pids[0]})' if self.pids else ''}"


def read_listening(text: str) -> Iterator[Listening]:
    """Read what ``ss -Hltnpi`` printed: for each socket a line, and one that begins with blanks of its inner state."""
    for line in text.replace("\n\t", "\t").splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0] != "LISTEN":
            continue
        address, _, port = fields[3].rpartition(":")
        owners = list(_OWNER.finditer(line))
        if port.isdigit():
            program = owners[0]["program"] if owners else ""
            yield Listening(address, int(port), program, tuple(int(owner["pid"]) for owner in owners), _MPTCP in line)


def listening_now() -> tuple[Listening, ...]:
    """Ask the kernel, by way of ss; nothing where it does not answer."""
    return tuple(read_listening(ss.printed("-Hltnpi") or ""))


def listening_if_known() -> tuple[Listening, ...] | None:
    """Ask as ``listening_now``; None where ss does not answer, which does not mean that nobody listens."""
    text = ss.printed("-Hltnpi")
    return None if text is None else tuple(read_listening(text))


def identities(ports: Collection[int]) -> tuple[str, ...] | None:
    """Return what tells the sockets that listen on *ports* from all others, ever; None where ss does not answer.

    The kernel is asked for listening sockets alone, and nothing is looked for in /proc: with 20,000 sockets of one
    process that looking took 1.5 to 2.4 s on a busy machine, and this 0.06 to 0.08, of which 0.03 to start a program.
    """
    text = ss.printed("-HOltne")
    return None if text is None else tuple(sorted(read_identities(text, ports)))


def read_identities(text: str, ports: Collection[int]) -> Iterator[str]:
    """Read what ``ss -HOltne`` printed: of each socket its address, and the number that it has as long as it lives."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0] != "LISTEN":
            continue
        port = fields[3].rpartition(":")[2]
        if port.isdigit() and int(port) in ports:
            yield " ".join((fields[3], *(field for field in fields[4:] if field.startswith(("ino:", "sk:")))))


def taken_by(host: str, port: int, sockets: Iterable[Listening]) -> Listening | None:
    """Return a socket that keeps *host*:*port* from being bound; an empty host means all addresses."""
    wanted = host.strip("[]").lower()
    return next((s for s in sockets if s.port == port and _collide(wanted, s.address.strip("[]").lower())), None)


def may_be(host: str, socket: Listening) -> bool:
    """Whether who listens on *host* may have *socket*. A name may stand for any address."""
    wanted = host.strip("[]").lower()
    return _address(wanted) is None or _collide(wanted, socket.address.strip("[]").lower())


def is_everywhere(host: str) -> bool:
    """Whether Squid opens *host* for all addresses, IPv4 and IPv6: it does so where there is none, and for "[::]"."""
    return not host or _address(host.strip("[]")) == IPv6Address(0)


def _collide(wanted: str, bound: str) -> bool:
    """Whether both addresses have one in common. *bound* is one of ss's, without brackets."""
    if "%" not in wanted:
        bound = bound.partition("%")[0]
    if wanted == bound or bound == "*":
        return True
    # What ss prints as "[::]" is IPv6 alone.
    if is_everywhere(wanted):
        return True
    ours, theirs = _address(wanted), _address(bound)
    if ours is None or theirs is None:
        # A name: which addresses it stands for is seen only when it is bound.
        return bound in ("0.0.0.0", "::")
    return ours == theirs or (ours.version == theirs.version and (ours.is_unspecified or theirs.is_unspecified))


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
