# SPDX-License-Identifier: GPL-2.0-or-later
"""Probes and answers: the messages between both ends of a tunnel on each path. Pure.

A relay sends a probe on each path. The proxy answers with a message of the same size, so that it amplifies nothing.
Both have the same fields, so that each end learns about both directions. A message counts only with the right code (a
keyed BLAKE2s, RFC 7693) of the relay's key. Its receiver repeats the message's token with its time, which proves that
the receiver is at the address to which it was sent (``session.py``). Times are nanoseconds of the sender's monotonic
clock; the offset to the receiver's is the same on all paths.
"""

from __future__ import annotations

import enum
import hmac
import struct
from hashlib import blake2s, sha256
from typing import Final, NamedTuple

from mptcp_tunnel.model import MAGIC

VERSION: Final = 2
IDENTIFIER_BYTES: Final = 8
LEAST_KEY_BYTES: Final = 16
_MAC_BYTES = 16
_FIELDS = struct.Struct(f"!BBBB{IDENTIFIER_BYTES}sQQQQQQ")
SIZE: Final = _FIELDS.size + _MAC_BYTES
"""Bytes of an unpadded message."""
LARGEST: Final = 1472
"""Bytes of the largest padded message, to find the path's largest packet."""


class Kind(enum.IntEnum):
    PROBE = 1
    """From a relay."""
    ANSWER = 2
    """From the proxy."""


_KINDS: Final = {each.value: each for each in Kind}


class Message(NamedTuple):
    """One message. ``heard``, ``heard_token`` and ``heard_at`` describe the last message that its sender received on
    this path."""

    kind: Kind
    path: int
    sent: int
    token: int
    """Token of 64 bits, which only a receiver of this message knows."""
    heard: int
    """``sent`` of the last received message."""
    heard_token: int
    heard_at: int
    """When that message was received."""
    received_bytes: int
    """Bytes that the sender's joiner has counted on this path."""


class Key:
    """The secret that both ends of a tunnel share."""

    def __init__(self, secret: bytes) -> None:
        self.identifier = sha256(b"mptcp-tunnel identifier" + secret).digest()[:IDENTIFIER_BYTES]
        """Identifies the relay on the wire without revealing the secret."""
        self._key = sha256(b"mptcp-tunnel messages" + secret).digest()

    def code(self, body: bytes) -> bytes:
        """Return the authentication code of *body*."""
        return blake2s(body, key=self._key, digest_size=_MAC_BYTES).digest()


def packed(message: Message, key: Key, size: int = SIZE) -> bytes:
    """Return the message as UDP payload of *size* bytes."""
    kind, path, *numbers = message
    body = _FIELDS.pack(MAGIC, VERSION, kind, path, key.identifier, *numbers) + bytes(size - SIZE)
    return body + key.code(body)


def sender_of(payload: bytes) -> bytes | None:
    """Return the unverified identifier in *payload*; None if it is no message of this version."""
    if not SIZE <= len(payload) <= LARGEST or payload[0] != MAGIC or payload[1] != VERSION:
        return None
    return payload[4 : 4 + IDENTIFIER_BYTES]


def parsed(payload: bytes, key: Key) -> Message | None:
    """Return the message in *payload*, which passed :func:`sender_of`; None if *key* did not make it."""
    body = payload[:-_MAC_BYTES]
    if not hmac.compare_digest(key.code(body), payload[-_MAC_BYTES:]):
        return None
    _, _, kind, path, _, *numbers = _FIELDS.unpack_from(body)
    known = _KINDS.get(kind)
    return None if known is None else Message(known, path, *numbers)
