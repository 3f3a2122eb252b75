"""Commands to the kernel's path manager: set subflow flags, close subflows, list announced addresses.

linux/mptcp_pm.h; RFC 8684, 3.3.8. On SET_FLAGS the kernel sends MP_PRIO to the peer, and itself uses a backup subflow
only while no regular one is usable. The in-kernel path manager selects subflows by local address, which all subflows of
a one-armed proxy share. The userspace one selects by token and both addresses; it manages only connections accepted
while ``net.mptcp.pm_type`` was 1.

A socket does not show who made it backup; any program with the token may. So flags found at a start are a predecessor's
only if a note in the state directory says so (:class:`FlagsNote`).
"""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.mptcp_pm.events import find_family
from mptcp_throttler.kernel.netlink import NLA_NESTED, NetlinkSocket, attribute, attributes
from mptcp_throttler.kernel.state_file import read_state, write_state
from mptcp_throttler.mptcp.model import FourTuple, mapped

_NETLINK_GENERIC = 16
_CMD_GET_ADDR, _CMD_SET_FLAGS, _CMD_SUBFLOW_DESTROY, _VERSION = 3, 7, 11, 1
_ATTR_ADDR, _ATTR_TOKEN, _ATTR_ADDR_REMOTE = 1, 4, 6
_ADDR_FAMILY, _ADDR4, _ADDR6, _ADDR_PORT, _ADDR_FLAGS = 1, 3, 4, 5, 6
_FLAG_SIGNAL, _FLAG_BACKUP = 1 << 0, 1 << 2
FLAGS_NOTE = "backup-flags"
_TEXT = "mptcp-throttler sets backup flags on subflows.\n"


class SubflowCommands:
    """Commands in the network namespace in which it is created. Raises KernelError if the kernel has no MPTCP."""

    def __init__(self) -> None:
        self._family = find_family()[0]
        self._netlink = NetlinkSocket(_NETLINK_GENERIC)

    def close(self) -> None:
        self._netlink.close()

    def set_backup(self, token: int, four_tuple: FourTuple, backup: bool) -> None:
        what = f"make a subflow of connection {token:08x} {'backup' if backup else 'regular'}"
        flags = attribute(_ADDR_FLAGS, struct.pack("=I", _FLAG_BACKUP if backup else 0))
        self._netlink.request(self._family, 0, _request(_CMD_SET_FLAGS, token, four_tuple, flags), what)

    def close_subflow(self, token: int, four_tuple: FourTuple) -> None:
        """Close one subflow of a connection; one that is already gone is no error.

        Raises KernelError: EINVAL if the connection is gone or was accepted under the in-kernel path manager.
        """
        what = f"close a subflow of connection {token:08x}"
        first, *others = (_request(_CMD_SUBFLOW_DESTROY, token, each) for each in _as_sockets(four_tuple))
        try:
            self._netlink.request(self._family, 0, first, what)
        except KernelError as error:
            if error.errno != errno.ESRCH:
                raise
            # The connection exists, so EINVAL now means a kernel without IPv6.
            for other in others:
                self._netlink.request(self._family, 0, other, what, ignore=(errno.ESRCH, errno.EINVAL))


class FlagsNote:
    """A note written before the first flag is set, and removed after the last flag is cleared."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._left: bool | None = None
        """Whether a predecessor's note exists whose flags were not taken over; None if unknown."""
        self._written = False

    def find(self) -> None:
        """Look for a predecessor's note, once: a later one is ours. Raises KernelError."""
        if self._left is None:
            self._left = read_state(self._directory / FLAGS_NOTE) is not None

    def write(self) -> None:
        """Write the note, once. Raises KernelError."""
        if not self._written:
            write_state(self._directory / FLAGS_NOTE, _TEXT)
            self._written = True

    def take_over(self) -> bool:
        """Return whether present flags are a predecessor's; from now on they count as ours."""
        left, self._left = bool(self._left), False
        return left

    def remove(self) -> None:
        """Remove the note, unless its flags were not taken over. Raises KernelError."""
        if self._left is False:
            self._written = False
            write_state(self._directory / FLAGS_NOTE, None)


def announced_ports() -> tuple[int, ...]:
    """Return ports of announced addresses, where clients join too (RFC 8684, 3.4.1; ip-mptcp(8)); empty if unknown."""
    found = set()
    try:
        with NetlinkSocket(_NETLINK_GENERIC) as netlink:
            question = struct.pack("=BBH", _CMD_GET_ADDR, _VERSION, 0)
            for message in netlink.dump(find_family()[0], question, "list the announced addresses"):
                fields = dict(attributes(dict(attributes(message, len(question))).get(_ATTR_ADDR, b"")))
                if int.from_bytes(fields.get(_ADDR_FLAGS, b""), "little") & _FLAG_SIGNAL:
                    found.add(int.from_bytes(fields.get(_ADDR_PORT, b""), "little"))
    except (KernelError, OSError):
        return ()
    return tuple(sorted(found - {0}))


def _as_sockets(four_tuple: FourTuple) -> tuple[FourTuple, ...]:
    """Return the possible forms of the addresses: a dual-stack listener's sockets have IPv4-mapped ones, which
    SUBFLOW_DESTROY, unlike SET_FLAGS, compares literally."""
    if four_tuple.is_ipv6:
        return (four_tuple,)
    return four_tuple, four_tuple._replace(local=mapped(four_tuple.local), remote=mapped(four_tuple.remote))


def _request(command: int, token: int, four_tuple: FourTuple, flags: bytes = b"") -> bytes:
    return (
        struct.pack("=BBH", command, _VERSION, 0)
        + attribute(_ATTR_TOKEN, struct.pack("=I", token))
        + attribute(_ATTR_ADDR | NLA_NESTED, _end(four_tuple.local, four_tuple.local_port) + flags)
        + attribute(_ATTR_ADDR_REMOTE | NLA_NESTED, _end(four_tuple.remote, four_tuple.remote_port))
    )


def _end(address: bytes, port: int) -> bytes:
    v4 = len(address) == 4
    return (
        attribute(_ADDR_FAMILY, struct.pack("=H", socket.AF_INET if v4 else socket.AF_INET6))
        + attribute(_ADDR4 if v4 else _ADDR6, address)
        + attribute(_ADDR_PORT, struct.pack("=H", port))
    )
