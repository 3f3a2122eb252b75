"""MPTCP options in words, whatever else is in the TCP header."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mptcp_capture import IPV4, IPV6
from scapy.layers.inet import TCP
from scapy.layers.l2 import Ether

from mptcp_throttler.mptcp.options import KIND
from mptcp_throttler.views.mptcp_layers import dissect
from mptcp_throttler.views.option_words import in_words, options_in_words

PRIO = bytes.fromhex("1e0351 01")


def words(options: bytes) -> str:
    return options_in_words(bytes(20) + options)


def test_an_option_that_is_too_short_for_its_kind_stops_nothing() -> None:
    """Defect: a segment with an option of TCP-AO (kind 29) of three octets ended replay with a traceback."""
    assert words(bytes.fromhex("1d030a") + PRIO) == "MP_PRIO: backup"
    assert words(PRIO + bytes.fromhex("1d02")) == "MP_PRIO: backup"


def test_what_is_cut_or_has_no_length_is_the_last() -> None:
    assert words(PRIO + bytes.fromhex("1e0c1007")) == f"MP_PRIO: backup; {words(bytes.fromhex('1e041007'))}"
    for end in ("0800", "0801", "08", "00"):
        assert words(PRIO + bytes.fromhex(end) + PRIO) == "MP_PRIO: backup"
    assert words(b"") == ""


def test_real_headers_say_what_scapys_layer_finds_in_them() -> None:
    for _, _, frame in IPV4 + IPV6:
        tcp = Ether(frame)[TCP]
        header = bytes(tcp)[: tcp.dataofs * 4]
        found = (bytes([KIND, len(value) + 2]) + value for kind, value in tcp.options if kind == KIND)
        assert options_in_words(header) == "; ".join(in_words(dissect(each)) for each in found)


@given(st.binary(max_size=40))
def test_nothing_raises(options: bytes) -> None:
    words(options)
