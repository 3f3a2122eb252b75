"""What of ours may be in ipset and in the tables of legacy iptables, without touching the latter.

To ask iptables for a table makes it, for which every packet then pays, and no table can be unmade.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mptcp_throttler.kernel.netfilter import ipset
from mptcp_throttler.kernel.netlink import NETLINK_NETFILTER, NetlinkSocket
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.shaping.model import SET_PREFIX

_OUR_NAME = re.compile(rf"{SET_PREFIX}-[46]-[0-9]{{1,5}}")
"""Of any port: the daemon that left a set may have had others."""


def in_use() -> bool:
    """Return whether there may be anything of ours; nothing changes by asking."""
    return _has_our_sets() or bool(registered())


def all_sets() -> Iterator[bytes]:
    """Yield the messages that list the sets of everybody. Raises KernelError, OSError."""
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        yield from netlink.dump(ipset.CMD_LIST, ipset.header("", False)[:12], "list sets")


def is_our_set(name: str) -> bool:
    """Return whether a set of that *name* is ours, by the contract: others may begin as ours do."""
    return _OUR_NAME.fullmatch(name) is not None


def registered() -> list[bool]:
    """Return for which families, IPv6 or not, this network namespace has the table mangle.

    Root alone may ask. For others our sets say it, which our rules hold in place.
    """
    found = []
    for is_ipv6, name in ((False, "ip_tables_names"), (True, "ip6_tables_names")):
        with suppress(FileNotFoundError):
            try:
                names = Path("/proc/thread-self/net", name).read_text().split()
            except PermissionError:
                return [False, True] if _has_our_sets() else []
            if "mangle" in names:
                found.append(is_ipv6)
    return found


def _has_our_sets() -> bool:
    with suppress(KernelError, OSError):
        return any(is_our_set(ipset.name(message)) for message in all_sets())
    return False
