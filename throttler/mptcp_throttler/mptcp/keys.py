"""Derive tokens, initial data sequence numbers and join HMACs from the two keys of an MPTCP connection.

Sources: RFC 8684, 3.1 (token, IDSN) and 3.2 (HMACs). As in 3.2, host A sends the join (here always the client) and
host B answers. The order of keys and nonces differs between the two directions:

- SYN/ACK:   HMAC-B = HMAC(key = key-B ‖ key-A, message = nonce-B ‖ nonce-A), leftmost 64 bits;
- third ACK: HMAC-A = HMAC(key = key-A ‖ key-B, message = nonce-A ‖ nonce-B), leftmost 160 bits.
"""

from __future__ import annotations

import hmac
from hashlib import sha256


def token(key: bytes) -> int:
    """Return the token of the host that owns *key*: the leftmost 32 bits of the key's hash."""
    return int.from_bytes(sha256(key).digest()[:4], "big")


def initial_data_sequence(key: bytes) -> int:
    """Return the IDSN of the host that owns *key*: the rightmost 64 bits of the key's hash."""
    return int.from_bytes(sha256(key).digest()[-8:], "big")


def join_syn_ack_hmac(key_a: bytes, key_b: bytes, nonce_a: bytes, nonce_b: bytes) -> bytes:
    """Return the 8 octets that prove that the answering host B knows both keys."""
    return hmac.digest(key_b + key_a, nonce_b + nonce_a, "sha256")[:8]


def join_ack_hmac(key_a: bytes, key_b: bytes, nonce_a: bytes, nonce_b: bytes) -> bytes:
    """Return the 20 octets that prove that the joining host A knows both keys."""
    return hmac.digest(key_a + key_b, nonce_a + nonce_b, "sha256")[:20]
