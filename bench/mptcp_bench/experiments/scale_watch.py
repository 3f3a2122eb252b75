# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler seen from outside, for the experiment ``scale``: set entries and response times."""

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
"""Seconds between two counts of the set's entries."""
_GIVE_UP = 60.0
"""If the status socket does not answer in these seconds, it counts as dead."""
_WHOLE = b'{"query": "status"}\n'
"""The query, which is sent at once: for a client without a query the daemon would wait 0.2 s."""

_FLAGS, _LIST_HEADER = 6, 1 << 2
"""IPSET_ATTR_FLAGS, and the flag for a listing without entries; linux/netfilter/ipset/ip_set.h."""
_DATA, _ELEMENTS = 7, 24
"""IPSET_ATTR_DATA, and the attribute IPSET_ATTR_ELEMENTS in it."""
_NFGENMSG_BYTES = 4


class Entries:
    """The number of entries in the proxy's IPv4 set, read without listing them, as by ``ipset list -t``."""

    def __init__(self, node: LiveNode) -> None:
        with node.entered():
            self._netlink = NetlinkSocket(NETLINK_NETFILTER)
        flags = attribute(_FLAGS | NLA_NET_BYTEORDER, struct.pack("!I", _LIST_HEADER))
        self._request = iptables.header(f"mptcp-throttler-4-{PROXY_PORT}", is_ipv6=False) + flags

    def close(self) -> None:
        self._netlink.close()

    def count(self) -> int:
        """Return the number of entries; 0 if the set does not exist."""
        try:
            return sum(map(_count, self._netlink.dump(iptables.CMD_LIST, self._request, "count set entries")))
        except KernelError:
            return 0

    def come(self, count: int, within: float) -> tuple[float, float]:
        """Return the seconds until half of *count* entries exist, and until all do; infinite after *within*."""
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
        """Return the seconds until no entry is left; infinite after *within* seconds."""
        begin = time.monotonic()
        while time.monotonic() - begin < within:
            if not self.count():
                return time.monotonic() - begin
            time.sleep(_POLL)
        return float("inf")


def operators_environment() -> dict[str, str]:
    """Return this environment without a developer's setting that disables Python's bytecode files."""
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
    """Return the whole answer of the status socket at *path*. Raises OSError if it does not answer."""
    return ask_text(path, {"query": "status"}, give_up)


class Asking(WorkingThread):
    """A thread that queries the status socket at *path* repeatedly, to find its longest silence.

    An answer costs processor time, so the thread pauses between two queries. The measured silence ends when the event
    loop has accepted, the daemon has forked a child to answer, and the child has sent its first byte. It is therefore
    at least as long as the event loop's own silence at that moment.
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
        """Seconds until the first byte of each query's answer."""
        return tuple(self._silences)


def _count(list_message: bytes) -> int:
    """Return the number of entries in one message of the listing."""
    data = dict(attributes(list_message, _NFGENMSG_BYTES)).get(_DATA, b"")
    return int.from_bytes(dict(attributes(data)).get(_ELEMENTS, b""), "big")
