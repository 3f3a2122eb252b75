# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the decoder of socket diagnostics: it agrees with a slow parser on real answers.

The decoder may omit damaged answers.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_common.netlink import attributes
from mptcp_throttler.kernel.sockets import diagnostics
from mptcp_throttler.kernel.sockets.diagnostics import SOCK_DIAG_BY_FAMILY, Decoder
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, TcpInfo, unmap

GOLDEN = Path(__file__).parents[1] / "golden" / "inet-diag.txt"
"""Answers of Linux 6.18: an MPTCP and a plain TCP socket, each for IPv4 and for IPv6."""
BODIES = [bytes.fromhex(line) for line in GOLDEN.read_text().split()]
SUBFLOW = BODIES[1]
NLMSG_DONE = 3
SEQUENCE = 7
"""Sequence number of the request, which the answers repeat."""
INFO, ULP_INFO, ULP_INFO_MPTCP = 2, 19, 3
"""Attributes of an answer: struct tcp_info, and a nest in which MPTCP has a nest (linux/inet_diag.h)."""
TOKEN, MAP_SEQUENCE, FLAGS, REMOTE_ID, LOCAL_ID = 2, 4, 8, 9, 10
"""Attributes of a subflow (linux/mptcp.h, MPTCP_SUBFLOW_ATTR_…)."""
FLAG_JOIN, FLAG_BACKUP_BY_CLIENT, FLAG_BACKUP_BY_PROXY = 0xC, 0x10, 0x20
READ = 12.5
"""Time at which the sockets were read, in monotonic seconds."""


def parse(body: bytes) -> KernelSubflow | None:
    """Return the subflow that an inet_diag_msg describes, attribute by attribute, or None for plain TCP."""
    if len(body) < 72:
        return None
    fields = dict(attributes(body, 72))
    mptcp = dict(attributes(dict(attributes(fields.get(ULP_INFO, b""))).get(ULP_INFO_MPTCP, b"")))
    if TOKEN not in mptcp:
        return None
    flags = int.from_bytes(mptcp.get(FLAGS, b""), "little")
    size = 16 if body[0] == 10 else 4
    local_port, remote_port, local, remote = struct.unpack_from("!HH16s16s", body, 4)
    info = fields[INFO]
    mss, unacked, sacked, rtt = (*struct.unpack_from("=I4xII", info, 16), struct.unpack_from("=I", info, 68)[0])
    pacing, max_pacing, acked, received = struct.unpack_from("=QQQQ", info, 104)
    return KernelSubflow(
        token=int.from_bytes(mptcp[TOKEN][:4], "little"),
        four_tuple=FourTuple(unmap(local[:size]), local_port, unmap(remote[:size]), remote_port),
        initial=not flags & FLAG_JOIN,
        local_id=mptcp[LOCAL_ID][0],
        remote_id=mptcp[REMOTE_ID][0],
        backup=bool(flags & FLAG_BACKUP_BY_CLIENT),
        read=READ,
        bytes_acked=acked,
        bytes_received=received,
        cookie=int.from_bytes(body[44:52], "little"),
        tcp=TcpInfo(
            rtt=rtt,
            mss=mss,
            unacked=unacked,
            not_sent=struct.unpack_from("=I", info, 144)[0],
            pacing_rate=pacing * 8,
            max_pacing_rate=None if max_pacing >= 0xFFFFFFFF else max_pacing * 8,
            delivery_rate=struct.unpack_from("=Q", info, 160)[0] * 8,
            receive_window_limited=struct.unpack_from("=Q", info, 176)[0],
            sacked=sacked,
            rtt_variance=struct.unpack_from("=I", info, 72)[0],
            retransmits=struct.unpack_from("=I", info, 100)[0],
            segments_out=struct.unpack_from("=I", info, 136)[0],
            lost=struct.unpack_from("=I", info, 32)[0],
            congestion_window=struct.unpack_from("=I", info, 80)[0],
        ),
        made_backup=bool(flags & FLAG_BACKUP_BY_PROXY),
        data_sequence=int.from_bytes(mptcp[MAP_SEQUENCE][:8], "little"),
    )


def message(body: bytes, sequence: int = SEQUENCE, kind: int = SOCK_DIAG_BY_FAMILY) -> bytes:
    header = struct.pack("=IHHII", 16 + len(body), kind, 2, sequence, 0)
    return header + body + bytes(-len(body) % 4)


def decode(decoder: Decoder, *bodies: bytes) -> list[KernelSubflow]:
    found: list[KernelSubflow] = []
    assert (
        decoder.decode(b"".join(message(body) for body in bodies), SEQUENCE, SOCK_DIAG_BY_FAMILY, found, READ) is None
    )
    return found


