"""MPTCP options in words for people, through the Scapy layers. RFC 8684, 3. Keys are left out: they are secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mptcp_common.units import counted
from mptcp_throttler.views.mptcp_layers import (
    RESET_REASONS,
    AddAddr,
    AddAddrV0,
    Dss,
    MpCapable,
    MpFail,
    MpFastclose,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MpPrio,
    MpTcprst,
    RemoveAddr,
    mptcp_options,
)


def options_in_words(tcp_header: bytes) -> str:
    """Return what the MPTCP options of *tcp_header* say; "" where there are none. Nothing raises."""
    return "; ".join(in_words(each) for each in mptcp_options(tcp_header))


def in_words(option: Any) -> str:
    """Return what one option says; *option* is a layer of ``mptcp_layers``."""
    words = _WORDS.get(type(option))
    return words(option) if words is not None else _unknown(option)


def _capable(option: Any) -> str:
    words = [f"MP_CAPABLE version {option.version}"]
    if option.receiver_key is not None:
        words.append("both keys")
    elif option.sender_key is not None:
        words.append("the sender's key")
    if option.flags & 0x80:
        words.append("with checksums")
    if option.flags & 0x20:
        words.append("no join to this address")
    if option.data_length is not None:
        words.append(f"{counted(option.data_length, 'byte')} of data")
    return ", ".join(words)


def _join_syn(option: Any) -> str:
    return f"MP_JOIN to connection {option.token:08x}, address id {option.address_id}{_backup(option)}"


def _join_syn_ack(option: Any) -> str:
    return f"MP_JOIN, address id {option.address_id}, HMAC {option.hmac:016x}{_backup(option)}"


def _join_ack(option: Any) -> str:
    return f"MP_JOIN, HMAC {bytes(option.hmac).hex()}"


def _dss(option: Any) -> str:
    words = ["DSS"]
    if option.flags & 4:
        words.append(f"{counted(option.data_length, 'byte')} from {option.data_sequence}")
    if option.flags & 1:
        words.append(f"acknowledges {option.data_ack}")
    if option.flags & 16:
        words.append("DATA_FIN")
    return ", ".join(words)


def _add_addr(option: Any) -> str:
    address = f"[{option.address}]" if ":" in str(option.address) else str(option.address)
    port = "" if option.port is None else f":{option.port}"
    echo = ", echo" if isinstance(option, AddAddr) and option.echo else ""
    return f"ADD_ADDR id {option.address_id}: {address}{port}{echo}"


def _remove_addr(option: Any) -> str:
    return f"REMOVE_ADDR id {', '.join(map(str, option.address_ids))}"


def _prio(option: Any) -> str:
    which = "" if option.address_id is None else f" for address id {option.address_id}"
    return f"MP_PRIO: {'backup' if option.backup else 'regular'}{which}"


def _fail(option: Any) -> str:
    return f"MP_FAIL: wrong checksum at {option.data_sequence}"


def _fastclose(option: Any) -> str:
    return "MP_FASTCLOSE"


def _tcprst(option: Any) -> str:
    reason = RESET_REASONS.get(option.reason, f"reason {option.reason}")
    return f"MP_TCPRST: {reason}{', transient' if option.flags & 1 else ''}"


def _unknown(option: Any) -> str:
    data = bytes(option)
    if len(data) < 3:
        return "an MPTCP option without a subtype"
    return f"an MPTCP option of subtype {data[2] >> 4} and {counted(len(data), 'byte')}, which no RFC has"


def _backup(option: Any) -> str:
    return ", backup" if option.backup else ""


_WORDS: Final[dict[type, Callable[[Any], str]]] = {
    MpCapable: _capable,
    MpJoinSyn: _join_syn,
    MpJoinSynAck: _join_syn_ack,
    MpJoinAck: _join_ack,
    Dss: _dss,
    AddAddr: _add_addr,
    AddAddrV0: _add_addr,
    RemoveAddr: _remove_addr,
    MpPrio: _prio,
    MpFail: _fail,
    MpFastclose: _fastclose,
    MpTcprst: _tcprst,
}
