"""What the experiment ``scale`` sees of the throttler from outside: set entries, response times."""

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
"""Asked for at once: the daemon waits 0.2 s for a client that asks for nothing."""

_FLAGS, _LIST_HEADER = 6, 1 << 2
"""IPSET_ATTR_FLAGS and the flag for a listing without entries, linux/netfilter/ipset/ip_set.h."""
_DATA, _ELEMENTS = 7, 24
"""IPSET_ATTR_DATA, and IPSET_ATTR_ELEMENTS in it."""
_NFGENMSG_BYTES = 4


class Entries:
    """The number of entries of the proxy's IPv4 set, as ``ipset list -t`` has it, without listing any."""

    def __init__(self, node: LiveNode) -> None:
        with node.entered():
            self._netlink = NetlinkSocket(NETLINK_NETFILTER)
        flags = attribute(_FLAGS | NLA_NET_BYTEORDER, struct.pack("!I", _LIST_HEADER))
        self._request = iptables.header(f"mptcp-throttler-4-{PROXY_PORT}", is_ipv6=False) + flags

    def close(self) -> None:
        self._netlink.close()

    def count(self) -> int:
        """Return the number; 0 where there is no such set."""
        try:
            return sum(map(_count, self._netlink.dump(iptables.CMD_LIST, self._request, "count set entries")))
        except KernelError:
            return 0

    def come(self, count: int, within: float) -> tuple[float, float]:
        """Return the seconds until half of *count* entries are there, and until all are; infinity after *within*."""
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
        """Return the seconds until no entry is there, infinity after *within*."""
        begin = time.monotonic()
        while time.monotonic() - begin < within:
            if not self.count():
                return time.monotonic() - begin
            time.sleep(_POLL)
        return float("inf")


def operators_environment() -> dict[str, str]:
    """Return this environment as an operator has it: for development one may forbid Python's compiled files."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def first_byte_seconds(path: Path) -> float:
    """Return how long the status socket at *path* takes to its first byte; infinity where there is none."""
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
    """Return all that the status socket at *path* says. Raises OSError where there is none."""
    return ask_text(path, {"query": "status"}, give_up)


class Asking(WorkingThread):
    """Asks the status socket at *path* again and again, from a thread: how long it is silent at the longest.

    An answer costs work, so that a pause lies between two. The silence seen is the time until the event loop accepts,
    until the daemon has made the child that answers, and until that child has its first bytes: no less than what the
    event loop was silent for at that moment.
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
        """Seconds, one for each time that it was asked."""
        return tuple(self._silences)


def _count(list_message: bytes) -> int:
    """Return the number of entries that one message of the listing gives."""
    data = dict(attributes(list_message, _NFGENMSG_BYTES)).get(_DATA, b"")
    return int.from_bytes(dict(attributes(data)).get(_ELEMENTS, b""), "big")
