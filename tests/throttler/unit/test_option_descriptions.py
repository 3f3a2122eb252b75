# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the text descriptions of MPTCP options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttler.mptcp.options import parse_options
from mptcp_throttler.replay.descriptions import describe_option

SYN, SYN_ACK, ACK = 0x02, 0x12, 0x10


@pytest.mark.parametrize(
    ("flags", "options", "description"),
    [
        (SYN, "1e04 01a1", "MP_CAPABLE version 1, with checksums, no join to this address"),
        (SYN_ACK, "1e0c 0101 1112131415161718", "MP_CAPABLE version 1, the sender's key"),
        (
            ACK,
            "1e16 0101 1112131415161718 2122232425262728 0001",
            "MP_CAPABLE version 1, both keys, 1 byte of data",
        ),
        (SYN, "1e0c 1107 01020304 a1a2a3a4", "MP_JOIN to connection 01020304, address id 7, backup"),
        (SYN_ACK, "1e10 1007 0001020304050607 a1a2a3a4", "MP_JOIN, address id 7, HMAC 0001020304050607"),
        (ACK, "1e14 2015 00000005 00000007 00000001 0004 beef", "DSS, 4 bytes from 7, acknowledges 5, DATA_FIN"),
        (ACK, "1e08 3103 c0000201", "ADD_ADDR id 3: 192.0.2.1, echo"),
        (ACK, "1e16 3103 fd77000000000000 0000000000000001 0c38", "ADD_ADDR id 3: [fd77::1]:3128, echo"),
        (ACK, "1e05 4001 02", "REMOVE_ADDR id 1, 2"),
        (ACK, "1e03 51 1e03 50", "MP_PRIO: backup; MP_PRIO: regular"),
        (ACK, "1e0c 6000 0000000000000009", "MP_FAIL: wrong checksum at 9"),
        (ACK, "1e0c 7000 1112131415161718", "MP_FASTCLOSE"),
        (ACK, "1e04 8106", "MP_TCPRST: middlebox interference, transient"),
        (ACK, "1e04 8009", "MP_TCPRST: reason 9"),
        (ACK, "1e04 f000", "MPTCP option of subtype 15, which no RFC defines"),
        (ACK, "1e04 1007", "invalid MPTCP option of subtype 1: length 4 is invalid for this subtype"),
        (ACK, "1e02", "invalid MPTCP option: no subtype"),
    ],
)
def test_option_is_described(flags: int, options: str, description: str) -> None:
    assert "; ".join(map(describe_option, parse_options(bytes.fromhex(options), flags))) == description


@given(st.binary(max_size=40), st.sampled_from([SYN, SYN_ACK, ACK]))
def test_any_bytes_are_described_without_an_exception(options: bytes, flags: int) -> None:
    assert all(map(describe_option, parse_options(options, flags)))
