# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the Scapy layers: options.py reads what the layers build, and the layers rebuild what they dissect."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import mptcp_layers as layers
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from mptcp_capture import IPV4, IPV6
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from mptcp_throttler.mptcp import options
from mptcp_throttler.mptcp.segment import RAW_IP, parse_frame

SYN, SYN_ACK, ACK = 0x02, 0x12, 0x10
octet, short = st.integers(0, 2**8 - 1), st.integers(0, 2**16 - 1)
word, long = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
bit = st.integers(0, 1)
address = st.ip_addresses().map(str)


def built(layer: type[Packet], **fields: st.SearchStrategy[Any] | Any) -> st.SearchStrategy[Packet]:
    return st.fixed_dictionaries(
        {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fields.items()}
    ).map(lambda values: layer(**values))


def capable(version: int, *keys: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Packet]:
    return built(layers.MpCapable, version=version, flags=octet, **dict.fromkeys(keys, long), **more)


def prio(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[Packet]:
    return built(layers.MpPrio, backup=bit, **more)


BUILT: st.SearchStrategy[tuple[Packet, int]] = st.one_of(
    st.tuples(capable(1), st.just(SYN)),
    st.tuples(capable(1, "sender_key"), st.just(SYN_ACK)),
    st.tuples(capable(0, "sender_key"), st.sampled_from((SYN, SYN_ACK))),
    st.tuples(capable(0, "sender_key", "receiver_key"), st.just(ACK)),
    st.tuples(capable(1, "sender_key", "receiver_key"), st.just(ACK)),
    st.tuples(capable(1, "sender_key", "receiver_key", data_length=short), st.just(ACK)),
    st.tuples(capable(1, "sender_key", "receiver_key", data_length=short, checksum=short), st.just(ACK)),
    st.tuples(built(layers.MpJoinSyn, backup=bit, address_id=octet, token=word, nonce=word), st.just(SYN)),
    st.tuples(built(layers.MpJoinSynAck, backup=bit, address_id=octet, hmac=long, nonce=word), st.just(SYN_ACK)),
    st.tuples(built(layers.MpJoinAck, hmac=st.binary(min_size=20, max_size=20)), st.just(ACK)),
    st.tuples(
        built(
            layers.Dss,
            flags=st.integers(0, 31),
            data_ack=word,
            data_sequence=word,
            subflow_sequence=word,
            data_length=short,
            checksum=short | st.none(),
        ),
        st.just(ACK),
    ),
    st.tuples(
        built(
            layers.Dss,
            flags=st.sampled_from([0b1111, 0b11111]),
            data_ack=long,
            data_sequence=long,
            subflow_sequence=word,
            data_length=short,
            checksum=short | st.none(),
        ),
        st.just(ACK),
    ),
    st.tuples(
        built(layers.AddAddr, address_id=octet, address=address, port=short | st.none(), hmac=long), st.just(ACK)
    ),
    st.tuples(built(layers.AddAddr, echo=1, address_id=octet, address=address, port=short | st.none()), st.just(ACK)),
    st.tuples(built(layers.RemoveAddr, address_ids=st.lists(octet, min_size=1, max_size=33)), st.just(ACK)),
    st.tuples(prio(), st.just(ACK)),
    st.tuples(built(layers.MpFail, data_sequence=long), st.just(ACK)),
    st.tuples(built(layers.MpFastclose, receiver_key=long), st.just(ACK)),
    st.tuples(built(layers.MpTcprst, flags=st.integers(0, 15), reason=octet), st.just(0x14)),
    st.tuples(
        built(layers.Unknown, subtype=st.integers(9, 15), rest=st.integers(0, 15), body=st.binary(max_size=30)),
        st.just(ACK),
    ),
)


def octets(value: int | None, size: int) -> bytes | None:
    return None if value is None else value.to_bytes(size, "big")


def value_of(p: Packet) -> options.MptcpOption:
    """Return the dataclass from options.py with the layer's fields."""
    match type(p).__name__:
        case "MpCapable":
            if p.version != 1:
                return options.MpCapable(p.version, int(p.flags))
            keys = octets(p.sender_key, 8), octets(p.receiver_key, 8)
            return options.MpCapable(p.version, int(p.flags), *keys, p.data_length)
        case "MpJoinSyn":
            return options.MpJoinSyn(bool(p.backup), p.address_id, p.token, p.nonce.to_bytes(4, "big"))
        case "MpJoinSynAck":
            nonce = p.nonce.to_bytes(4, "big")
            return options.MpJoinSynAck(bool(p.backup), p.address_id, p.hmac.to_bytes(8, "big"), nonce)
        case "MpJoinAck":
            return options.MpJoinAck(p.hmac)
        case "Dss":
            sequence = (8 if p.flags.m else 4) if p.flags.M else 0
            mapping = p.subflow_sequence, p.data_length
            return options.Dss(bool(p.flags.F), p.data_ack, p.data_sequence, sequence, *mapping)
        case "AddAddr":
            return options.AddAddr(bool(p.echo), p.address_id, ip_address(p.address).packed, p.port)
        case "RemoveAddr":
            return options.RemoveAddr(tuple(p.address_ids))
        case "MpPrio":
            return options.MpPrio(bool(p.backup))
        case "MpFail":
            return options.MpFail(p.data_sequence)
        case "MpFastclose":
            return options.MpFastclose(p.receiver_key.to_bytes(8, "big"))
        case "MpTcprst":
            return options.MpTcprst(int(p.flags), p.reason)
        case _:
            return options.UnknownSubtype(p.subtype, bytes(p)[2:])


@settings(max_examples=examples(600), deadline=None)
@given(case=BUILT)
def test_options_parser_reads_what_the_layers_build(case: tuple[Packet, int]) -> None:
    layer, flags = case
    segment = parse_frame(
        bytes(
            IP(src="198.51.100.1", dst="192.0.2.1")
            / TCP(flags=flags, options=[layers.tcp_option(layer), ("NOP", None)])
        ),
        0.0,
        "eth0",
        RAW_IP,
    )
    assert segment is not None
    assert segment.options == (value_of(layer),)


@settings(max_examples=examples(600), deadline=None)
@given(case=BUILT)
def test_layers_dissect_what_they_build(case: tuple[Packet, int]) -> None:
    layer, flags = case
    header = bytes(TCP(flags=flags, options=[("MSS", 1460), layers.tcp_option(layer)]))
    (dissected,) = layers.mptcp_options(header)
    assert type(dissected) is type(layer)
    assert value_of(dissected) == value_of(layer)
    assert bytes(dissected) == bytes(layer)


kind_30 = st.binary(max_size=38).map(lambda body: bytes([30, len(body) + 2]) + body)
"""Any option of that kind. `likely` makes options of every subtype with typical lengths, so that all forms are tested.
"""
likely = st.builds(
    lambda first, size, body: bytes([30, size, first]) + body[: size - 3],
    octet,
    st.sampled_from((3, 4, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)),
    st.binary(min_size=38, max_size=38),
)


@settings(max_examples=examples(1500), deadline=None)
@given(option=kind_30 | likely, flags=st.sampled_from((SYN, SYN_ACK, ACK)))
def test_any_option_is_rebuilt_and_agrees_with_the_parser(option: bytes, flags: int) -> None:
    layer = layers.dissect(option)
    assert bytes(layer) == option
    parsed = options.parse_option(option, flags)
    if isinstance(parsed, options.Malformed):
        return
    if isinstance(parsed, options.MpCapable) and parsed.version != 1:
        return  # For other versions, options.py reads only the version, whatever else the option contains.
    assert value_of(layer) == parsed


def test_options_of_real_frames_are_rebuilt() -> None:
    for _, _, frame in IPV4 + IPV6:
        ether = Ether(frame)
        segment = parse_frame(frame, 0.0, "v0")
        assert segment is not None
        options = layers.mptcp_options(bytes(ether[TCP])[: ether[TCP].dataofs * 4])
        assert tuple(value_of(layer) for layer in options) == segment.options
        rebuilt = [
            layers.tcp_option(options.pop(0)) if kind == 30 else (kind, value) for kind, value in ether[TCP].options
        ]
        ether[TCP].options = rebuilt
        assert bytes(ether) == frame
        assert ether.haslayer(IP) or ether.haslayer(IPv6)


def test_layers_show_names_of_subtypes_and_reasons() -> None:
    shown = repr(layers.dissect(bytes.fromhex("1e048106")))
    assert "subtype=MP_TCPRST" in shown
    assert "reason=middlebox interference" in shown
    assert "flags=T" in shown
