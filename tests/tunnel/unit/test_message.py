"""Hellos and probes on the wire: only the right key makes one that counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mptcp_tunnel.message import LARGEST, SIZE, Kind, Message, identifier, packed, parsed, sender_of
from mptcp_tunnel.model import MAGIC

KEY, OTHER = b"k" * 32, b"o" * 32
_64 = st.integers(0, 2**64 - 1)
MESSAGES = st.builds(
    Message,
    kind=st.sampled_from(Kind),
    path=st.integers(0, 255),
    number=_64,
    sent=_64,
    heard=_64,
    heard_at=_64,
    received_bytes=_64,
)


@given(MESSAGES, st.integers(SIZE, LARGEST))
def test_what_is_packed_is_parsed(message: Message, size: int) -> None:
    payload = packed(message, KEY, size)
    assert len(payload) == size
    assert payload[0] == MAGIC
    assert sender_of(payload) == identifier(KEY)
    assert parsed(payload, KEY) == message
    assert parsed(payload, OTHER) is None


@given(MESSAGES, st.data())
def test_a_changed_byte_makes_it_nobodys(message: Message, data: st.DataObject) -> None:
    payload = bytearray(packed(message, KEY))
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] ^= data.draw(st.integers(1, 255))
    changed = bytes(payload)
    assert sender_of(changed) is None or parsed(changed, KEY) is None


@given(st.binary(max_size=2 * SIZE))
def test_any_bytes_are_read(payload: bytes) -> None:
    if sender_of(payload) is not None:
        assert parsed(payload, KEY) is None


def test_the_identifier_does_not_tell_the_key() -> None:
    assert KEY not in packed(Message(Kind.PROBE, 0, 1, 1, 0, 0, 0), KEY)
    assert identifier(KEY) != identifier(OTHER)
