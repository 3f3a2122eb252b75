"""What the throttler tells and asks the kernel's path manager: flags and ends of subflows, announced addresses.

SET_FLAGS and SUBFLOW_DESTROY of linux/mptcp_pm.h; RFC 8684, 3.3.8. By the first the kernel sends MP_PRIO to the peer
and, on its own side, gives a backup subflow data only while no regular one is usable. Its own path manager chooses by
local address, which all subflows of a one-armed proxy share; the one in user space, given the connection's token,
chooses by both ends. Only connections that were accepted while ``net.mptcp.pm_type`` was 1 are under it.

A socket does not say who made it backup: other programs may, by its connection's token. So flags that are there at a
start are a predecessor's only where a note in the state directory says that it sets some (:class:`FlagsNote`).
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
    """Those of the namespace it is made in. Raises KernelError where the kernel has no MPTCP."""

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
        """Close one subflow, whose connection lives on with the others; one that is gone is no error.

        Raises KernelError: EINVAL where the connection is gone, or was accepted under the kernel's path manager.
        """
        what = f"close a subflow of connection {token:08x}"
        first, *others = (_request(_CMD_SUBFLOW_DESTROY, token, each) for each in _as_sockets(four_tuple))
        try:
            self._netlink.request(self._family, 0, first, what)
        except KernelError as error:
            if error.errno != errno.ESRCH:
                raise
            # The connection was there: EINVAL is what a kernel without IPv6 says of such an address.
            for other in others:
                self._netlink.request(self._family, 0, other, what, ignore=(errno.ESRCH, errno.EINVAL))


class FlagsNote:
    """Written before the first flag is set, and removed after the last one was taken back."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._left: bool | None = None
        """A predecessor's is there, whose flags were not taken over; None where that is not known."""
        self._written = False

    def find(self) -> None:
        """Look for a predecessor's, once: what is there later is ours. Raises KernelError."""
        if self._left is None:
            self._left = read_state(self._directory / FLAGS_NOTE) is not None

    def write(self) -> None:
        """Have it there. Raises KernelError."""
        if not self._written:
            write_state(self._directory / FLAGS_NOTE, _TEXT)
            self._written = True

    def take_over(self) -> bool:
        """Return whether the flags that are set are a predecessor's; from now on they count as ours."""
        left, self._left = bool(self._left), False
        return left

    def remove(self) -> None:
        """No flag is set any more; a note whose flags were not taken over stays. Raises KernelError."""
        if self._left is False:
            self._written = False
            write_state(self._directory / FLAGS_NOTE, None)


def announced_ports() -> tuple[int, ...]:
    """Return the ports of the addresses that are announced with one (RFC 8684, 3.4.1): clients join there, too.

    Nothing where the kernel does not say. ip-mptcp(8), ``ip mptcp endpoint``.
    """
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
    """Return as what the kernel may have it: a socket of a listener for both families has its addresses as IPv6's,
    and this command, unlike the other, compares them as they are."""
    if four_tuple.is_ipv6:
        return (four_tuple,)
    return four_tuple, four_tuple._replace(local=mapped(four_tuple.local), remote=mapped(four_tuple.remote))


def _request(command: int, token: int, four_tuple: FourTuple, flags: bytes = b"") -> bytes:
    """Return the generic netlink message, without its netlink header."""
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
