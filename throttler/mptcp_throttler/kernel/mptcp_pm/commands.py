"""What the path manager in user space does to one subflow: make it backup or regular again, and close it.

SET_FLAGS and SUBFLOW_DESTROY of linux/mptcp_pm.h; RFC 8684, 3.3.8. By the first the kernel sends MP_PRIO to the peer
and, on its own side, gives a backup subflow data only while no regular one is usable. Its own path manager chooses by
local address, which all subflows of a one-armed proxy share; the one in user space, given the connection's token,
chooses by both ends. Only connections that were accepted while ``net.mptcp.pm_type`` was 1 are under it.
"""

from __future__ import annotations

import errno
import socket
import struct

from mptcp_throttler.kernel.mptcp_pm.events import find_family
from mptcp_throttler.kernel.netlink import NLA_NESTED, NetlinkSocket, attribute
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.mptcp.model import FourTuple, mapped

_NETLINK_GENERIC = 16
_CMD_SET_FLAGS, _CMD_SUBFLOW_DESTROY, _VERSION = 7, 11, 1
_ATTR_ADDR, _ATTR_TOKEN, _ATTR_ADDR_REMOTE = 1, 4, 6
_ADDR_FAMILY, _ADDR4, _ADDR6, _ADDR_PORT, _ADDR_FLAGS = 1, 3, 4, 5, 6
_FLAG_BACKUP = 1 << 2


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
