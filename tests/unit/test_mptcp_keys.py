"""Keys to tokens, sequence numbers and HMACs, against what real stacks sent.

Version 1: a connection of Linux 6.18 (mptcp_capture). Version 0: the multipath-tcp.org kernel's connection in
tcpdump's sample capture mptcp-v0.pcap, numbers as tcpdump prints them.
"""

from __future__ import annotations

import pytest
from mptcp_capture import IPV4_FIRST_DATA, IPV4_HMACS, IPV4_KEYS, IPV4_NONCES, IPV4_TOKEN

from mptcp_throttler.mptcp import keys

V0_KEYS = bytes.fromhex("9c9eabd1e46a33b2"), bytes.fromhex("967d2770b6960552")
V0_NONCES = bytes.fromhex("1b665a18"), bytes.fromhex("33abe9d5")
V0_HMACS = bytes.fromhex("5ab680c7884af03d"), bytes.fromhex("cb7b87f5e5f0502f43b535fb70ef6607df2e6c7a")
V0_TOKEN = 0xE47F0142
V0_FIRST_DATA_LOW = 3576348362, 3518592144
"""Its DSS options carry the low 32 bits."""


@pytest.mark.parametrize(
    ("version", "pair", "nonces", "hmacs", "token"),
    [(1, IPV4_KEYS, IPV4_NONCES, IPV4_HMACS, IPV4_TOKEN), (0, V0_KEYS, V0_NONCES, V0_HMACS, V0_TOKEN)],
    ids=["v1", "v0"],
)
def test_a_real_join(
    version: int, pair: tuple[bytes, bytes], nonces: tuple[bytes, bytes], hmacs: tuple[bytes, bytes], token: int
) -> None:
    client, proxy = pair
    assert keys.token(proxy, version) == token
    assert keys.join_syn_ack_hmac(client, proxy, *nonces, version=version) == hmacs[0]
    assert keys.join_ack_hmac(client, proxy, *nonces, version=version) == hmacs[1]


def test_order_and_version_matter() -> None:
    client, proxy = IPV4_KEYS
    one, other = IPV4_NONCES
    assert keys.join_ack_hmac(proxy, client, one, other, version=1) != IPV4_HMACS[1]
    assert keys.join_ack_hmac(client, proxy, other, one, version=1) != IPV4_HMACS[1]
    assert keys.join_ack_hmac(client, proxy, one, other, version=0) != IPV4_HMACS[1]


def test_initial_data_sequence_number() -> None:
    for key, first in zip(IPV4_KEYS, IPV4_FIRST_DATA, strict=True):
        assert keys.initial_data_sequence(key, 1) == first - 1
    for key, low in zip(V0_KEYS, V0_FIRST_DATA_LOW, strict=True):
        assert keys.initial_data_sequence(key, 0) & 0xFFFFFFFF == low - 1
