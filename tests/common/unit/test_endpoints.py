# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for parsing an address with its port: the usual notations are accepted, and all others are refused."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_common.endpoints import address_and_port

PORTS = st.integers(1, 65535)


@given(st.ip_addresses(), PORTS)
def test_formatted_address_and_port_are_parsed_to_the_same_values(
    address: IPv4Address | IPv6Address, port: int
) -> None:
    text = f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
    assert address_and_port(text, "x") == (str(address), port)


@pytest.mark.parametrize(
    "value",
    ["", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "::1:80", "[::1]", "localhost:80", "10.0.0.300:80",
     "10.0.0.1:80\n",
     "10.0.0.1:+8", "10.0.0.1:٣", "[fe80::1%lo]:80", 80, None, ["10.0.0.1:80"]],
)  # fmt: skip
def test_other_values_are_refused_with_examples(value: object) -> None:
    with pytest.raises(ValueError, match=r'is not an address and port; write "10\.0\.0\.1:80" or "\[::1\]:80"$'):
        address_and_port(value, "10.0.0.1:80", "[::1]:80")


@given(st.text(alphabet="[]:.%019af\n", max_size=40))
def test_arbitrary_text_is_refused_or_gives_a_valid_port(text: str) -> None:
    with suppress(ValueError):
        assert 0 < address_and_port(text, "x")[1] < 65536
