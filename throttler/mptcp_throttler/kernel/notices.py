# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel notifications about other programs' changes: rtnetlink(7) groups TC and LINK, nfnetlink group NFTABLES.

Each message has the port id of the netlink socket that made the change. Our adapters' sockets have special port ids
(``netlink.OUR_PORTS``), whose messages a socket filter drops in the kernel; the port ids of libnftables' sockets are
looked up in /proc. Other programs' port ids are mostly their process ids, so the log can name the process. The kernel
does not notify of changes to ipset, legacy iptables and sysctls, which are therefore polled.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mptcp_common.netlink import NETLINK_NETFILTER, OUR_PORTS, attributes, datagrams, listen, messages, text
from mptcp_throttler.kernel.tc.root_qdisc import TC_H_ROOT, TCMSG
from mptcp_throttler.shaping.model import NFT_TABLE, PLAIN_TCP_TABLE

_BUFFER_BYTES = 1 << 20
_RTNLGRP_LINK, _RTNLGRP_TC, _NFNLGRP_NFTABLES = 1, 4, 7
_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_QDISC, _CLASS = (36, 37), (40, 41)
_IFINFOMSG_BYTES, _IFLA_IFNAME = 16, 3
_NFT = 10 << 8
_NEWGEN, _GEN_PROCESS, _GEN_NAME = _NFT | 15, 2, 3
_NFGENMSG_BYTES, _TABLE = 4, 1  # attribute of the table's name, in all nf_tables messages except generations
_KINDS = {0: "table", 3: "chain", 6: "rule", 9: "set", 12: "entries"}
_PORT_OFFSET = 12  # offset of the port id in the netlink header
_MAX_PROCESS_ID = 1 << 22  # PID_MAX_LIMIT: a larger port id is not a process id
_MAX_DATAGRAMS = 256

UNKNOWN = "an unknown process"


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A change to one of our objects, or to an object below it, and the author of the change, as texts."""

    description: str
    author: str


class NoticeSource:
    """A non-blocking netlink socket for notifications, except those caused by our own adapters."""

    def __init__(self, protocol: int, groups: Collection[int]) -> None:
        """Raises KernelError."""
        self._socket = listen(
            protocol, groups, "listen to changes by other programs", buffer=_BUFFER_BYTES, drops=_own_message_filter()
        )

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self) -> Iterator[KernelChange]:
        """Yield other programs' changes; report lost messages as one change of unknown objects."""
        for data in datagrams(self._socket, _MAX_DATAGRAMS):
            if data is None:
                yield KernelChange("unknown objects, because the kernel lost notifications", UNKNOWN)
                continue
            for kind, _, _, port, body in messages(data):
                yield from self._changes(kind, port, body)

    def _changes(self, kind: int, port: int, body: bytes) -> Iterator[KernelChange]:
        raise NotImplementedError


class LinkNotices(NoticeSource):
    """Notifications about *interfaces*, their root qdiscs, classes and queues."""

    def __init__(self, interfaces: Collection[str], htb_major: int) -> None:
        super().__init__(socket.NETLINK_ROUTE, (_RTNLGRP_LINK, _RTNLGRP_TC))
        self._interfaces = frozenset(interfaces)
        self._names = {index: name for index, name in socket.if_nameindex() if name in self._interfaces}
        """By index, to recognize renamed interfaces."""
        self._major = htb_major

    def _changes(self, kind: int, port: int, body: bytes) -> Iterator[KernelChange]:
        if kind in (_RTM_NEWLINK, _RTM_DELLINK):
            name = text(dict(attributes(body, _IFINFOMSG_BYTES)).get(_IFLA_IFNAME))
            index = struct.unpack_from("=i", body, 4)[0]
            former = self._names.pop(index, name)
            description = f"interface {name}" if former == name else f"interface {former}, which is called {name} now"
            if name not in self._interfaces:
                name = former
            elif kind == _RTM_NEWLINK:
                self._names[index] = name
        elif kind in _QDISC or kind in _CLASS:
            _family, index, handle, parent, _info = TCMSG.unpack_from(body)
            if parent != TC_H_ROOT and self._major not in (handle >> 16, parent >> 16):
                return
            name = ""
            with suppress(OSError):
                name = socket.if_indextoname(index)
            class_name = f"class {handle >> 16:x}:{handle & 0xFFFF:x}"
            qdisc_name = "root qdisc" if parent == TC_H_ROOT else f"queue of class {parent >> 16:x}:{parent & 0xFFFF:x}"
            description = f"{class_name if kind in _CLASS else qdisc_name} of {name}"
        else:
            return
        if name in self._interfaces:
            yield KernelChange(description, process_text(port))


class NftablesNotices(NoticeSource):
    """Notifications about our nftables tables. A message at the end of each transaction names the author."""

    def __init__(self) -> None:
        super().__init__(NETLINK_NETFILTER, (_NFNLGRP_NFTABLES,))
        self._unfinished: dict[int, str] = {}  # changes of unfinished transactions, by port id
        self._library_ports: set[int] = set()  # port ids of this process's sockets that libraries opened

    def _changes(self, kind: int, port: int, body: bytes) -> Iterator[KernelChange]:
        if kind == _NEWGEN:
            description = self._unfinished.pop(port, None)
            if description is not None:
                fields = dict(attributes(body, _NFGENMSG_BYTES))
                number = int.from_bytes(fields.get(_GEN_PROCESS, b""), "big")
                name = text(fields.get(_GEN_NAME))
                yield KernelChange(description, f"process {number} ({name})" if name else process_text(port))
        elif kind >> 8 == _NFT >> 8 and port not in self._unfinished:
            table = text(dict(attributes(body, _NFGENMSG_BYTES)).get(_TABLE))
            if table in (NFT_TABLE, PLAIN_TCP_TABLE) and not self._is_ours(port):
                number = kind & 0xFF
                self._unfinished[port] = f"{_KINDS.get(number - number % 3, 'object')} of table {table}"

    def _is_ours(self, port: int) -> bool:
        if port and port not in self._library_ports and _is_of_this_process(port, NETLINK_NETFILTER):
            self._library_ports.add(port)
        return port in self._library_ports


def process_text(port: int) -> str:
    """Return a text that names the process with the netlink port id *port*."""
    if not 0 < port <= _MAX_PROCESS_ID:
        return UNKNOWN
    try:
        # The kernel truncates the name after 15 bytes, possibly within a character.
        name = Path(f"/proc/{port}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return f"process {port}, which has ended"
    return f"process {port} ({name})"


def _is_of_this_process(port: int, protocol: int) -> bool:
    rows = map(str.split, Path("/proc/thread-self/net/netlink").read_text().splitlines()[1:])
    sockets = {f"socket:[{row[9]}]" for row in rows if (int(row[1]), int(row[2])) == (protocol, port)}
    for descriptor in os.listdir("/proc/self/fd") if sockets else ():
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}") in sockets:
                return True
    return False


def _own_message_filter() -> tuple[tuple[int, int, int, int], ...]:
    """Return a program that drops messages with port ids in :data:`OUR_PORTS`. Its loads are big endian, bpf(4)."""
    offset, own_bits = _PORT_OFFSET, OUR_PORTS >> 16
    if sys.byteorder == "little":
        offset, own_bits = offset + 2, int.from_bytes(own_bits.to_bytes(2, "little"), "big")
    # Load the half-word with the upper bits. If the port is ours, drop the message; otherwise skip the drop, and pass.
    return (0x28, 0, 0, offset), (0x15, 0, 1, own_bits), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)
