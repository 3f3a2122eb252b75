# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for parsing options: every form of RFC 8684 and RFC 6824, and malformed options."""

from __future__ import annotations

from itertools import product

import pytest

from mptcp_throttler.mptcp.options import (
    AddAddr,
    Dss,
    Malformed,
    MpCapable,
    MpFail,
    MpFastclose,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MpPrio,
    MptcpOption,
    MpTcprst,
    RemoveAddr,
    UnknownSubtype,
    parse_option,
    parse_options,
)

SYN, SYN_ACK, ACK, RST = 0x02, 0x12, 0x10, 0x14
KEY_A, KEY_B = bytes.fromhex("1112131415161718"), bytes.fromhex("2122232425262728")
HMAC_20 = bytes(range(20))

FORMS: list[tuple[str, int, str, MptcpOption]] = [
    ("MP_CAPABLE v1 SYN", SYN, "1e04 0181", MpCapable(1, 0x81)),
    ("MP_CAPABLE v1 SYN/ACK", SYN_ACK, f"1e0c 0101 {KEY_B.hex()}", MpCapable(1, 1, KEY_B)),
    ("MP_CAPABLE v1 ACK", ACK, f"1e14 0101 {KEY_A.hex()} {KEY_B.hex()}", MpCapable(1, 1, KEY_A, KEY_B)),
    ("MP_CAPABLE v1 data", ACK, f"1e16 0101 {KEY_A.hex()} {KEY_B.hex()} 0102", MpCapable(1, 1, KEY_A, KEY_B, 0x102)),
    (
        "MP_CAPABLE v1 data, checksum",
        ACK,
        f"1e18 0181 {KEY_A.hex()} {KEY_B.hex()} 0102 beef",
        MpCapable(1, 0x81, KEY_A, KEY_B, 0x102),
    ),
    ("MP_CAPABLE v0 SYN", SYN, f"1e0c 0001 {KEY_A.hex()}", MpCapable(0, 1)),
    ("MP_CAPABLE v0 SYN/ACK", SYN_ACK, f"1e0c 0001 {KEY_B.hex()}", MpCapable(0, 1)),
    ("MP_CAPABLE v0 ACK", ACK, f"1e14 0001 {KEY_A.hex()} {KEY_B.hex()}", MpCapable(0, 1)),
    ("MP_CAPABLE v2 SYN, of an unknown form", SYN, "1e06 0201 aaaa", MpCapable(2, 1)),
    ("MP_JOIN SYN", SYN, "1e0c 1007 01020304 a1a2a3a4", MpJoinSyn(False, 7, 0x01020304, bytes.fromhex("a1a2a3a4"))),
    ("MP_JOIN SYN, backup", SYN, "1e0c 1107 01020304 a1a2a3a4", MpJoinSyn(True, 7, 0x01020304, b"\xa1\xa2\xa3\xa4")),
    (
        "MP_JOIN SYN/ACK",
        SYN_ACK,
        f"1e10 1109 {HMAC_20[:8].hex()} b1b2b3b4",
        MpJoinSynAck(True, 9, HMAC_20[:8], bytes.fromhex("b1b2b3b4")),
    ),
    ("MP_JOIN ACK", ACK, f"1e18 1000 {HMAC_20.hex()}", MpJoinAck(HMAC_20)),
    ("DSS, empty", ACK, "1e04 2000", Dss(False, None, None, 0, None, None)),
    ("DSS, ack 4", ACK, "1e08 2001 00000005", Dss(False, 5, None, 0, None, None)),
    ("DSS, ack 8", ACK, "1e0c 2003 0000000000000005", Dss(False, 5, None, 0, None, None)),
    ("DSS, map 4", ACK, "1e0e 2004 00000007 00000001 0010", Dss(False, None, 7, 4, 1, 16)),
    (
        "DSS, all 8, checksum, DATA_FIN",
        ACK,
        "1e1c 201f 0000000000000005 0000000000000007 00000001 0010 beef",
        Dss(True, 5, 7, 8, 1, 16),
    ),
    (
        "ADD_ADDR v4",
        ACK,
        "1e10 3003 c0000201 0102030405060708",
        AddAddr(False, 3, bytes([192, 0, 2, 1]), None),
    ),
    (
        "ADD_ADDR v4, port",
        ACK,
        "1e12 3003 c0000201 0c38 0102030405060708",
        AddAddr(False, 3, bytes([192, 0, 2, 1]), 3128),
    ),
    ("ADD_ADDR v4, echo", ACK, "1e08 3103 c0000201", AddAddr(True, 3, bytes([192, 0, 2, 1]), None)),
    ("ADD_ADDR v4, port, echo", ACK, "1e0a 3103 c0000201 0c38", AddAddr(True, 3, bytes([192, 0, 2, 1]), 3128)),
    (
        "ADD_ADDR v6",
        ACK,
        f"1e1c 3003 {bytes(16).hex()} {bytes(8).hex()}",
        AddAddr(False, 3, bytes(16), None),
    ),
    (
        "ADD_ADDR v6, port",
        ACK,
        f"1e1e 3003 {bytes(16).hex()} 0c38 {bytes(8).hex()}",
        AddAddr(False, 3, bytes(16), 3128),
    ),
    ("ADD_ADDR v6, echo", ACK, f"1e14 3103 {bytes(16).hex()}", AddAddr(True, 3, bytes(16), None)),
    ("ADD_ADDR v6, port, echo", ACK, f"1e16 3103 {bytes(16).hex()} 0c38", AddAddr(True, 3, bytes(16), 3128)),
    ("REMOVE_ADDR", ACK, "1e04 4005", RemoveAddr((5,))),
    ("REMOVE_ADDR, three", ACK, "1e06 4005 0607", RemoveAddr((5, 6, 7))),
    ("MP_PRIO", ACK, "1e03 51", MpPrio(True)),
    ("MP_FAIL", ACK, "1e0c 6000 0000000000000009", MpFail(9)),
    ("MP_FASTCLOSE", ACK, f"1e0c 7000 {KEY_B.hex()}", MpFastclose(KEY_B)),
    ("MP_TCPRST", RST, "1e04 8105", MpTcprst(1, 5)),
    ("subtype for private use", ACK, "1e05 f0aabb", UnknownSubtype(15, bytes.fromhex("f0aabb"))),
    ("unassigned subtype", ACK, "1e03 90", UnknownSubtype(9, b"\x90")),
]


