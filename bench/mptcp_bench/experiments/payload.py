# SPDX-License-Identifier: GPL-2.0-or-later
"""The payload's share of a full packet, by the headers of IP, TCP and MPTCP. Pure."""

from __future__ import annotations

FRAME = 1514
"""Bytes of a full packet as the shapers count it: an MTU of 1500 and the Ethernet header."""
TCP_HEADER = 20 + 12
"""Bytes of a TCP header with timestamps (RFC 7323)."""
DSS_OPTION = 28
"""Bytes of a data sequence signal with 8-byte sequence numbers and without a checksum (RFC 8684, 3.3), padded."""
IP_HEADER = {4: 20, 6: 40}


def payload_share(family: int, *, multipath: bool) -> float:
    """Return the payload of a full packet, as a share of the bytes that the link counts."""
    headers = IP_HEADER[family] + TCP_HEADER + (DSS_OPTION if multipath else 0)
    return (1500 - headers) / FRAME
