# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds paths that silently drop full-sized packets (path-MTU black holes, RFC 2923, 2.1) from current subflows.

On such a path the handshake and short packets pass, but the first full-sized packet does not, and the kernel
retransmits it again and again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mptcp_common.findings import Finding, ok, unseen, warn
from mptcp_common.units import counted

from .kernel import lasting_sysctl

SYSCTL = "net.ipv4.tcp_mtu_probing"
SS_ARGUMENTS = ("-Htin", "state", "established")
_CHECK = "path-MTU black holes"
_BASE_MSS = 1024
"""net.ipv4.tcp_base_mss, the segment size with which probing starts. Probing would not help subflows with smaller
segments."""
_STUCK_TIMEOUTS = 3
"""Number of consecutive timeouts after which a subflow counts as stuck."""
_MIN_SEGMENTS = 10
"""Number of acknowledged full-sized segments after which a path counts as working."""
_FIELD = re.compile(r"\b(mss|backoff|unacked|bytes_acked):(\d+)")
_TOKEN = re.compile(r"tcp-ulp-mptcp flags:\w* token:\w+\(id:\d+\)/(\w+)\(")


@dataclass(frozen=True, slots=True)
class Subflow:
    """A subflow in the output of ss."""

    remote: str
    token: str
    """Token of the connection; empty if ss does not show it."""
    mss: int
    backoff: int
    unacked: int
    acked: int
    """Total number of acknowledged bytes."""


def read_subflows(text: str, ports: Collection[int]) -> Iterator[Subflow]:
    """Parse the output of ss for connections at *ports* of this host."""
    for line in text.replace("\n\t", "\t").splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[2].rpartition(":")[2] not in set(map(str, ports)):
            continue
        values_by_name = {name: int(value) for name, value in _FIELD.findall(line)}
        token = _TOKEN.search(line)
        remote = fields[3].rpartition(":")[0].strip("[]").removeprefix("::ffff:")
        values = (values_by_name.get(name, 0) for name in ("mss", "backoff", "unacked", "bytes_acked"))
        yield Subflow(remote, token[1] if token else "", *values)


def black_holes(probing: str | None, text: str | None, ports: Collection[int], root: bool) -> Iterator[Finding]:
    """Check for black holes. *probing*: value of SYSCTL. *text*: output of ss; None if ss fails. *ports*: the
    proxy's ports."""
    if probing not in (None, "0"):
        yield ok(_CHECK, f"the kernel finds the packet size that each path carries ({SYSCTL} is {probing})")
        return
    if text is None:
        return
    subflows = list(read_subflows(text, ports))
    if subflows and not root and not any(each.token for each in subflows):
        # Older kernels show the token only with CAP_NET_ADMIN.
        yield unseen(_CHECK, "which subflows belong to one connection")
        return
    stuck = _stuck(subflows)
    if not stuck:
        yield ok(_CHECK, "no subflow is stuck at its first full-sized packet now")
        return
    addresses = sorted({each.remote for each in stuck})
    address_list = ", ".join(addresses[:3]) + (" and others" if len(addresses) > 3 else "")
    yield warn(
        _CHECK,
        f"{counted(len(stuck), 'subflow')} to {address_list} never carried a full-sized packet, but another subflow of"
        " the same connection did",
        "the path drops large packets without an error message, or it failed just after the subflow had joined; the"
        " subflow repeats one packet for minutes",
        lasting_sysctl(SYSCTL, "1"),
    )


def _stuck(subflows: Collection[Subflow]) -> list[Subflow]:
    """Return the subflows that time out at their first full-sized segment while another subflow of their connection
    carries data. Subflows to a client address that acknowledged full-sized segments on any connection are left out,
    because the path to it carries such segments."""
    by_connection = defaultdict(list)
    for each in subflows:
        by_connection[each.token].append(each)
    working = {each.remote for each in subflows if each.acked >= _MIN_SEGMENTS * each.mss}
    return [
        each
        for token, siblings in by_connection.items()
        if token and any(other.acked >= _MIN_SEGMENTS * other.mss for other in siblings)
        for each in siblings
        if each.unacked
        and each.backoff >= _STUCK_TIMEOUTS
        and each.acked < each.mss
        and each.mss > _BASE_MSS
        and each.remote not in working
    ]
