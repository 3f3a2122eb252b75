# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the Scapy layers: options.py parses what the layers build, and the layers rebuild what they dissect."""

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

SYN, SYN_ACK, ACK, RST_ACK = 0x02, 0x12, 0x10, 0x14
u8, u16 = st.integers(0, 2**8 - 1), st.integers(0, 2**16 - 1)
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
bit = st.integers(0, 1)
address = st.ip_addresses().map(str)


def build(layer: type[Packet], **fields: st.SearchStrategy[Any] | Any) -> st.SearchStrategy[Packet]:
    return st.fixed_dictionaries(
        {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fields.items()}
    ).map(lambda values: layer(**values))


def capable(version: int, *keys: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Packet]:
    return build(layers.MpCapable, version=version, flags=u8, **dict.fromkeys(keys, u64), **more)


def prio(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[Packet]:
    return build(layers.MpPrio, backup=bit, **more)


LAYERS_AND_FLAGS: st.SearchStrategy[tuple[Packet, int]] = st.one_of(
    st.tuples(capable(1), st.just(SYN)),
    st.tuples(capable(1, "sender_key"), st.just(SYN_ACK)),
    st.tuples(capable(0, "sender_key"), st.sampled_from((SYN, SYN_ACK))),
    st.tuples(capable(0, "sender_key", "receiver_key"), st.just(ACK)),
    st.tuples(capable(1, "sender_key", "receiver_key"), st.just(ACK)),
    st.tuples(capable(1, "sender_key", "receiver_key", data_length=u16), st.just(ACK)),
    st.tuples(capable(1, "sender_key", "receiver_key", data_length=u16, checksum=u16), st.just(ACK)),
    st.tuples(build(layers.MpJoinSyn, backup=bit, address_id=u8, token=u32, nonce=u32), st.just(SYN)),
    st.tuples(build(layers.MpJoinSynAck, backup=bit, address_id=u8, hmac=u64, nonce=u32), st.just(SYN_ACK)),
    st.tuples(build(layers.MpJoinAck, hmac=st.binary(min_size=20, max_size=20)), st.just(ACK)),
    st.tuples(
        build(
            layers.Dss,
            flags=st.integers(0, 31),
            data_ack=u32,
            data_sequence=u32,
            subflow_sequence=u32,
            data_length=u16,
            checksum=u16 | st.none(),
        ),
        st.just(ACK),
    ),
    st.tuples(
        build(
            layers.Dss,
            flags=st.sampled_from([0b1111, 0b11111]),
            data_ack=u64,
            data_sequence=u64,
            subflow_sequence=u32,
            data_length=u16,
            checksum=u16 | st.none(),
        ),
        st.just(ACK),
    ),
    st.tuples(build(layers.AddAddr, address_id=u8, address=address, port=u16 | st.none(), hmac=u64), st.just(ACK)),
    st.tuples(build(layers.AddAddr, echo=1, address_id=u8, address=address, port=u16 | st.none()), st.just(ACK)),
    st.tuples(build(layers.RemoveAddr, address_ids=st.lists(u8, min_size=1, max_size=33)), st.just(ACK)),
    st.tuples(prio(), st.just(ACK)),
    st.tuples(build(layers.MpFail, data_sequence=u64), st.just(ACK)),
    st.tuples(build(layers.MpFastclose, receiver_key=u64), st.just(ACK)),
    st.tuples(build(layers.MpTcprst, flags=st.integers(0, 15), reason=u8), st.just(RST_ACK)),
    st.tuples(
        build(layers.Unknown, subtype=st.integers(9, 15), rest=st.integers(0, 15), body=st.binary(max_size=30)),
        st.just(ACK),
    ),
)


def octets(value: int | None, size: int) -> bytes | None:
    return None if value is None else value.to_bytes(size, "big")


def value_of(layer: Packet) -> options.MptcpOption:
    """Return the dataclass from options.py with the layer's fields."""
    match type(layer).__name__:
        case "MpCapable":
            if layer.version != 1:
                return options.MpCapable(layer.version, int(layer.flags))
            keys = octets(layer.sender_key, 8), octets(layer.receiver_key, 8)
            return options.MpCapable(layer.version, int(layer.flags), *keys, layer.data_length)
        case "MpJoinSyn":
            return options.MpJoinSyn(bool(layer.backup), layer.address_id, layer.token, layer.nonce.to_bytes(4, "big"))
        case "MpJoinSynAck":
            nonce = layer.nonce.to_bytes(4, "big")
            return options.MpJoinSynAck(bool(layer.backup), layer.address_id, layer.hmac.to_bytes(8, "big"), nonce)
        case "MpJoinAck":
            return options.MpJoinAck(layer.hmac)
        case "Dss":
            sequence_size = (8 if layer.flags.m else 4) if layer.flags.M else 0
            mapping = layer.subflow_sequence, layer.data_length
            return options.Dss(bool(layer.flags.F), layer.data_ack, layer.data_sequence, sequence_size, *mapping)
        case "AddAddr":
            return options.AddAddr(bool(layer.echo), layer.address_id, ip_address(layer.address).packed, layer.port)
        case "RemoveAddr":
            return options.RemoveAddr(tuple(layer.address_ids))
        case "MpPrio":
            return options.MpPrio(bool(layer.backup))
        case "MpFail":
            return options.MpFail(layer.data_sequence)
        case "MpFastclose":
            return options.MpFastclose(layer.receiver_key.to_bytes(8, "big"))
        case "MpTcprst":
            return options.MpTcprst(int(layer.flags), layer.reason)
        case _:
            return options.UnknownSubtype(layer.subtype, bytes(layer)[2:])


@settings(max_examples=examples(600), deadline=None)
@given(case=LAYERS_AND_FLAGS)
def test_options_built_by_the_layers_are_parsed_correctly(case: tuple[Packet, int]) -> None:
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
@given(case=LAYERS_AND_FLAGS)
def test_options_built_by_the_layers_are_dissected_correctly(case: tuple[Packet, int]) -> None:
    layer, flags = case
    header = bytes(TCP(flags=flags, options=[("MSS", 1460), layers.tcp_option(layer)]))
    (dissected,) = layers.mptcp_options(header)
    assert type(dissected) is type(layer)
    assert value_of(dissected) == value_of(layer)
    assert bytes(dissected) == bytes(layer)


arbitrary_option = st.binary(max_size=38).map(lambda body: bytes([30, len(body) + 2]) + body)
"""Any MPTCP option (kind 30), of arbitrary content."""
typical_option = st.builds(
    lambda first, size, body: bytes([30, size, first]) + body[: size - 3],
    u8,
    st.sampled_from((3, 4, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)),
    st.binary(min_size=38, max_size=38),
)
"""MPTCP options with a typical length for any subtype, so that all forms occur."""


@settings(max_examples=examples(1500), deadline=None)
@given(option=arbitrary_option | typical_option, flags=st.sampled_from((SYN, SYN_ACK, ACK)))
def test_any_option_is_rebuilt_and_parsed_as_in_options_py(option: bytes, flags: int) -> None:
    layer = layers.dissect(option)
    assert bytes(layer) == option
    parsed = options.parse_option(option, flags)
    if isinstance(parsed, options.Malformed):
        return
    if isinstance(parsed, options.MpCapable) and parsed.version != 1:
        return  # For other versions, options.py parses only the version.
    assert value_of(layer) == parsed


def test_options_of_real_frames_are_rebuilt() -> None:
    for _, _, frame in IPV4 + IPV6:
        ether = Ether(frame)
        segment = parse_frame(frame, 0.0, "v0")
        assert segment is not None
        dissected = layers.mptcp_options(bytes(ether[TCP])[: ether[TCP].dataofs * 4])
        assert tuple(value_of(layer) for layer in dissected) == segment.options
        rebuilt = [
            layers.tcp_option(dissected.pop(0)) if kind == 30 else (kind, value) for kind, value in ether[TCP].options
        ]
        ether[TCP].options = rebuilt
        assert bytes(ether) == frame
        assert ether.haslayer(IP) or ether.haslayer(IPv6)


def test_layers_show_names_of_subtypes_and_reasons() -> None:
    text = repr(layers.dissect(bytes.fromhex("1e048106")))
    assert "subtype=MP_TCPRST" in text
    assert "reason=middlebox interference" in text
    assert "flags=T" in text
