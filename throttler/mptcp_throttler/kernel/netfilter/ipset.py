"""The wire format of hash:ip,port,ip set entries with skbinfo, and which sets are ours. ipset(8), ip_set.h.

pyroute2, which creates and destroys the sets, takes 260 µs for an entry and this module 6 µs: 1,000 connections per
second need 2,000 changes. This module also detects remains of ours in legacy iptables without touching its tables:
reading a table creates it, every packet then pays for it, and it cannot be removed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.netlink import (
    NETLINK_NETFILTER,
    NLA_NESTED,
    NLA_NET_BYTEORDER,
    NetlinkSocket,
    attribute,
    attributes,
)
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import SET_PREFIX, Target

NFNL_SUBSYS_IPSET = 6
CMD_LIST, CMD_ADD, CMD_DEL, CMD_TYPE = (NFNL_SUBSYS_IPSET << 8 | number for number in (7, 9, 10, 13))
SET_TYPE = "hash:ip,port,ip"
_PROTOCOL = 6
_ATTR_TYPENAME, _ATTR_FAMILY = 3, 5
_ATTR_PROTOCOL, _ATTR_SETNAME, _ATTR_DATA, _ATTR_ADT = 1, 2, 7, 8
_DATA_IP, _DATA_PORT, _DATA_PROTO, _DATA_IP2 = 1, 4, 7, 20
_DATA_SKBMARK, _DATA_SKBPRIO = 27, 28
_ADDRESS_IPV4, _ADDRESS_IPV6 = 1, 2
_TCP = 6
_MARK = struct.Struct("!II")
_NFGENMSG = struct.Struct("!BBH")
_PRIORITY = struct.Struct("!I")
_OUR_NAME = re.compile(rf"{SET_PREFIX}-[46]-[0-9]{{1,5}}")
"""Any port, because the daemon that left a set may have had other ports."""


def header(set_name: str, is_ipv6: bool) -> bytes:
    """Return the start of every request: nfgenmsg and the attributes that name the set."""
    return (
        _NFGENMSG.pack(10 if is_ipv6 else 2, 0, 0)
        + attribute(_ATTR_PROTOCOL, bytes([_PROTOCOL]))
        + attribute(_ATTR_SETNAME, set_name.encode() + b"\0")
    )


def type_request(is_ipv6: bool) -> bytes:
    """Return a request that asks for our set type."""
    family = 10 if is_ipv6 else 2
    return (
        _NFGENMSG.pack(family, 0, 0)
        + attribute(_ATTR_PROTOCOL, bytes([_PROTOCOL]))
        + attribute(_ATTR_TYPENAME, SET_TYPE.encode() + b"\0")
        + attribute(_ATTR_FAMILY, bytes([family]))
    )


def name_of(list_message: bytes) -> str:
    """Return the set's name in a message of a listing."""
    return dict(attributes(list_message, _NFGENMSG.size)).get(_ATTR_SETNAME, b"").rstrip(b"\0").decode(errors="replace")


def _address(kind: int, packed: bytes) -> bytes:
    family = _ADDRESS_IPV6 if len(packed) == 16 else _ADDRESS_IPV4
    return attribute(kind | NLA_NESTED, attribute(family | NLA_NET_BYTEORDER, packed))


def entry(four_tuple: FourTuple) -> bytes:
    """Return the attribute with the key of *four_tuple*: client address, client port, proxy address."""
    return attribute(_ATTR_DATA | NLA_NESTED, _key(four_tuple))


def entry_with_target(four_tuple: FourTuple, target: Target, mark_mask: int, htb_major: int) -> bytes:
    """Return the attribute that adds or replaces the entry of *four_tuple*."""
    return attribute(
        _ATTR_DATA | NLA_NESTED,
        _key(four_tuple)
        + attribute(_DATA_SKBMARK | NLA_NET_BYTEORDER, _MARK.pack(target.mark, mark_mask))
        + attribute(_DATA_SKBPRIO | NLA_NET_BYTEORDER, _PRIORITY.pack(htb_major << 16 | target.minor)),
    )


def _key(four_tuple: FourTuple) -> bytes:
    return (
        _address(_DATA_IP, four_tuple.remote)
        + attribute(_DATA_PORT | NLA_NET_BYTEORDER, struct.pack("!H", four_tuple.remote_port))
        + attribute(_DATA_PROTO, bytes([_TCP]))
        + _address(_DATA_IP2, four_tuple.local)
    )


def entries(list_message: bytes, listen_port: int) -> Iterator[tuple[FourTuple, Target]]:
    """Yield the entries in one message, without netlink header, of an IPSET_CMD_LIST dump."""
    for kind, payload in attributes(list_message, _NFGENMSG.size):
        if kind == _ATTR_ADT:
            for _kind, data in attributes(payload):
                yield _decode(data, listen_port)


def _decode(data: bytes, listen_port: int) -> tuple[FourTuple, Target]:
    fields = dict(attributes(data))
    remote, local = (next(attributes(fields[kind]))[1] for kind in (_DATA_IP, _DATA_IP2))
    mark = _MARK.unpack(fields[_DATA_SKBMARK])[0] if _DATA_SKBMARK in fields else 0
    priority = _PRIORITY.unpack(fields[_DATA_SKBPRIO])[0] if _DATA_SKBPRIO in fields else 0
    port = int.from_bytes(fields[_DATA_PORT], "big")
    return FourTuple(local, listen_port, remote, port), Target(priority & 0xFFFF, mark)


def in_use() -> bool:
    """Return whether sets or rules of ours may exist. Changes nothing."""
    return _has_our_sets() or bool(registered())


def all_sets() -> Iterator[bytes]:
    """Yield the messages that list all sets, foreign ones included. Raises KernelError, OSError."""
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        yield from netlink.dump(CMD_LIST, header("", False)[:12], "list sets")


def is_our_set(name: str) -> bool:
    """Return whether *name* is a set of ours by the contract; a foreign set may have the same prefix."""
    return _OUR_NAME.fullmatch(name) is not None


def registered() -> list[bool]:
    """Return the families (whether IPv6) for which this network namespace has the mangle table.

    Only root may read that. For other users our sets decide, which our rules keep in place.
    """
    found = []
    for is_ipv6, name in ((False, "ip_tables_names"), (True, "ip6_tables_names")):
        with suppress(FileNotFoundError):
            try:
                names = Path("/proc/thread-self/net", name).read_text().split()
            except PermissionError:
                return [False, True] if _has_our_sets() else []
            if "mangle" in names:
                found.append(is_ipv6)
    return found


def _has_our_sets() -> bool:
    with suppress(KernelError, OSError):
        return any(is_our_set(name_of(message)) for message in all_sets())
    return False
