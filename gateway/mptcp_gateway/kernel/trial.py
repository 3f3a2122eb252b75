# SPDX-License-Identifier: GPL-2.0-or-later
"""One trial of a way: a Multipath TCP connection to a parent, bound to the uplink, and reset when it is established.

A trial takes four packets, and the kernel opens no further subflows for it. A thorough trial also sends two full
segments, the beginning of a request, because some ways carry the handshake, but no full packets, or no Multipath TCP
options on data.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from mptcp_common.reasons import reason
from mptcp_gateway.connect import CHECK_NAME
from mptcp_gateway.model import STALLS, Access, Goal, Outcome, Verdict

MAX_GOALS: Final = 3
"""Maximum number of parents' addresses that one trial tries, one after the other."""
LATE: Final = 2.5
"""Seconds after which an answer does not show whether the way carries Multipath TCP, because the kernel sends the SYN
after three seconds as plain TCP."""
DATA_SECONDS: Final = 2.5
"""Maximum time until the data of a thorough trial must have arrived."""
_POLL_SECONDS: Final = 0.02
_DATA: Final = f"GET http://{CHECK_NAME}/ HTTP/1.1\r\nX-Trial: ".encode().ljust(2900, b"x")
_UNACKED, _PATH_MTU = 24, 60
"""Offsets in struct tcp_info (linux/tcp.h)."""
_IPPROTO_MPTCP, _SOL_MPTCP, _MPTCP_INFO, _FALLBACK = 262, 284, 1, 1
"""From linux/mptcp.h. Bytes 8 to 11 of struct mptcp_info are flags."""
_RESET: Final = struct.pack("ii", 1, 0)


def tried(access: Access, goals: Iterable[Goal], timeout: float, ports: set[int], *, thorough: bool = False) -> Outcome:
    """Try parents' addresses one after the other until one answers; return the best outcome.

    Each takes at most *timeout* seconds, and DATA_SECONDS more if *thorough*. *ports* has the local ports of running
    trials.
    """
    reasons: list[str] = []
    answered: list[Outcome] = []
    for goal in islice((each for each in goals if each.address.version == access.address.version), MAX_GOALS):
        try:
            outcome = _connected(access, goal, timeout, ports, thorough)
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


def _connected(access: Access, goal: Goal, timeout: float, ports: set[int], thorough: bool) -> Outcome:
    """Try one address of a parent; return the outcome. Raises OSError if there is no answer."""
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
        if _is_multipath(trying):
            remark = _with_data(trying, access.device) if thorough else ""
            if _is_multipath(trying):
                return Outcome(Verdict.GOOD, took, remark, goal=goal, thorough=thorough)
            return Outcome(Verdict.PLAIN, took, "a device on the path removes Multipath TCP from data", goal=goal)
        if took > LATE:
            return Outcome(Verdict.GOOD, took, f"{goal.address}: answered after {took:.1f} s", unproven=True, goal=goal)
        return Outcome(Verdict.PLAIN, took, goal=goal)


def _is_multipath(trying: socket.socket) -> bool:
    try:
        (flags,) = struct.unpack_from("=I", trying.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 16), 8)
    except OSError:  # EOPNOTSUPP: the socket fell back to TCP
        return False
    return not flags & _FALLBACK


def _with_data(trying: socket.socket, device: str) -> str:
    """Send two full segments; return a remark if they do not arrive as expected. Raises OSError."""
    trying.sendall(_DATA)
    until = time.monotonic() + DATA_SECONDS
    path_mtu, unacked = 0, 1
    # Read tcp_info of this subflow, because the kernel sends data that is not acknowledged on another subflow.
    while unacked:
        if time.monotonic() >= until:
            return STALLS
        time.sleep(_POLL_SECONDS)
        info = trying.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
        (unacked,), (path_mtu,) = (struct.unpack_from("=I", info, at) for at in (_UNACKED, _PATH_MTU))
    own = int(Path("/sys/class/net", device, "mtu").read_text(encoding="ascii"))
    return f"path MTU {path_mtu}, the interface's {own}" if path_mtu < own else ""
