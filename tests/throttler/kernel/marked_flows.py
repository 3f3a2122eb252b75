# SPDX-License-Identifier: GPL-2.0-or-later
"""Subflows and their targets (class and mark) that the tests of the Netfilter backends write into the kernel."""

from __future__ import annotations

from ipaddress import ip_address

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import Ownership, Target

OWNERSHIP = Ownership(listen_ports=(3128, 3129))
TARGET, OTHER_TARGET = Target(minor=0x10, mark=0x10000), Target(minor=0xFFEF, mark=0xFF0000)


def four_tuple(number: int, is_ipv6: bool = False, port: int = 3128) -> FourTuple:
    local, base = ("fd77:8::2", "fd77:1::1:0") if is_ipv6 else ("10.77.8.2", "10.77.0.0")
    remote = ip_address(int(ip_address(base)) + number)
    return FourTuple(ip_address(local).packed, port, remote.packed, 40000 + number % 1000)


ENTRIES = {
    four_tuple(1): TARGET,
    four_tuple(1, port=3129): OTHER_TARGET,
    four_tuple(2, is_ipv6=True): OTHER_TARGET,
}
