# SPDX-License-Identifier: GPL-2.0-or-later
"""Counts this host's connections to given addresses by Multipath TCP and by plain TCP, from
``ss -Htnpi state established`` (ss(8)).

ss shows a socket's process, and the kernel's state of Multipath TCP.
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
"""Flags of ss that show that the peer has agreed to MP_CAPABLE or MP_JOIN. If both are missing, the connection fell
back to plain TCP."""


@dataclass(frozen=True, slots=True)
class Towards:
    """Counts of connections."""

    several: int = 0
    """Number of Multipath TCP connections with two or more subflows."""
    one: int = 0
    """Number of Multipath TCP connections with one subflow."""
    plain: int = 0

    @property
    def all(self) -> int:
        return self.several + self.one + self.plain


def read_towards(text: str, goals: Collection[str], program: str) -> Towards:
    """Count the connections of *program* to *goals* (``parents.goal``) in the output of ss."""
    plain, subflows = 0, Counter[int]()
    for line, token in _connections(text, goals):
        if token is not None:
            subflows[token] += 1
        elif f'("{program}",' in line or "users:" not in line:
            # Seeing the owner takes CAP_SYS_PTRACE; a joined subflow never has one.
            plain += 1
    several = sum(count > 1 for count in subflows.values())
    return Towards(several, len(subflows) - several, plain)


def read_subflows(text: str, goal: str, token: int) -> int:
    """Return the number of subflows to *goal* of the connection with this host's *token*, from the output of ss."""
    return sum(each == token for _, each in _connections(text, (goal,)))


def _connections(text: str, goals: Collection[str]) -> Iterator[tuple[str, int | None]]:
    """Yield each TCP connection to *goals* as ss printed it, with the token of its MPTCP connection; the token is None
    for plain TCP."""
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
    """Count the current connections, from ss."""
    return read_towards(ss.printed(*_ESTABLISHED) or "", goals, program)


def subflows_now(goal: str, token: int) -> int | None:
    """Return as ``read_subflows`` for the current subflows; None if ss fails."""
    text = ss.printed(*_ESTABLISHED)
    return None if text is None else read_subflows(text, goal, token)
