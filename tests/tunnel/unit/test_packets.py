# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for UDP packets that carry messages: building and parsing them, compared with Scapy."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_tunnel.kernel.packets import packet_of, parse_packet
from mptcp_tunnel.model import End, Ends

PORTS = st.integers(1, 65535)
ENDS = st.one_of(
    st.builds(lambda a, b, p, q: Ends(End(a, p), End(b, q)), st.ip_addresses(v=4), st.ip_addresses(v=4), PORTS, PORTS),
    st.builds(lambda a, b, p, q: Ends(End(a, p), End(b, q)), st.ip_addresses(v=6), st.ip_addresses(v=6), PORTS, PORTS),
)


@given(ENDS, st.binary(min_size=1, max_size=200))
def test_built_packet_is_parsed_by_its_receiver(ends: Ends, payload: bytes) -> None:
    packet = bytearray(packet_of(ends, payload))
    if packet[0] >> 4 == 4:
        packet[2:4] = len(packet).to_bytes(2, "big")  # the kernel fills in this field
    received = parse_packet(bytes(packet))
    assert received is not None
    assert received.payload == payload
    assert received.ends == Ends(ends.remote, ends.local)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("size", [1, 76, 1401])
def test_checksum_agrees_with_scapy(version: int, size: int) -> None:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6

    addresses = ("192.0.2.1", "203.0.113.5") if version == 4 else ("2001:db8::1", "2001:db8::5")
    local, remote = (End(ip_address(each), 4000) for each in addresses)
    raw = packet_of(Ends(local, remote), bytes(range(256))[:size] * (1 + size // 256))
    found = (IP if version == 4 else IPv6)(raw)
    given_checksum = found[UDP].chksum
    del found[UDP].chksum
    computed = (IP if version == 4 else IPv6)(bytes(found))
    assert computed[UDP].chksum == given_checksum


def damaged_packets() -> Iterator[bytes]:
    """Yield packets with one changed byte in their headers, and packets that are truncated or too long."""
    for addresses in (("192.0.2.1", "203.0.113.5"), ("2001:db8::1", "2001:db8::5")):
        packet = bytearray(packet_of(Ends(*(End(ip_address(each), 4000) for each in addresses)), bytes(30)))
        if packet[0] >> 4 == 4:
            packet[2:4] = packet[4:6] = len(packet).to_bytes(2, "big")
            yield b"\x40" + bytes(packet[1:])  # a header length that is too short
        for offset in range(48):
            for value in (0, 1, 0x20, 0x41, 0x46, 0x50, 0x60, 0xFF):
                yield bytes(packet[:offset] + bytes([value]) + packet[offset + 1 :])
        yield from (bytes(packet[:size]) for size in range(len(packet)))
        yield bytes(packet) + b"more"


def test_damaged_packet_is_rejected_or_parsed_as_scapy_does() -> None:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6

    parsed_count = 0
    for data in damaged_packets():
        received = parse_packet(data)
        if received is None:
            continue
        is_ipv4 = data[0] >> 4 == 4
        found = (IP if is_ipv4 else IPv6)(data)
        header_bytes = 4 * found.ihl + 8 if is_ipv4 else 48
        assert data[0] >> 4 == (4 if is_ipv4 else 6)
        assert UDP in found
        assert found[UDP].len == 8 + len(received.payload) <= len(data) - header_bytes + 8
        assert data[header_bytes : header_bytes + len(received.payload)] == received.payload
        assert received.ends.remote == End(ip_address(found.src), found[UDP].sport)
        assert received.ends.local == End(ip_address(found.dst), found[UDP].dport)
        assert not is_ipv4 or (found.frag == 0 and "MF" not in found.flags)
        parsed_count += 1
    assert parsed_count > 400, "too few damaged packets were parsed"
