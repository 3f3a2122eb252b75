"""Who listens on which port of this network namespace, as ``ss -Hltnp`` (ss(8)) tells it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
    wanted = host.strip("[]")
    everything = ("*", "0.0.0.0", "[::]")
    for socket in sockets:
        same = socket.address.strip("[]") == wanted
        if socket.port == port and (not wanted or same or socket.address in everything):
            return socket
    return None
