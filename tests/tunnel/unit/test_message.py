# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for probes and answers on the wire: only a message with the right key is accepted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mptcp_tunnel.message import MAX_SIZE, SIZE, VERSION, Key, Kind, Message, pack, parse, sender_of
from mptcp_tunnel.model import MAGIC

KEY, OTHER_KEY = Key(b"k" * 32), Key(b"o" * 32)
UINT64 = st.integers(0, 2**64 - 1)
MESSAGES = st.builds(
    Message,
    kind=st.sampled_from(Kind),
    path=st.integers(0, 255),
    sent=UINT64,
    token=UINT64,
    echoed_sent=UINT64,
    echoed_token=UINT64,
    echoed_received_at=UINT64,
    received_bytes=UINT64,
)


@given(MESSAGES, st.integers(SIZE, MAX_SIZE))
def test_packed_message_is_parsed_again(message: Message, size: int) -> None:
    payload = pack(message, KEY, size)
    assert len(payload) == size
    assert payload[0] == MAGIC
    assert sender_of(payload) == KEY.identifier
    assert parse(payload, KEY) == message
    assert parse(payload, OTHER_KEY) is None


@given(MESSAGES, st.data())
def test_message_with_a_changed_byte_is_rejected(message: Message, data: st.DataObject) -> None:
    payload = bytearray(pack(message, KEY))
    index = data.draw(st.integers(0, len(payload) - 1))
    payload[index] ^= data.draw(st.integers(1, 255))
    changed = bytes(payload)
    assert sender_of(changed) is None or parse(changed, KEY) is None


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Draw bytes that begin like a message, with or without the right authentication code."""
    begin = bytes([MAGIC, draw(st.sampled_from([VERSION, VERSION + 1])), draw(st.integers(0, 3))])
    size = draw(st.sampled_from([SIZE - 17, SIZE - 16, MAX_SIZE - 16, MAX_SIZE - 15]) | st.integers(0, 2 * SIZE))
    body = (begin + draw(st.binary()) + KEY.identifier * MAX_SIZE)[:size]
    return body + (KEY.code(body) if draw(st.booleans()) else b"")


@given(payloads())
def test_arbitrary_bytes_are_parsed_or_rejected(payload: bytes) -> None:
    """Bytes with the right code are a message, unless their kind is unknown. All other bytes are rejected."""
    sender = sender_of(payload)
    assert (sender is not None) == (SIZE <= len(payload) <= MAX_SIZE and payload[:2] == bytes([MAGIC, VERSION]))
    if sender is not None:
        message = parse(payload, KEY)
        has_right_code = payload[-16:] == KEY.code(payload[:-16])
        assert (message is not None) == (has_right_code and payload[2] in set(Kind))
        if message is not None:
            assert pack(message, KEY, len(payload))[:4] == payload[:4]


def test_message_does_not_contain_the_key() -> None:
    assert b"k" * 8 not in pack(Message(Kind.PROBE, 0, 1, 1, 0, 0, 0, 0), KEY)
    assert KEY.identifier != OTHER_KEY.identifier
