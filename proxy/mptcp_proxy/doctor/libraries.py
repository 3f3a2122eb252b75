# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks shared libraries that the throttler loads."""

from __future__ import annotations

from collections.abc import Callable

from mptcp_common.findings import Finding, fail, ok, warn
from mptcp_common.throttler_needs import NFTABLES, PCAP, first, lack_of_nftables, lack_of_pcap


def pcap(loads: Callable[[str], bool]) -> Finding:
    if lack := lack_of_pcap(loads):
        return fail("libpcap", *lack)
    return ok("libpcap", f"{first(PCAP, loads)} loads")


def nftables(loads: Callable[[str], bool]) -> Finding:
    if lack := lack_of_nftables(loads):
        return warn("libnftables", *lack)
    return ok("libnftables", f"{first(NFTABLES, loads)} loads")
