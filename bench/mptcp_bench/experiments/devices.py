# SPDX-License-Identifier: GPL-2.0-or-later
"""Ethernet and Wi-Fi in most experiments: interfaces, names in policies, and the payload of a packet."""

from __future__ import annotations

DEVICES = ("eth0", "wlan0")
"""The client's interfaces for Ethernet and Wi-Fi."""
POLICY_PATHS = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24, "fd77:1::/64"]}
  wifi: {clients: [10.77.2.0/24, "fd77:2::/64"]}
"""


def policy(rules: str) -> str:
    """Return a policy for both paths. *rules* is a YAML list."""
    return f"{POLICY_PATHS}rules: {rules}\n"


FRAME = 1514
"""Bytes of a full packet, as shapers count them: the MTU of 1500, and the Ethernet header."""
TCP_HEADER = 20 + 12
"""Bytes of a TCP header with timestamps (RFC 7323)."""
DSS_OPTION = 28
"""Bytes of a padded data sequence signal with 8-byte sequence numbers and without a checksum (RFC 8684, 3.3)."""
IP_HEADER = {4: 20, 6: 40}


def payload_share(family: int, *, multipath: bool) -> float:
    """Return the payload of a full packet, as a share of the bytes that the link counts."""
    headers = IP_HEADER[family] + TCP_HEADER + (DSS_OPTION if multipath else 0)
    return (1500 - headers) / FRAME
