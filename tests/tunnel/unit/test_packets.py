"""Messages as packets, against Scapy's reading of them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_tunnel.kernel.packets import packet_of, parsed_packet
from mptcp_tunnel.model import End, Ends

PORTS = st.integers(1, 65535)
ENDS = st.one_of(
    st.builds(lambda a, b, p, q: Ends(End(a, p), End(b, q)), st.ip_addresses(v=4), st.ip_addresses(v=4), PORTS, PORTS),
    st.builds(lambda a, b, p, q: Ends(End(a, p), End(b, q)), st.ip_addresses(v=6), st.ip_addresses(v=6), PORTS, PORTS),
)


@given(ENDS, st.binary(min_size=1, max_size=200))
def test_a_packet_is_what_its_receiver_reads(ends: Ends, payload: bytes) -> None:
    packet = bytearray(packet_of(ends, payload))
    if packet[0] >> 4 == 4:
        packet[2:4] = len(packet).to_bytes(2, "big")  # as the kernel fills it in
    received = parsed_packet(bytes(packet))
    assert received is not None
    assert received.payload == payload
    assert received.ends == Ends(ends.remote, ends.local)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("size", [1, 76, 1401])
def test_scapy_finds_the_checksum_right(version: int, size: int) -> None:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6

    addresses = ("192.0.2.1", "203.0.113.5") if version == 4 else ("2001:db8::1", "2001:db8::5")
    local, remote = (End(ip_address(each), 4000) for each in addresses)
    raw = packet_of(Ends(local, remote), bytes(range(256))[:size] * (1 + size // 256))
    found = (IP if version == 4 else IPv6)(raw)
    given_checksum = found[UDP].chksum
    del found[UDP].chksum
    again = (IP if version == 4 else IPv6)(bytes(found))
    assert again[UDP].chksum == given_checksum


@given(st.binary(max_size=120))
def test_any_bytes_are_read(data: bytes) -> None:
    parsed_packet(data)
