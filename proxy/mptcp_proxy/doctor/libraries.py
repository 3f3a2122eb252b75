# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks shared libraries that the throttler loads."""

from __future__ import annotations

from collections.abc import Callable

from mptcp_common.findings import Finding, fail, ok, warn
from mptcp_common.throttler_needs import NFTABLES, PCAP, first_loadable, missing_nftables, missing_pcap


def pcap(loads: Callable[[str], bool]) -> Finding:
    if problem := missing_pcap(loads):
        return fail("libpcap", *problem)
    return ok("libpcap", f"{first_loadable(PCAP, loads)} loads")


def nftables(loads: Callable[[str], bool]) -> Finding:
    if problem := missing_nftables(loads):
        return warn("libnftables", *problem)
    return ok("libnftables", f"{first_loadable(NFTABLES, loads)} loads")
