"""The quick reader of socket diagnostics says what the slow one says, on real answers and on spoiled ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttler.kernel.sockets import inet_diag
from mptcp_throttler.kernel.sockets.inet_diag import SOCK_DIAG_BY_FAMILY, Decoder, parse
from mptcp_throttler.mptcp.model import KernelSubflow

GOLDEN = Path(__file__).parents[1] / "golden" / "inet-diag.txt"
"""Answers of Linux 6.18: an MPTCP and a plain socket of a listener for IPv4, and of one for IPv6."""
BODIES = [bytes.fromhex(line) for line in GOLDEN.read_text().split()]
SUBFLOW = BODIES[1]
SEQUENCE = 7
READ = 12.5
"""When, monotonic seconds."""


def message(body: bytes, sequence: int = SEQUENCE, kind: int = SOCK_DIAG_BY_FAMILY) -> bytes:
    header = struct.pack("=IHHII", 16 + len(body), kind, 2, sequence, 0)
    return header + body + bytes(-len(body) % 4)


def decode(decoder: Decoder, *bodies: bytes) -> list[KernelSubflow]:
    found: list[KernelSubflow] = []
    assert (
        decoder.decode(b"".join(message(body) for body in bodies), SEQUENCE, SOCK_DIAG_BY_FAMILY, found, READ) is None
    )
    return found


def slowly(*bodies: bytes) -> list[KernelSubflow]:
    return [subflow for body in bodies if (subflow := parse(body, READ)) is not None]


def learned() -> Decoder:
    decoder = Decoder()
    decode(decoder, *BODIES)
    return decoder


def test_real_answers_are_read_alike_and_by_their_layout_from_the_second_on(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder()
    assert decode(decoder, *BODIES) == slowly(*BODIES)
    expected = slowly(*BODIES)
    monkeypatch.setattr(inet_diag, "parse", lambda _: pytest.fail("read slowly"))
    assert decode(decoder, *BODIES * 2) == expected * 2
    assert len(expected) == 2


def test_the_kinds_of_what_is_read_are_alike() -> None:
    for quick, slow in zip(decode(learned(), *BODIES), slowly(*BODIES), strict=True):
        assert type(quick) is KernelSubflow
        assert [type(value) for value in quick] == [type(value) for value in slow]
        assert quick.tcp is not None
        assert slow.tcp is not None
        assert [type(value) for value in quick.tcp] == [type(value) for value in slow.tcp]


@given(st.sampled_from(BODIES), st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), max_size=4))
def test_spoiled_answers_are_read_alike(body: bytes, changes: list[tuple[int, int]]) -> None:
    spoiled = bytearray(body)
    for place, value in changes:
        spoiled[place % len(spoiled)] = value
    for decoder in (learned(), Decoder()):
        # The second time by what was learned of the spoiled one.
        for _ in range(2):
            assert decode(decoder, bytes(spoiled)) == slowly(bytes(spoiled))
        assert decode(decoder, *BODIES) == slowly(*BODIES)


@given(st.sampled_from(BODIES), st.integers(0, 600))
def test_answers_cut_short_are_read_alike(body: bytes, length: int) -> None:
    cut = body[:length]
    decoder = learned()
    for _ in range(2):
        assert decode(decoder, cut, body) == slowly(cut, body)


@given(st.binary(max_size=300))
def test_anything_else_is_read_without_harm(body: bytes) -> None:
    assert decode(learned(), body) == slowly(body)
    learned().decode(body, SEQUENCE, SOCK_DIAG_BY_FAMILY, [], READ)


def test_answers_to_another_question_are_left_out() -> None:
    found: list[KernelSubflow] = []
    data = message(SUBFLOW, SEQUENCE - 1) + message(SUBFLOW)
    assert learned().decode(data, SEQUENCE, SOCK_DIAG_BY_FAMILY, found, READ) is None
    assert found == slowly(SUBFLOW)


def test_what_is_no_answer_is_handed_back() -> None:
    found: list[KernelSubflow] = []
    data = message(SUBFLOW) + message(b"\xfe\xff\xff\xff", kind=3)
    other = learned().decode(data, SEQUENCE, SOCK_DIAG_BY_FAMILY, found, READ)
    assert other == (3, 2, b"\xfe\xff\xff\xff")
    assert len(found) == 1


def test_a_sweep_keeps_the_four_tuples_of_what_is_there_and_forgets_the_rest() -> None:
    decoder = learned()
    first, second = decode(decoder, *BODIES)
    decoder.begin_sweep()
    (again,) = decode(decoder, SUBFLOW)
    decoder.end_sweep()
    assert again.four_tuple is first.four_tuple
    one, other = decode(decoder, *BODIES)
    assert one.four_tuple is first.four_tuple
    assert other.four_tuple is not second.four_tuple
    assert other.four_tuple == second.four_tuple


def test_a_cookie_with_other_ports_is_another_socket() -> None:
    decoder = learned()
    moved = bytearray(SUBFLOW)
    moved[4:8] = b"\x12\x34\x56\x78"
    (found,) = decode(decoder, bytes(moved))
    assert (found.four_tuple.local_port, found.four_tuple.remote_port) == (0x1234, 0x5678)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inet_diag, "_MAX_KNOWN", 8)
    decoder = learned()
    body = bytearray(SUBFLOW)
    for cookie in range(100):
        body[44:52] = struct.pack("=Q", cookie)
        decode(decoder, bytes(body))
    assert len(decoder._known) <= 8
    assert len(decoder._seen) <= 9


def test_four_tuples_share_our_end() -> None:
    body = next(each for each in BODIES if parse(each, READ) is not None)
    other = bytearray(body)
    other[6] ^= 1  # the client's port
    other[44] ^= 1  # the cookie
    first, second = (each.four_tuple for each in decode(learned(), body, bytes(other)))
    assert first != second
    assert first.local is second.local
    assert first.local_port is second.local_port


def test_the_data_sequence_number_is_read() -> None:
    assert [each.data_sequence for each in decode(learned(), *BODIES)] == [0x7D7129CF7E81F098, 0xB9AF0803C08A62C7]
