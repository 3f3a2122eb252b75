"""Events of connections and subflows: generic netlink group ``mptcp_pm_events``. linux/mptcp_pm.h.

pyroute2 knows the commands of this family but not its events, and is too slow for 1,000 connections per second.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.netlink import NetlinkSocket, attribute, attributes, datagrams, messages
from mptcp_throttler.mptcp.model import FourTuple, KernelEvent, KernelEventKind, unmap

FAMILY = "mptcp_pm"
GROUP = b"mptcp_pm_events"
_NETLINK_GENERIC, _GENL_ID_CTRL, _CTRL_CMD_GETFAMILY = 16, 16, 3
_CTRL_ATTR_FAMILY_ID, _CTRL_ATTR_FAMILY_NAME, _CTRL_ATTR_MCAST_GROUPS = 1, 2, 7
_MCAST_GROUP_NAME, _MCAST_GROUP_ID = 1, 2
_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP = 270, 1
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 8 << 20
_TOKEN, _LOCAL_ID, _REMOTE_ID = 1, 3, 4
_SADDR4, _SADDR6, _DADDR4, _DADDR6, _SPORT, _DPORT, _BACKUP = 5, 6, 7, 8, 9, 10, 11
_KINDS = {kind.value: kind for kind in KernelEventKind}


class PathManagerEvents:
    """A non-blocking socket subscribed to the events of the network namespace in which it is created."""

    def __init__(self) -> None:
        self._socket = subscribed_socket()
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self.lost = 0
        """Receive buffer overflows; each requires a resync."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self, limit: int = 256) -> Iterator[KernelEvent]:
        """Yield waiting events of at most *limit* datagrams, each with its own time of reading.

        With one time for all, an event that arrives while others are processed would seem older than its own packets.
        """
        for data in datagrams(self._socket, limit):
            if data is None:
                self.lost += 1
                continue
            now = time.monotonic()
            for _, _, _, _, body in messages(data):
                event = parse(body, now)
                if event is not None:
                    yield event


def subscribed_socket() -> socket.socket:
    """Return a non-blocking socket that is in the group. Raises KernelError."""
    _, group = find_family()
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_GENERIC)
    try:
        netlink.bind((0, 0))
        netlink.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
        netlink.setblocking(False)
    except OSError as error:
        netlink.close()
        raise KernelError(f"listen to the events of the path manager: {error.strerror}") from error
    return netlink


def parse(body: bytes, now: float) -> KernelEvent | None:
    """Return the event in a generic netlink message, without netlink header; None for unused kinds."""
    kind = _KINDS.get(body[0]) if len(body) >= 4 else None
    if kind is None:
        return None
    fields = dict(attributes(body, 4))
    if len(fields.get(_TOKEN, b"")) != 4:
        return None
    local, remote = (fields.get(v4) or fields.get(v6) for v4, v6 in ((_SADDR4, _SADDR6), (_DADDR4, _DADDR6)))
    four_tuple = None
    if local and remote and _SPORT in fields and _DPORT in fields:
        local_port, remote_port = (int.from_bytes(fields[port], "big") for port in (_SPORT, _DPORT))
        four_tuple = FourTuple(unmap(local), local_port, unmap(remote), remote_port)
    return KernelEvent(
        time=now,
        kind=kind,
        token=int.from_bytes(fields[_TOKEN], "little"),
        four_tuple=four_tuple,
        local_id=fields[_LOCAL_ID][0] if fields.get(_LOCAL_ID) else None,
        remote_id=fields[_REMOTE_ID][0] if fields.get(_REMOTE_ID) else None,
        backup=bool(fields.get(_BACKUP, b"\0")[0]),
    )


def find_family() -> tuple[int, int]:
    """Return the ids of the family and its event group. Raises KernelError if the kernel lacks them."""
    request = struct.pack("=BBH", _CTRL_CMD_GETFAMILY, 1, 0) + attribute(
        _CTRL_ATTR_FAMILY_NAME, FAMILY.encode() + b"\0"
    )
    with NetlinkSocket(_NETLINK_GENERIC) as netlink:
        answer = netlink.ask(
            _GENL_ID_CTRL, request, f"look up the generic netlink family {FAMILY} (MPTCP in the kernel?)"
        )
    fields = dict(attributes(answer, 4))
    for _index, group in attributes(fields.get(_CTRL_ATTR_MCAST_GROUPS, b"")):
        found = dict(attributes(group))
        if found.get(_MCAST_GROUP_NAME, b"").rstrip(b"\0") == GROUP:
            number = int.from_bytes(fields[_CTRL_ATTR_FAMILY_ID][:2], "little")
            return number, int.from_bytes(found[_MCAST_GROUP_ID], "little")
    raise KernelError(f"this kernel has no {GROUP.decode()}: MPTCP path-manager events need Linux 5.13 or newer")
