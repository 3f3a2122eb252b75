# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's path manager: events of connections and subflows, subflow flags, announced addresses.

Generic netlink family mptcp_pm, linux/mptcp_pm.h; RFC 8684, 3.3.8. On SET_FLAGS the kernel sends MP_PRIO to the peer,
and itself uses a backup subflow only while no regular one is usable. The in-kernel path manager selects subflows by
local address, which all subflows of a one-armed proxy share. The userspace path manager selects by token and both
addresses; it manages only connections accepted while ``net.mptcp.pm_type`` was 1.

A socket does not show which program made it backup. So the flags that exist at a start count as a killed daemon's only
if there is a note in the state directory (:class:`FlagsNote`).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import (
    NLA_NESTED,
    NetlinkSocket,
    attribute,
    attributes,
    datagrams,
    listen,
    messages,
    string,
    text,
)
from mptcp_common.state_file import read_state, write_state
from mptcp_throttler.mptcp.model import FourTuple, KernelEvent, KernelEventKind, unmap

FAMILY, GROUP = "mptcp_pm", "mptcp_pm_events"
FLAGS_NOTE = "backup-flags"
_NETLINK_GENERIC, _GENL_ID_CTRL, _CTRL_CMD_GETFAMILY = 16, 16, 3
_CTRL_ATTR_FAMILY_ID, _CTRL_ATTR_FAMILY_NAME, _CTRL_ATTR_MCAST_GROUPS = 1, 2, 7
_MCAST_GROUP_NAME, _MCAST_GROUP_ID = 1, 2
_CMD_GET_ADDR, _CMD_SET_FLAGS, _VERSION = 3, 7, 1
_GENLMSG = struct.Struct("=BBH")
_ATTR_ADDR, _ATTR_TOKEN, _ATTR_ADDR_REMOTE = 1, 4, 6
_ADDR_FAMILY, _ADDR4, _ADDR6, _ADDR_PORT, _ADDR_FLAGS = 1, 3, 4, 5, 6
_FLAG_SIGNAL, _FLAG_BACKUP = 1 << 0, 1 << 2
_TOKEN, _LOCAL_ID, _REMOTE_ID = 1, 3, 4
_SADDR4, _SADDR6, _DADDR4, _DADDR6, _SPORT, _DPORT, _BACKUP = 5, 6, 7, 8, 9, 10, 11  # attributes of events
_KINDS = {kind.value: kind for kind in KernelEventKind}
_BUFFER_BYTES = 8 << 20


class PathManagerEvents:
    """A non-blocking socket subscribed to the events of the network namespace in which it is created."""

    def __init__(self) -> None:
        self._socket = subscribed_socket(buffer=_BUFFER_BYTES)
        self.lost = 0  # receive buffer overflows; each requires a resync

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self, limit: int = 256) -> Iterator[KernelEvent]:
        """Yield waiting events of at most *limit* datagrams, each with its own time of reading. Raises OSError.

        With a common time, an event that arrives while others are processed would seem older than its own packets.
        """
        for data in datagrams(self._socket, limit):
            if data is None:
                self.lost += 1
                continue
            now = time.monotonic()
            for _, _, _, _, body in messages(data):
                event = _parse_event(body, now)
                if event is not None:
                    yield event


def subscribed_socket(*, buffer: int = 0) -> socket.socket:
    """Return a non-blocking socket in the group of events, with :func:`listen`'s *buffer*. Raises KernelError."""
    return listen(_NETLINK_GENERIC, [find_family()[1]], "listen to the events of the path manager", buffer=buffer)


def _parse_event(body: bytes, now: float) -> KernelEvent | None:
    """Return the event in a generic netlink message, without netlink header; None for unused kinds."""
    kind = _KINDS.get(body[0]) if len(body) >= _GENLMSG.size else None
    if kind is None:
        return None
    fields = dict(attributes(body, _GENLMSG.size))
    if len(fields.get(_TOKEN, b"")) != 4:
        return None
    local, remote = (fields.get(v4) or fields.get(v6) for v4, v6 in ((_SADDR4, _SADDR6), (_DADDR4, _DADDR6)))
    four_tuple = None
    if local and remote and _SPORT in fields and _DPORT in fields:
        local_port, remote_port = (int.from_bytes(fields[port], "big") for port in (_SPORT, _DPORT))
        four_tuple = FourTuple(unmap(local), local_port, unmap(remote), remote_port)
    token = int.from_bytes(fields[_TOKEN], "little")
    local_id, remote_id = (fields[each][0] if fields.get(each) else None for each in (_LOCAL_ID, _REMOTE_ID))
    return KernelEvent(now, kind, token, four_tuple, local_id, remote_id, bool(fields.get(_BACKUP, b"\0")[0]))


