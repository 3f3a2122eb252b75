# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that tokens, sequence numbers and HMACs computed from keys equal those of a connection of Linux 6.18."""

from __future__ import annotations

from mptcp_capture import IPV4_FIRST_DATA, IPV4_HMACS, IPV4_KEYS, IPV4_NONCES, IPV4_TOKEN
from mptcp_dialogue import join_syn_ack_hmac

from mptcp_throttler.mptcp.options import initial_data_sequence, join_ack_hmac, token_of_key


def test_token_and_hmacs_of_a_real_join() -> None:
    client, proxy = IPV4_KEYS
    assert token_of_key(proxy) == IPV4_TOKEN
    assert join_syn_ack_hmac(client, proxy, *IPV4_NONCES) == IPV4_HMACS[0]
    assert join_ack_hmac(client, proxy, *IPV4_NONCES) == IPV4_HMACS[1]


def test_order_of_keys_and_nonces_matters() -> None:
    client, proxy = IPV4_KEYS
    client_nonce, proxy_nonce = IPV4_NONCES
    assert join_ack_hmac(proxy, client, client_nonce, proxy_nonce) != IPV4_HMACS[1]
    assert join_ack_hmac(client, proxy, proxy_nonce, client_nonce) != IPV4_HMACS[1]


def test_initial_data_sequence_number_of_a_real_connection() -> None:
    for key, first in zip(IPV4_KEYS, IPV4_FIRST_DATA, strict=True):
        assert initial_data_sequence(key) == first - 1
