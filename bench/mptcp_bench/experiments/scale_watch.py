# SPDX-License-Identifier: GPL-2.0-or-later
"""The experiment ``scale``'s view of the throttler from outside: set entries, response times."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

from mptcp_common.kernel_error import KernelError
from mptcp_common.status_client import ask_text
from mptcp_lab.testbed import LiveNode
from mptcp_lab.testbed.services import PROXY_PORT
from mptcp_throttler.kernel.netfilter import iptables
from mptcp_throttler.kernel.netlink import NETLINK_NETFILTER, NLA_NET_BYTEORDER, NetlinkSocket, attribute, attributes

from .working_thread import WorkingThread

_POLL = 0.005
"""Seconds between two looks at the set."""
_GIVE_UP = 60.0
"""Seconds after which the status socket counts as dead."""
_WHOLE = b'{"query": "status"}\n'
"""Sent at once: the daemon waits 0.2 s for a client without a query."""

_FLAGS, _LIST_HEADER = 6, 1 << 2
"""IPSET_ATTR_FLAGS and the flag for a listing without entries, linux/netfilter/ipset/ip_set.h."""
_DATA, _ELEMENTS = 7, 24
"""IPSET_ATTR_DATA, and IPSET_ATTR_ELEMENTS in it."""
_NFGENMSG_BYTES = 4


class Entries:
    """The number of entries of the proxy's IPv4 set, as in ``ipset list -t``, without listing them."""

    def __init__(self, node: LiveNode) -> None:
        with node.entered():
            self._netlink = NetlinkSocket(NETLINK_NETFILTER)
        flags = attribute(_FLAGS | NLA_NET_BYTEORDER, struct.pack("!I", _LIST_HEADER))
        self._request = iptables.header(f"mptcp-throttler-4-{PROXY_PORT}", is_ipv6=False) + flags

    def close(self) -> None:
        self._netlink.close()

    def count(self) -> int:
        """Return the number; 0 if there is no such set."""
        try:
            return sum(map(_count, self._netlink.dump(iptables.CMD_LIST, self._request, "count set entries")))
        except KernelError:
            return 0

    def come(self, count: int, within: float) -> tuple[float, float]:
        """Return the seconds until half of *count* entries are set, and until all are; infinite after *within*."""
        begin = time.monotonic()
        half, passed = float("inf"), 0.0
        while passed < within:
            found = self.count()
            passed = time.monotonic() - begin
            if found >= count / 2:
                half = min(half, passed)
            if found >= count:
                return half, passed
            time.sleep(_POLL)
        return half, float("inf")

    def gone(self, within: float) -> float:
        """Return the seconds until no entry is left, infinite after *within*."""
        begin = time.monotonic()
        while time.monotonic() - begin < within:
            if not self.count():
                return time.monotonic() - begin
            time.sleep(_POLL)
        return float("inf")


def operators_environment() -> dict[str, str]:
    """Return this environment as an operator has it: a developer's may disable Python's bytecode files."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def first_byte_seconds(path: Path) -> float:
    """Return the time to the first byte of the status socket at *path*; infinite if it does not answer."""
    begin = time.monotonic()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.settimeout(_GIVE_UP)
            asked.connect(str(path))
            asked.sendall(_WHOLE)
            if not asked.recv(1):
                return float("inf")
    except OSError:
        return float("inf")
    return time.monotonic() - begin


def answer(path: Path, give_up: float = _GIVE_UP) -> bytes:
    """Return the whole answer of the status socket at *path*. Raises OSError if there is none."""
    return ask_text(path, {"query": "status"}, give_up)


class Asking(WorkingThread):
    """Queries the status socket at *path* again and again, from a thread, to find its longest silence.

    An answer costs work, so there is a pause between two. The measured silence is the time until the event loop
    accepts, the daemon has forked the child that answers, and that child has its first bytes: no less than the event
    loop's own silence at that moment.
    """

    def __init__(self, path: Path, pause: float) -> None:
        super().__init__("asking")
        self._path = path
        self._pause = pause
        self._silences: list[float] = []

    def work(self) -> None:
        while True:
            self._silences.append(first_byte_seconds(self._path))
            if self.stop.wait(self._pause):
                return

    @property
    def silences(self) -> tuple[float, ...]:
        """Seconds, one for each query."""
        return tuple(self._silences)


def _count(list_message: bytes) -> int:
    """Return the number of entries in one message of the listing."""
    data = dict(attributes(list_message, _NFGENMSG_BYTES)).get(_DATA, b"")
    return int.from_bytes(dict(attributes(data)).get(_ELEMENTS, b""), "big")
