"""Which subflows the kernel names when it announces a commit to the throttler's nftables maps.

The message is that of linux/netfilter/nf_tables.h. A key of these maps is the client's address and port, then the
proxy's, each padded to four bytes.
"""

from __future__ import annotations

from mptcp_throttler.kernel.netlink import attributes

_NFGENMSG, _ELEM_LIST_ELEMENTS, _ELEM_KEY = 4, 3, 1
_KEY_BYTES = 16


def announced_ports(body: bytes) -> set[int]:
    """Return the client ports of the elements of an NFT_MSG_NEWSETELEM message, of maps for IPv4."""
    found = set()
    for kind, elements in attributes(body, _NFGENMSG):
        for _, element in attributes(elements) if kind == _ELEM_LIST_ELEMENTS else ():
            for part, key in attributes(element):
                for _, value in attributes(key) if part == _ELEM_KEY else ():
                    if len(value) == _KEY_BYTES:
                        found.add(int.from_bytes(value[4:6], "big"))
    return found
