"""Hellos and probes: what both ends of a tunnel say to each other on each path. Pure.

A relay sends a probe on each path, the proxy answers each with one of the same size: nobody gets more than he sent.
Both have the same fields, so that each end learns of each direction. A message counts only with the right HMAC of the
relay's key, and only if its number is above all that came before on its path: then its sender's address is that of the
path. Times are nanoseconds of the sender's monotonic clock, which differ from the receiver's by the same on all paths.
"""

from __future__ import annotations

import enum
import hmac
import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from mptcp_tunnel.model import MAGIC

VERSION: Final = 1
IDENTIFIER_BYTES: Final = 8
LEAST_KEY_BYTES: Final = 16
_MAC_BYTES = 16
_FIELDS = struct.Struct(f"!BBBB{IDENTIFIER_BYTES}sQQQQQ")
SIZE: Final = _FIELDS.size + _MAC_BYTES
"""Bytes of a message that is not padded."""
LARGEST: Final = 1472
"""Bytes of one that is, to find how large a packet a path takes."""


class Kind(enum.IntEnum):
    PROBE = 1
    """A relay's."""
    ANSWER = 2
    """The proxy's."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``heard`` and ``heard_at`` are of the last message that its sender got on this path, 0 without."""

    kind: Kind
    path: int
    number: int
    """Rises with each message of its sender, over restarts as well."""
    sent: int
    heard: int
    """Its ``sent``."""
    heard_at: int
    """When it was received."""
    received_bytes: int
    """That the sender's joiner counted on this path."""


def identifier(key: bytes) -> bytes:
    """Return by what a relay is known on the wire: it does not tell the key."""
    return sha256(b"mptcp-tunnel identifier" + key).digest()[:IDENTIFIER_BYTES]


def packed(message: Message, key: bytes, size: int = SIZE) -> bytes:
    """Return the message as UDP payload of *size* bytes."""
    body = _FIELDS.pack(
        MAGIC,
        VERSION,
        message.kind,
        message.path,
        identifier(key),
        message.number,
        message.sent,
        message.heard,
        message.heard_at,
        message.received_bytes,
    ) + bytes(size - SIZE)
    return body + hmac.digest(key, body, "sha256")[:_MAC_BYTES]


def sender_of(payload: bytes) -> bytes | None:
    """Return the identifier that *payload* names, without believing it; None where it is no message of this version."""
    if not SIZE <= len(payload) <= LARGEST or payload[0] != MAGIC or payload[1] != VERSION:
        return None
    return payload[4 : 4 + IDENTIFIER_BYTES]


def parsed(payload: bytes, key: bytes) -> Message | None:
    """Return the message in *payload*, of which :func:`sender_of` is known; None where *key* did not make it."""
    body, mac = payload[:-_MAC_BYTES], payload[-_MAC_BYTES:]
    if not hmac.compare_digest(hmac.digest(key, body, "sha256")[:_MAC_BYTES], mac):
        return None
    _, _, kind, path, _, *numbers = _FIELDS.unpack_from(body)
    try:
        return Message(Kind(kind), path, *numbers)
    except ValueError:
        return None