def parse_slowly(*bodies: bytes) -> list[KernelSubflow]:
    return [subflow for body in bodies if (subflow := parse(body)) is not None]


def parse_slowly_if_complete(body: bytes) -> list[KernelSubflow]:
    try:
        return parse_slowly(body)
    except (LookupError, struct.error):
        return []


def trained_decoder() -> Decoder:
    decoder = Decoder()
    decode(decoder, *BODIES)
    return decoder


def test_real_answers_are_decoded_correctly_with_the_learned_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder()
    assert decode(decoder, *BODIES) == parse_slowly(*BODIES)
    expected = parse_slowly(*BODIES)
    monkeypatch.setattr(diagnostics, "_layout", lambda *_: pytest.fail("a layout was learned again"))
    assert decode(decoder, *BODIES * 2) == expected * 2
    assert len(expected) == 2


def test_value_types_equal_those_of_the_slow_parser() -> None:
    for quick, slow in zip(decode(trained_decoder(), *BODIES), parse_slowly(*BODIES), strict=True):
        assert type(quick) is KernelSubflow
        assert [type(value) for value in quick] == [type(value) for value in slow]
        assert quick.tcp is not None
        assert slow.tcp is not None
        assert [type(value) for value in quick.tcp] == [type(value) for value in slow.tcp]


@given(st.sampled_from(BODIES), st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), max_size=4))
def test_damaged_answers_are_decoded_correctly_or_omitted(body: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(body)
    for position, value in changes:
        damaged[position % len(damaged)] = value
    for decoder in (trained_decoder(), Decoder()):
        # The second pass uses the layout that was learned from the damaged answer.
        for _ in range(2):
            assert decode(decoder, bytes(damaged)) in ([], parse_slowly_if_complete(bytes(damaged)))
        assert decode(decoder, *BODIES) == parse_slowly(*BODIES)


@given(st.sampled_from(BODIES), st.integers(0, 600))
def test_truncated_answers_are_omitted(body: bytes, length: int) -> None:
    cut = body[:length]
    decoder = trained_decoder()
    for _ in range(2):
        assert decode(decoder, cut, body)[-1:] == parse_slowly(body)
        assert decode(decoder, cut) in ([], parse_slowly(body))


@given(st.binary(max_size=300))
def test_random_bytes_are_ignored(body: bytes) -> None:
    assert decode(trained_decoder(), body) == []
    trained_decoder().decode(body, SEQUENCE, SOCK_DIAG_BY_FAMILY, [], READ)


def test_answers_to_another_request_are_omitted() -> None:
    found: list[KernelSubflow] = []
    data = message(SUBFLOW, SEQUENCE - 1) + message(SUBFLOW)
    assert trained_decoder().decode(data, SEQUENCE, SOCK_DIAG_BY_FAMILY, found, READ) is None
    assert found == parse_slowly(SUBFLOW)


def test_message_of_another_kind_is_returned() -> None:
    found: list[KernelSubflow] = []
    data = message(SUBFLOW) + message(b"\xfe\xff\xff\xff", kind=NLMSG_DONE)
    message_of_other_kind = trained_decoder().decode(data, SEQUENCE, SOCK_DIAG_BY_FAMILY, found, READ)
    assert message_of_other_kind == (NLMSG_DONE, b"\xfe\xff\xff\xff")
    assert len(found) == 1


def test_repeated_answers_share_their_four_tuple() -> None:
    first, second = decode(trained_decoder(), *BODIES)
    first_again, second_again = decode(trained_decoder(), *BODIES)
    assert first_again.four_tuple is first.four_tuple
    assert second_again.four_tuple is second.four_tuple
    assert diagnostics._four_tuple.cache_info().maxsize == diagnostics._MAX_CACHED_TUPLES


def test_cookie_with_other_ports_is_another_socket() -> None:
    decoder = trained_decoder()
    answer_of_other_ports = bytearray(SUBFLOW)
    answer_of_other_ports[4:8] = b"\x12\x34\x56\x78"
    (found,) = decode(decoder, bytes(answer_of_other_ports))
    assert (found.four_tuple.local_port, found.four_tuple.remote_port) == (0x1234, 0x5678)


def test_data_sequence_number_is_decoded() -> None:
    assert [each.data_sequence for each in decode(trained_decoder(), *BODIES)] == [
        0x7D7129CF7E81F098,
        0xB9AF0803C08A62C7,
    ]
