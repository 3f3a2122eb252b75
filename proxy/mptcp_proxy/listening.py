"""Who listens on which port of this network namespace, and by which protocol, as ``ss -Hltnpi`` (ss(8)) says.

The kernel's socket diagnostics (sock_diag(7)) name a socket by its inode; ss looks in /proc for the process that has
it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

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
    """Ask the kernel, by way of ss."""
    try:
        answer = subprocess.run(["ss", "-Hltnpi"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ()
    return tuple(read_listening(answer.stdout))


def taken_by(host: str, port: int, sockets: Iterable[Listening]) -> Listening | None:
    """Return a socket that keeps *host*:*port* from being bound; an empty host means all addresses."""
    wanted = host.strip("[]").lower()
    return next((s for s in sockets if s.port == port and _collide(wanted, s.address.strip("[]").lower())), None)


def plain_ports(
    ports: Iterable[int], own: Collection[int], sockets: Iterable[Listening]
) -> tuple[list[int], list[int]]:
    """Return those of *ports* on which processes *own* listen by plain TCP, and those on which they do not listen.

    Whose a socket is takes CAP_SYS_PTRACE to know, which the unit does not give. Nobody else's was there before Squid
    was started; so one of nobody known is ours.
    """
    ours = [socket for socket in sockets if not socket.pids or any(pid in own for pid in socket.pids)]
    there = {socket.port for socket in ours}
    plain = {socket.port for socket in ours if not socket.mptcp}
    return [port for port in ports if port in plain], [port for port in ports if port not in there]


def _collide(wanted: str, bound: str) -> bool:
    """Whether both addresses have one in common. *bound* is one of ss's, without brackets."""
    if "%" not in wanted:
        bound = bound.partition("%")[0]
    if wanted == bound or bound == "*":
        return True
    # Squid takes "[::]" for all addresses, IPv4 and IPv6; what ss prints so is IPv6 alone.
    if wanted in ("", "::"):
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
