"""One trial of a way: a connection to a parent by Multipath TCP, bound to the uplink, and reset as soon as it stands.

So it is four packets, and the kernel opens no further subflows for it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from itertools import islice
from typing import Final

from mptcp_common.reasons import reason
from mptcp_gateway.model import Access, Goal, Outcome, Verdict

MOST_GOALS: Final = 3
"""Addresses of parents that one trial asks, one after the other."""
LATE: Final = 2.5
"""Seconds: a SYN that is sent again after three is one of plain TCP, whatever the way carries."""
_IPPROTO_MPTCP, _SOL_MPTCP, _MPTCP_INFO, _FALLBACK = 262, 284, 1, 1
"""linux/mptcp.h: of struct mptcp_info bytes 8 to 11 are flags."""
_RESET: Final = struct.pack("ii", 1, 0)


def tried(access: Access, goals: Iterable[Goal], timeout: float, ports: set[int]) -> Outcome:
    """Try one address of a parent after the other until one answers; the best of what they said counts.

    It takes *timeout*, seconds, for each at most. In *ports* are local ports of trials while they go on.
    """
    reasons: list[str] = []
    answered: list[Outcome] = []
    for goal in islice((each for each in goals if each.address.version == access.address.version), MOST_GOALS):
        try:
            outcome = _connected(access, goal, timeout, ports)
        except ConnectionRefusedError:
            answered.append(Outcome(Verdict.GOOD, reason=f"{goal.address}: connection refused", unproven=True))
            continue
        except OSError as error:
            reasons.append(f"{goal.address}: {reason(error)}")
            continue
        if outcome.verdict is Verdict.GOOD:
            return outcome
        answered.append(outcome)
    if answered:
        return min(answered, key=lambda each: each.unproven)
    return Outcome(Verdict.DEAD, reason="; ".join(dict.fromkeys(reasons)))


def _connected(access: Access, goal: Goal, timeout: float, ports: set[int]) -> Outcome:
    """Raises OSError where there is no answer."""
    family = socket.AF_INET if access.address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM, _IPPROTO_MPTCP) as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, access.device.encode() + b"\0")
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        trying.bind((str(access.address), 0))
        trying.settimeout(timeout)
        port = trying.getsockname()[1]
        ports.add(port)
        begun = time.monotonic()
        try:
            trying.connect((str(goal.address), goal.port))
        finally:
            ports.discard(port)
        took = time.monotonic() - begun
        try:
            (flags,) = struct.unpack_from("=I", trying.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 16), 8)
        except OSError:  # EOPNOTSUPP: it has become a TCP socket
            flags = _FALLBACK
        if not flags & _FALLBACK:
            return Outcome(Verdict.GOOD, took, goal=goal)
        if took > LATE:
            return Outcome(
                Verdict.GOOD, took, f"{goal.address}: an answer after {took:.1f} s", unproven=True, goal=goal
            )
        return Outcome(Verdict.PLAIN, took, goal=goal)
