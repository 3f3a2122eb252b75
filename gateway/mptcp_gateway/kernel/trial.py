# SPDX-License-Identifier: GPL-2.0-or-later
"""One trial of a way: it opens a Multipath TCP connection from the uplink to a parent, and then resets it.

A trial takes four packets, and the kernel opens no further subflows for it. A thorough trial also sends two full
segments, the beginning of a request, because some ways carry the handshake, but no full-sized packets, or no Multipath
TCP options on data.
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
from mptcp_gateway.model import STALLS, Access, Outcome, ParentAddress, Verdict

MAX_TARGETS: Final = 3
"""Maximum number of parents' addresses that one trial tries, one after the other."""
LATE_SECONDS: Final = 2.5
"""Seconds after which an answer does not show whether the way carries Multipath TCP, because after three seconds the
kernel sends the SYN again as plain TCP."""
DATA_SECONDS: Final = 2.5
"""Maximum time until the data of a thorough trial must have arrived."""
_POLL_SECONDS: Final = 0.02
_DATA: Final = f"GET http://{CHECK_NAME}/ HTTP/1.1\r\nX-Trial: ".encode().ljust(2900, b"x")
_UNACKED, _PATH_MTU = 24, 60
"""Offsets in struct tcp_info (linux/tcp.h)."""
_IPPROTO_MPTCP, _SOL_MPTCP, _MPTCP_INFO, _FALLBACK = 262, 284, 1, 1
"""From linux/mptcp.h. Bytes 8 to 11 of struct mptcp_info are flags."""
_RESET: Final = struct.pack("ii", 1, 0)


def run_trial(
    access: Access, targets: Iterable[ParentAddress], timeout: float, ports: set[int], *, thorough: bool = False
) -> Outcome:
    """Try parents' addresses one after the other until one answers; return the best outcome.

    Each address takes at most *timeout* seconds, and DATA_SECONDS more if *thorough*. *ports*: the set with the local
    ports of running trials.
    """
    reasons: list[str] = []
    answers: list[Outcome] = []
    for target in islice((each for each in targets if each.address.version == access.address.version), MAX_TARGETS):
        try:
            outcome = _try_address(access, target, timeout, ports, thorough)
        except ConnectionRefusedError:
            answers.append(Outcome(Verdict.GOOD, reason=f"{target.address}: connection refused", unproven=True))
            continue
        except OSError as error:
            reasons.append(f"{target.address}: {reason(error)}")
            continue
        if outcome.verdict is Verdict.GOOD:
            return outcome
        answers.append(outcome)
    if answers:
        return min(answers, key=lambda each: each.unproven)
    return Outcome(Verdict.DEAD, reason="; ".join(dict.fromkeys(reasons)))


def _try_address(access: Access, target: ParentAddress, timeout: float, ports: set[int], thorough: bool) -> Outcome:
    """Try one address of a parent; return the outcome. Raises OSError if there is no answer."""
    family = socket.AF_INET if access.address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM, _IPPROTO_MPTCP) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, access.device.encode() + b"\0")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.bind((str(access.address), 0))
        connection.settimeout(timeout)
        port = connection.getsockname()[1]
        ports.add(port)
        start = time.monotonic()
        try:
            connection.connect((str(target.address), target.port))
        finally:
            ports.discard(port)
        seconds = time.monotonic() - start
        if _is_multipath(connection):
            remark = _send_data(connection, access.device) if thorough else ""
            if _is_multipath(connection):
                return Outcome(Verdict.GOOD, seconds, remark, target=target, thorough=thorough)
            return Outcome(
                Verdict.PLAIN, seconds, "a device on the path removes Multipath TCP from data", target=target
            )
        if seconds > LATE_SECONDS:
            return Outcome(
                Verdict.GOOD, seconds, f"{target.address}: answered after {seconds:.1f} s", unproven=True, target=target
            )
        return Outcome(Verdict.PLAIN, seconds, target=target)


def _is_multipath(connection: socket.socket) -> bool:
    try:
        (flags,) = struct.unpack_from("=I", connection.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 16), 8)
    except OSError:  # EOPNOTSUPP: the socket fell back to TCP
        return False
    return not flags & _FALLBACK


def _send_data(connection: socket.socket, device: str) -> str:
    """Send two full segments; return a remark if they do not arrive as expected. Raises OSError."""
    connection.sendall(_DATA)
    deadline = time.monotonic() + DATA_SECONDS
    path_mtu, unacked = 0, 1
    # Read tcp_info of this subflow, because the kernel may send unacknowledged data again on another subflow.
    while unacked:
        if time.monotonic() >= deadline:
            return STALLS
        time.sleep(_POLL_SECONDS)
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
        (unacked,), (path_mtu,) = (struct.unpack_from("=I", info, offset) for offset in (_UNACKED, _PATH_MTU))
    interface_mtu = int(Path("/sys/class/net", device, "mtu").read_text(encoding="ascii"))
    return f"path MTU {path_mtu}, interface MTU {interface_mtu}" if path_mtu < interface_mtu else ""
