# SPDX-License-Identifier: GPL-2.0-or-later
"""Probes and answers: the messages between both ends of a tunnel on each path. Pure.

A relay sends a probe on each path. The proxy answers with a message of the same size, so that the proxy cannot be used
for an amplification attack. Both messages have the same fields, so that each end learns about both directions. A
message is accepted only if its authentication code is right (BLAKE2s, RFC 7693, keyed with the relay's key). The
receiver echoes the message's token and time in its next message. This proves that it receives packets at the address to
which the message was sent (``session.py``). Times are nanoseconds of the sender's monotonic clock; the offset to the
receiver's clock is the same on all paths.
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
MIN_KEY_BYTES: Final = 16
_MAC_BYTES = 16
_FIELDS = struct.Struct(f"!BBBB{IDENTIFIER_BYTES}sQQQQQQ")
SIZE: Final = _FIELDS.size + _MAC_BYTES
"""Bytes of an unpadded message."""
MAX_SIZE: Final = 1472
"""Maximum bytes of a padded message. With padded messages, the tunnel finds the largest packet that a path carries."""


class Kind(enum.IntEnum):
    PROBE = 1
    """From a relay."""
    ANSWER = 2
    """From the proxy."""


_KINDS: Final = {each.value: each for each in Kind}


class Message(NamedTuple):
    """One message. ``echoed_sent``, ``echoed_token`` and ``echoed_received_at`` describe the last message that the
    sender of this message received on this path."""

    kind: Kind
    path: int
    sent: int
    """When the message was sent."""
    token: int
    """Random number of 64 bits, which only the sender and a receiver of this message know."""
    echoed_sent: int
    """``sent`` of that message."""
    echoed_token: int
    echoed_received_at: int
    """When the sender of this message received that message."""
    received_bytes: int
    """Bytes received on this path, as counted by the joiner of the message's sender."""


class Key:
    """The secret that both ends of a tunnel share."""

    def __init__(self, secret: bytes) -> None:
        self.identifier = sha256(b"mptcp-tunnel identifier" + secret).digest()[:IDENTIFIER_BYTES]
        """Identifies the relay on the wire without revealing the secret."""
        self._key = sha256(b"mptcp-tunnel messages" + secret).digest()

    def code(self, body: bytes) -> bytes:
        """Return the authentication code of *body*."""
        return blake2s(body, key=self._key, digest_size=_MAC_BYTES).digest()


def pack(message: Message, key: Key, size: int = SIZE) -> bytes:
    """Return *message* as a UDP payload of *size* bytes, signed with *key*."""
    kind, path, *numbers = message
    body = _FIELDS.pack(MAGIC, VERSION, kind, path, key.identifier, *numbers) + bytes(size - SIZE)
    return body + key.code(body)


def sender_of(payload: bytes) -> bytes | None:
    """Return the sender's identifier in *payload*, unverified; None unless *payload* is a message of this version."""
    if not SIZE <= len(payload) <= MAX_SIZE or payload[0] != MAGIC or payload[1] != VERSION:
        return None
    return payload[4 : 4 + IDENTIFIER_BYTES]


def parse(payload: bytes, key: Key) -> Message | None:
    """Return the message in *payload*, which passed :func:`sender_of`; None if its code does not match *key*."""
    body = payload[:-_MAC_BYTES]
    if not hmac.compare_digest(key.code(body), payload[-_MAC_BYTES:]):
        return None
    _, _, kind, path, _, *numbers = _FIELDS.unpack_from(body)
    known_kind = _KINDS.get(kind)
    return None if known_kind is None else Message(known_kind, path, *numbers)