@pytest.mark.parametrize(("flags", "text", "value"), [row[1:] for row in FORMS], ids=[row[0] for row in FORMS])
def test_option_form_is_parsed(flags: int, text: str, value: MptcpOption) -> None:
    assert parse_options(bytes.fromhex(text), flags) == (value,)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (SYN, "1e02"),
        (SYN, "1e03 01"),
        (SYN, f"1e0c 0101 {KEY_A.hex()}"),
        (SYN_ACK, "1e04 0101"),
        (ACK, "1e04 0101"),
        (SYN, f"1e14 0101 {KEY_A.hex()} {KEY_B.hex()}"),
        (SYN_ACK, "1e0c 1007 01020304 a1a2a3a4"),
        (SYN, f"1e18 1000 {HMAC_20.hex()}"),
        (ACK, "1e0c 1007 01020304 a1a2a3a4"),
        (ACK, "1e03 20"),
        (ACK, "1e08 2003 00000005"),
        (ACK, "1e0d 2004 00000007 00000001 00"),
        (ACK, "1e08 3003 c0000201"),
        (ACK, f"1e10 3103 c0000201 {bytes(8).hex()}"),
        (ACK, "1e08 3803 c0000201"),
        (ACK, "1e08 3403 c0000201"),
        (ACK, "1e04 5004"),
        (ACK, "1e03 40"),
        (ACK, "1e05 500102"),
        (ACK, "1e04 6000"),
        (ACK, "1e0b 7000 00000000000000"),
        (RST, "1e03 81"),
    ],
)
def test_option_with_an_invalid_length_is_malformed(flags: int, text: str) -> None:
    (option,) = parse_options(bytes.fromhex(text), flags)
    assert isinstance(option, Malformed)
    assert option.data == bytes.fromhex(text)


