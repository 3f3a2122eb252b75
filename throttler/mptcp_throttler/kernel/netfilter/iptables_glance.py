"""Whether rules and sets look as they did, for next to nothing: the kernel tells nobody of changes to either.

Of a table of legacy iptables it is the summary (``IPT_SO_GET_INFO``: how many rules, where chains begin, how many
bytes), of a set the number of entries. What leaves these as they are is found by the comparison that reads everything.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterable

from mptcp_throttler.kernel.netfilter import ipset
from mptcp_throttler.kernel.netlink import NETLINK_NETFILTER, NetlinkSocket
from mptcp_throttler.kernel.ports import KernelError

_GET_INFO = 64
"""IPT_SO_GET_INFO and IP6T_SO_GET_INFO, linux/netfilter_ipv4/ip_tables.h."""
_INFO = struct.Struct("=32s13I")
"""``struct ipt_getinfo``."""
_libc = ctypes.CDLL(None, use_errno=True)


def summary(is_ipv6: bool) -> bytes:
    """Return what the kernel has to say of the table mangle, which must be there. Raises KernelError."""
    family, level = (socket.AF_INET6, socket.IPPROTO_IPV6) if is_ipv6 else (socket.AF_INET, socket.IPPROTO_IP)
    buffer = ctypes.create_string_buffer(_INFO.pack(b"mangle", *[0] * 13), _INFO.size)
    size = ctypes.c_uint32(_INFO.size)
    with socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as raw:
        if _libc.getsockopt(raw.fileno(), level, _GET_INFO, buffer, ctypes.byref(size)) != 0:
            raise KernelError(f"look at the table mangle: {os.strerror(ctypes.get_errno())}")
    return buffer.raw


def entries_of(sets: Iterable[tuple[str, bool]]) -> int | None:
    """Return how many entries *sets*, of a name and IPv6 or not, have in all; None where one is not there."""
    count = 0
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        for name, is_ipv6 in sets:
            try:
                for message in netlink.dump(
                    ipset.CMD_LIST, ipset.header_alone(name, is_ipv6), f"look at the set {name}"
                ):
                    count += ipset.count(message)
            except KernelError:
                return None
    return count