def find_family() -> tuple[int, int]:
    """Return the ids of the family and its event group. Raises KernelError if the kernel lacks them."""
    request = _GENLMSG.pack(_CTRL_CMD_GETFAMILY, 1, 0) + string(_CTRL_ATTR_FAMILY_NAME, FAMILY)
    with NetlinkSocket(_NETLINK_GENERIC) as netlink:
        operation = f"look up the generic netlink family {FAMILY} (does the kernel have MPTCP?)"
        fields = dict(attributes(netlink.ask(_GENL_ID_CTRL, request, operation), _GENLMSG.size))
    for _index, group in attributes(fields.get(_CTRL_ATTR_MCAST_GROUPS, b"")):
        fields_of_group = dict(attributes(group))
        if text(fields_of_group.get(_MCAST_GROUP_NAME)) == GROUP:
            number = int.from_bytes(fields[_CTRL_ATTR_FAMILY_ID][:2], "little")
            return number, int.from_bytes(fields_of_group[_MCAST_GROUP_ID], "little")
    raise KernelError(f"this kernel has no {GROUP}: MPTCP path-manager events need Linux 5.13 or newer")


class SubflowCommands:
    """Changes subflows, in the network namespace in which it is created. Raises KernelError if it has no MPTCP."""

    def __init__(self) -> None:
        self._family = find_family()[0]
        self._netlink = NetlinkSocket(_NETLINK_GENERIC)

    def close(self) -> None:
        self._netlink.close()

    def set_backup(self, token: int, four_tuple: FourTuple, backup: bool) -> None:
        operation = f"make a subflow of connection {token:08x} {'backup' if backup else 'regular'}"
        flags = attribute(_ADDR_FLAGS, struct.pack("=I", _FLAG_BACKUP if backup else 0))
        request = _GENLMSG.pack(_CMD_SET_FLAGS, _VERSION, 0) + attribute(_ATTR_TOKEN, struct.pack("=I", token))
        request += attribute(_ATTR_ADDR | NLA_NESTED, _endpoint(four_tuple.local, four_tuple.local_port) + flags)
        request += attribute(_ATTR_ADDR_REMOTE | NLA_NESTED, _endpoint(four_tuple.remote, four_tuple.remote_port))
        self._netlink.request(self._family, 0, request, operation)


def read_announced_ports() -> tuple[int, ...]:
    """Return ports of announced addresses, where clients join too (RFC 8684, 3.4.1; ip-mptcp(8)); empty if unknown."""
    ports = set()
    try:
        with NetlinkSocket(_NETLINK_GENERIC) as netlink:
            request = _GENLMSG.pack(_CMD_GET_ADDR, _VERSION, 0)
            for message in netlink.dump(find_family()[0], request, "list the announced addresses"):
                fields = dict(attributes(dict(attributes(message, len(request))).get(_ATTR_ADDR, b"")))
                if int.from_bytes(fields.get(_ADDR_FLAGS, b""), "little") & _FLAG_SIGNAL:
                    ports.add(int.from_bytes(fields.get(_ADDR_PORT, b""), "little"))
    except (KernelError, OSError):
        return ()
    return tuple(sorted(ports - {0}))


def _endpoint(address: bytes, port: int) -> bytes:
    v4 = len(address) == 4
    return (
        attribute(_ADDR_FAMILY, struct.pack("=H", socket.AF_INET if v4 else socket.AF_INET6))
        + attribute(_ADDR4 if v4 else _ADDR6, address)
        + attribute(_ADDR_PORT, struct.pack("=H", port))
    )


class FlagsNote:
    """A note written before the first flag is set, and removed after the last flag is cleared."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FLAGS_NOTE
        self._is_inherited: bool | None = None
        """Whether there is a predecessor's note whose flags were not taken over; None if unknown."""

    def find(self) -> None:
        """Look for a predecessor's note, once: a later note is ours. Raises KernelError."""
        if self._is_inherited is None:
            self._is_inherited = read_state(self._path) is not None

    def write(self) -> None:
        write_state(self._path, "mptcp-throttler sets backup flags on subflows.\n")

    def take_over(self) -> bool:
        """Return whether the flags on sockets are a predecessor's; from now on they count as ours."""
        is_inherited, self._is_inherited = bool(self._is_inherited), False
        return is_inherited

    def remove(self) -> None:
        """Remove the note, unless its flags were not taken over. Raises KernelError."""
        if self._is_inherited is False:
            write_state(self._path, None)