def test_mptcp_options_are_found_among_others() -> None:
    linux_syn = "020405b4 0402 080a2eae5a4500000000 01 03030a 1e040101"
    assert parse_options(bytes.fromhex(linux_syn), SYN) == (MpCapable(1, 1),)
    two_options = "01 01 080a0000000000000000 1e0351 1e044005 00"
    assert parse_options(bytes.fromhex(two_options), ACK) == (MpPrio(True), RemoveAddr((5,)))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("00 1e0351", 0),
        ("0200 1e0351", 0),
        ("0201 1e0351", 0),
        ("02ff 1e0351", 0),
        ("1e0351 02", 1),
        ("01 01 01", 0),
    ],
)
def test_parsing_stops_at_the_end_or_at_a_broken_option(text: str, count: int) -> None:
    assert len(parse_options(bytes.fromhex(text), ACK)) == count


@pytest.mark.parametrize("text", ["1e", "1e00", "1e01", "1eff", "01 1e0c 0101"])
def test_option_that_is_longer_than_the_header_is_malformed(text: str) -> None:
    (option,) = parse_options(bytes.fromhex(text), SYN)
    assert isinstance(option, Malformed)
    assert option.subtype is None


def test_every_subtype_and_length_returns_an_option() -> None:
    for first, length, flags in product(range(256), range(3, 41), (SYN, SYN_ACK, ACK, RST)):
        option = bytes([30, length, first]) + bytes(length - 3)
        (value,) = parse_options(option, flags)
        if first >> 4 > 8:
            assert isinstance(value, UnknownSubtype)
        assert value == parse_option(option, flags)


def allowed_lengths(subtype: int, first: int, second: int, flags: int) -> set[int]:
    """Return the allowed lengths of an option according to RFC 8684 (section 3) and, for older forms, RFC 6824.

    *first* is the byte with the subtype, and *second* the next byte.
    """
    syn, ack = bool(flags & SYN), bool(flags & ACK)
    match subtype:
        case 0 if first & 15 != 1:
            return set(range(4, 41))
        case 0:
            return {4} if syn and not ack else {12} if syn else {20, 22, 24}
        case 1:
            return {16} if syn and ack else {12} if syn else {24}
        case 2:
            size = 4 + (8 if second & 2 else 4) * (second & 1)
            if second & 4:
                size += (8 if second & 8 else 4) + 6
                return {size, size + 2}
            return {size}
        case 3:
            return set(range(8, 31))  # FORMS has the lengths that version and echo flag require.
        case 4:
            return set(range(4, 41))
        case 5:
            return {3}
        case 6 | 7:
            return {12}
        case 8:
            return {4}
        case _:
            return set(range(3, 41))


def test_every_invalid_length_of_each_subtype_is_malformed() -> None:
    """An option that is too short or too long is malformed, independent of its flags and other bits."""
    refused = parsed = 0
    second_bytes = 0, 1, 3, 5, 7, 15, 16, 31, 0x81, 0xFF
    firsts = ((first, second) for first in range(256) for second in (second_bytes if first >> 4 == 2 else (0, 0xFF)))
    for (first, second), flags in product(firsts, (SYN, SYN_ACK, ACK, RST)):
        subtype = first >> 4
        valid_lengths = allowed_lengths(subtype, first, second, flags)
        for length in range(3, 41):
            option = (bytes([30, length, first, second]) + bytes(40))[:length]
            (value,) = parse_options(option, flags)
            if length not in valid_lengths:
                assert isinstance(value, Malformed), (option.hex(), flags)
                assert (value.subtype, value.data) == (subtype, option)
                refused += 1
            elif subtype not in (2, 3):
                assert not isinstance(value, Malformed), (option.hex(), flags)
                parsed += 1
    assert min(refused, parsed) > 10_000


def test_header_full_of_options_is_parsed() -> None:
    """Thirteen options fit. Bytes after the end or after a broken option are ignored."""
    assert parse_options(b"\x1e\x03\x51" * 13 + b"\x00", ACK) == (MpPrio(True),) * 13
    assert len(parse_options(b"\x1e\x02" * 20, ACK)) == 20
    assert len(parse_options(b"\x1e\x00" * 20, ACK)) == 1


def test_keys_do_not_appear_in_logs() -> None:
    for flags, text, value in (row[1:] for row in FORMS):
        texts = repr(value) + str(value) + repr(parse_options(bytes.fromhex(text)[:-1], flags))
        for key in (KEY_A, KEY_B):
            assert key.hex() not in texts
            assert repr(key)[2:-1] not in texts
            assert str(int.from_bytes(key, "big")) not in texts
