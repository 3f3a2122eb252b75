# SPDX-License-Identifier: GPL-2.0-or-later
"""Counts this host's connections to given addresses over Multipath TCP and over plain TCP, from
``ss -Htnpi state established`` (ss(8)).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from . import ss

_ESTABLISHED = ("-Htnpi", "state", "established")
_SUBFLOW = re.compile(r"tcp-ulp-mptcp flags:(?P<flags>\w*) token:\w+\(id:\d+\)/(?P<token>\w+)\(id:\d+\)")
_NEGOTIATED = frozenset("MJ")
"""Flags of ss for a peer that has accepted MP_CAPABLE or MP_JOIN. Without either flag, it fell back to plain
TCP."""


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """Numbers of connections by protocol and subflows."""

    multiple_subflows: int = 0
    """Number of Multipath TCP connections with two or more subflows."""
    single_subflow: int = 0
    """Number of Multipath TCP connections with one subflow."""
    plain_tcp: int = 0

    @property
    def total(self) -> int:
        return self.multiple_subflows + self.single_subflow + self.plain_tcp


def read_counts(text: str, targets: Collection[str], program: str) -> ConnectionCounts:
    """Count the connections of *program* to *targets* (``parents.target``) in the output of ss."""
    plain_tcp, subflows = 0, Counter[int]()
    for line, token in _connections(text, targets):
        if token is not None:
            subflows[token] += 1
        elif f'("{program}",' in line or "users:" not in line:
            # Without CAP_SYS_PTRACE, ss does not show the owner.
            plain_tcp += 1
    multiple = sum(count > 1 for count in subflows.values())
    return ConnectionCounts(multiple, len(subflows) - multiple, plain_tcp)


def count_subflows(text: str, target: str, token: int) -> int:
    """Return how many subflows the connection with this host's *token* has to *target*, from the output of ss."""
    return sum(each == token for _, each in _connections(text, (target,)))


def _connections(text: str, targets: Collection[str]) -> Iterator[tuple[str, int | None]]:
    """Yield the line of ss for each TCP connection to *targets*, and the token of its MPTCP connection (None: plain
    TCP)."""
    for line in text.replace("\n\t", "\t").splitlines():
        fields = line.split()
        if len(fields) < 4 or _as_target(fields[3]) not in targets:
            continue
        found = _SUBFLOW.search(line)
        yield line, int(found["token"], 16) if found and _NEGOTIATED.intersection(found["flags"]) else None


def _as_target(text: str) -> str:
    """Return an address and port of ss as ``parents.target`` writes them: IPv4 if mapped, and without a zone (%)."""
    mapped = re.fullmatch(r"\[::ffff:([\d.]+)\](:\d+)", text)
    return f"{mapped[1]}{mapped[2]}" if mapped else re.sub(r"%[^\]:]+", "", text)


def counts_now(targets: Collection[str], program: str = "squid") -> ConnectionCounts:
    """Count the current connections of *program* to *targets*; all counts are 0 if ss fails."""
    return read_counts(ss.output(*_ESTABLISHED) or "", targets, program)


def count_subflows_now(target: str, token: int) -> int | None:
    """Return how many subflows the connection with *token* currently has to *target*; None if ss fails."""
    text = ss.output(*_ESTABLISHED)
    return None if text is None else count_subflows(text, target, token)
