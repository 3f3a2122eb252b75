"""Who listens on which port of this network namespace, as ``ss -Hltnp`` (ss(8)) tells it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

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

    def __str__(self) -> str:
        return f"{self.program or 'another process'}{f' (process {self.pids[0]})' if self.pids else ''}"


def read_listening(text: str) -> Iterator[Listening]:
    """Read what ``ss -Hltnp`` printed."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0] != "LISTEN":
            continue
        address, _, port = fields[3].rpartition(":")
        owners = list(_OWNER.finditer(line))
        if port.isdigit():
            program = owners[0]["program"] if owners else ""
            yield Listening(address, int(port), program, tuple(int(owner["pid"]) for owner in owners))


def listening_now() -> tuple[Listening, ...]:
    """Ask the kernel, by way of ss."""
    try:
        answer = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ()
    return tuple(read_listening(answer.stdout))


def taken_by(host: str, port: int, sockets: Iterable[Listening]) -> Listening | None:
    """Return a socket that keeps *host*:*port* from being bound; an empty host means all addresses."""
    wanted = host.strip("[]").lower()
    return next((s for s in sockets if s.port == port and _collide(wanted, s.address.strip("[]").lower())), None)


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
