"""One trial of a way: a connection to a parent by Multipath TCP, bound to the uplink, and reset as soon as it stands.

So it is four packets, and the kernel opens no further subflows for it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from typing import Final

from mptcp_common.reasons import reason
from mptcp_gateway.model import Access, Outcome, Verdict

TIMEOUT: Final = 1.5
"""Of one connection: the kernel sends a SYN again after a second."""
_IPPROTO_MPTCP, _SOL_MPTCP, _MPTCP_INFO, _FALLBACK = 262, 284, 1, 1
"""linux/mptcp.h: of struct mptcp_info bytes 8 to 11 are flags."""
_RESET: Final = struct.pack("ii", 1, 0)


def tried(access: Access, parents: Iterable[tuple[str, int]]) -> Outcome:
    """Try one parent after the other until one answers; the best of what they said counts. Takes seconds."""
    reasons: list[str] = []
    plain: Outcome | None = None
    for host, port in parents:
        for address in _addresses(host, port, access, reasons):
            try:
                outcome = _connected(access, address)
            except OSError as error:
                reasons.append(f"{host}:{port}: {reason(error)}")
                continue
            if outcome.verdict is Verdict.GOOD:
                return outcome
            plain = outcome
    if plain is not None:
        return plain
    if not reasons:
        return Outcome(Verdict.UNTRIED, reason=f"no parent has an address of IPv{access.address.version}")
    return Outcome(Verdict.DEAD, reason="; ".join(dict.fromkeys(reasons)))


def _addresses(host: str, port: int, access: Access, reasons: list[str]) -> list[tuple[str, int]]:
    family = socket.AF_INET if access.address.version == 4 else socket.AF_INET6
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno not in (socket.EAI_NODATA, socket.EAI_ADDRFAMILY, socket.EAI_NONAME):
            reasons.append(f"{host}: {error.strerror}")
        return []
    return list(dict.fromkeys((str(each[4][0]), port) for each in found))


def _connected(access: Access, to: tuple[str, int]) -> Outcome:
    """Raises OSError where there is no answer."""
    family = socket.AF_INET if access.address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM, _IPPROTO_MPTCP) as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, access.device.encode() + b"\0")
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        trying.bind((str(access.address), 0))
        trying.settimeout(TIMEOUT)
        begun = time.monotonic()
        trying.connect(to)
        took = time.monotonic() - begun
        try:
            (flags,) = struct.unpack_from("=I", trying.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 16), 8)
        except OSError:  # EOPNOTSUPP: it has become a TCP socket
            return Outcome(Verdict.PLAIN, took)
        return Outcome(Verdict.PLAIN if flags & _FALLBACK else Verdict.GOOD, took)
