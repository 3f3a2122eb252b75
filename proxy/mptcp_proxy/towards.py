"""How this host's connections to some addresses are carried, as ``ss -Htnpi state established`` (ss(8)) says.

By ss, as in ``listening``: it knows the process that has a socket, and reads what the kernel says of Multipath TCP.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from . import ss

_ESTABLISHED = ("-Htnpi", "state", "established")
_SUBFLOW = re.compile(r"tcp-ulp-mptcp flags:(?P<flags>\w*) token:\w+\(id:\d+\)/(?P<token>\w+)\(id:\d+\)")
_AGREED = frozenset("MJ")
"""The other end has taken part: MP_CAPABLE, MP_JOIN. Without either it is a connection that became plain TCP."""


@dataclass(frozen=True, slots=True)
class Towards:
    """Counts of connections."""

    several: int = 0
    """By Multipath TCP, of two subflows or more."""
    one: int = 0
    """By Multipath TCP, of one subflow."""
    plain: int = 0

    @property
    def all(self) -> int:
        return self.several + self.one + self.plain


def read_towards(text: str, goals: Collection[str], program: str) -> Towards:
    """Count the connections of *program* to *goals* (``parents.goal``) in what ss printed."""
    plain, subflows = 0, Counter[int]()
    for line, token in _connections(text, goals):
        if token is not None:
            subflows[token] += 1
        elif f'("{program}",' in line or "users:" not in line:
            # Whose it is takes CAP_SYS_PTRACE to know; a subflow that was joined is nobody's anyhow.
            plain += 1
    several = sum(count > 1 for count in subflows.values())
    return Towards(several, len(subflows) - several, plain)


def read_subflows(text: str, goal: str, token: int) -> int:
    """Return how many subflows to *goal* the connection with this *token* of ours has in what ss printed."""
    return sum(each == token for _, each in _connections(text, (goal,)))


def _connections(text: str, goals: Collection[str]) -> Iterator[tuple[str, int | None]]:
    """Yield each TCP connection to *goals* as ss printed it, and the token that it is a subflow of; None: plain TCP."""
    for line in text.replace("\n\t", "\t").splitlines():
        fields = line.split()
        if len(fields) < 4 or _remote(fields[3]) not in goals:
            continue
        found = _SUBFLOW.search(line)
        yield line, int(found["token"], 16) if found and _AGREED.intersection(found["flags"]) else None


def _remote(text: str) -> str:
    mapped = re.fullmatch(r"\[::ffff:([\d.]+)\](:\d+)", text)
    return f"{mapped[1]}{mapped[2]}" if mapped else re.sub(r"%[^\]:]+", "", text)


def towards_now(goals: Collection[str], program: str = "squid") -> Towards:
    """Ask the kernel, by way of ss."""
    return read_towards(ss.printed(*_ESTABLISHED) or "", goals, program)


def subflows_now(goal: str, token: int) -> int | None:
    """Ask the kernel as ``read_subflows``, by way of ss; None where it does not answer."""
    text = ss.printed(*_ESTABLISHED)
    return None if text is None else read_subflows(text, goal, token)
