# SPDX-License-Identifier: GPL-2.0-or-later
"""Describes captured segments and their MPTCP options. Pure."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from mptcp_common.units import counted
from mptcp_throttler.mptcp import options
from mptcp_throttler.mptcp.model import Segment

_FLAGS: Final = {"SYN": options.SYN, "FIN": options.FIN, "RST": options.RST, "ACK": options.ACK}
_RESET_REASONS: Final = (
    "unspecified",
    "MPTCP-specific",
    "lack of resources",
    "administratively prohibited",
    "too much outstanding data",
    "unacceptable performance",
    "middlebox interference",
)
"""By number: RFC 8684, 3.6."""


def describe_segment(segment: Segment, from_client: bool) -> str:
    """Return flags and options as text: ``SYN ACK: MP_CAPABLE version 1, the sender's key``."""
    flags = " ".join(name for name, flag in _FLAGS.items() if segment.flags & flag) or "no flags"
    description = "; ".join(map(describe_option, segment.options))
    if segment.flags & options.SYN:
        requests_version_0 = any(isinstance(each, options.MpCapable) and each.version == 0 for each in segment.options)
        if requests_version_0 and from_client and not segment.flags & options.ACK:
            description += ": requests MPTCP version 0 (RFC 6824), to which Linux replies in plain TCP: not tracked"
        description = description or "plain TCP"
    return f"{flags}: {description}" if description else flags


def describe_option(option: options.MptcpOption) -> str:
    """Describe one option (RFC 8684, 3). Keys are omitted because they are secrets."""
    match option:
        case options.MpCapable():
            parts = [f"MP_CAPABLE version {option.version}"]
            if option.receiver_key is not None:
                parts.append("both keys")
            elif option.sender_key is not None:
                parts.append("the sender's key")
            parts += ["with checksums"] if option.flags & 0x80 else []
            parts += ["no join to this address"] if option.flags & 0x20 else []
            parts += [] if option.data_length is None else [f"{counted(option.data_length, 'byte')} of data"]
            return ", ".join(parts)
        case options.MpJoinSyn():
            target = f"connection {option.token:08x}, address id {option.address_id}"
            return f"MP_JOIN to {target}{', backup' if option.backup else ''}"
        case options.MpJoinSynAck():
            fields = f"address id {option.address_id}, HMAC {option.hmac.hex()}"
            return f"MP_JOIN, {fields}{', backup' if option.backup else ''}"
        case options.MpJoinAck():
            return f"MP_JOIN, HMAC {option.hmac.hex()}"
        case options.Dss():
            parts = ["DSS"]
            if option.data_length is not None:
                parts.append(f"{counted(option.data_length, 'byte')} from {option.data_sequence}")
            parts += [] if option.data_ack is None else [f"acknowledges {option.data_ack}"]
            parts += ["DATA_FIN"] if option.data_fin else []
            return ", ".join(parts)
        case options.AddAddr():
            address = ip_address(option.address)
            endpoint = f"[{address}]" if address.version == 6 else str(address)
            endpoint += "" if option.port is None else f":{option.port}"
            return f"ADD_ADDR id {option.address_id}: {endpoint}{', echo' if option.echo else ''}"
        case options.RemoveAddr():
            return f"REMOVE_ADDR id {', '.join(map(str, option.address_ids))}"
        case options.MpPrio():
            return f"MP_PRIO: {'backup' if option.backup else 'regular'}"
        case options.MpFail():
            return f"MP_FAIL: wrong checksum at {option.data_sequence}"
        case options.MpFastclose():
            return "MP_FASTCLOSE"
        case options.MpTcprst(reason=number):
            reason = _RESET_REASONS[number] if number < len(_RESET_REASONS) else f"reason {number}"
            return f"MP_TCPRST: {reason}{', transient' if option.flags & 1 else ''}"
        case options.UnknownSubtype():
            return f"MPTCP option of subtype {option.subtype}, which no RFC defines"
    assert isinstance(option, options.Malformed)
    subtype = "" if option.subtype is None else f" of subtype {option.subtype}"
    return f"invalid MPTCP option{subtype}: {option.reason}"
