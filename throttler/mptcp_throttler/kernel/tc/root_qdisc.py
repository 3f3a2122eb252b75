# SPDX-License-Identifier: GPL-2.0-or-later
"""Saves an interface's root qdisc, and restores it exactly. tc(8), rtnetlink(7).

The saved data is the kernel's dump, byte for byte: kind and options of the root qdisc and of those below it. For the
kinds in :data:`RESTORABLE` these bytes recreate the tree. :func:`save` refuses other kinds, and trees with filters. A
default qdisc has handle 0: it returns when ours is removed.
"""

from __future__ import annotations

import base64
import errno
import struct
from graphlib import TopologicalSorter
from socket import NETLINK_ROUTE
from typing import NamedTuple

from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import REPLACE, NetlinkSocket, attribute, attributes, text
from mptcp_throttler.kernel.tc.link import Link

RTM_NEWQDISC, _RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTCLASS, RTM_GETTCLASS, _RTM_GETTFILTER = 40, 42, 46
TC_H_ROOT, _TC_H_INGRESS_MAJOR = 0xFFFFFFFF, 0xFFFF
TCA_KIND, TCA_OPTIONS, _TCA_STAB = 1, 2, 8
_SAVED_ATTRIBUTES = TCA_KIND, TCA_OPTIONS, _TCA_STAB

RESTORABLE = frozenset(
    "bfifo cake codel fq fq_codel fq_pie mq noqueue pfifo pfifo_fast pie prio sfq tbf".split()  # noqa: SIM905
)
"""Not htb and hfsc, whose classes are created one by one, and not red and netem: the kernel does not dump their
probability and delay tables."""
TCMSG = struct.Struct("=BxxxiIII")  # struct tcmsg: family, interface, handle, parent, info


class Saved(NamedTuple):
    """A dumped qdisc: its handles, and the attributes that recreate it, in base64."""

    handle: int
    parent: int
    kind: str
    attributes: str


def read_root(link: Link) -> Saved | None:
    """Return the root qdisc of *link*; None if the kernel shows none. Raises KernelError."""
    return next((saved for saved in _dump(link) if saved.parent == TC_H_ROOT), None)


def save(link: Link) -> list[Saved]:
    """Return the root tree of *link*; empty for the default qdisc. Raises KernelError if it cannot be restored."""
    interface, root = link.name, read_root(link)
    if root is None or root.handle == 0:
        return []
    qdiscs = [saved for saved in _dump(link) if saved.parent >> 16 != _TC_H_INGRESS_MAJOR or saved.parent == TC_H_ROOT]
    others = sorted({saved.kind for saved in qdiscs if saved.kind not in RESTORABLE})
    if others:
        raise KernelError(
            f"interface {interface} has a qdisc of kind {', '.join(others)}, which could not be restored exactly; "
            f"remove it (tc qdisc del dev {interface} root) or leave {interface} out of 'interfaces'"
        )
    if any(_has_filters(link, saved.handle) for saved in qdiscs if saved.handle):
        raise KernelError(
            f"the root qdisc of {interface} has filters, which could not be restored exactly; "
            f"remove them (tc filter del dev {interface}) or leave {interface} out of 'interfaces'"
        )
    by_handle = {saved.handle: saved for saved in qdiscs if saved.handle}
    # A parent is a class, which the qdisc with its major number creates.
    parents_first = TopologicalSorter({each.handle: [each.parent & 0xFFFF0000] for each in by_handle.values()})
    return [by_handle[handle] for handle in parents_first.static_order() if handle in by_handle]


def restore(link: Link, tree: list[Saved]) -> None:
    """Replace the root of *link* with *tree*, or with the default qdisc if that is empty. Raises KernelError."""
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        header = TCMSG.pack(0, link.index, 0, TC_H_ROOT, 0)
        missing = (errno.ENOENT, errno.EINVAL)
        netlink.request(_RTM_DELQDISC, 0, header, f"remove the root qdisc of {link.name}", ignore=missing)
        for saved in tree:
            operation = f"restore qdisc {saved.kind} {saved.handle >> 16:x}: of {link.name}"
            payload = TCMSG.pack(0, link.index, saved.handle, saved.parent, 0) + base64.b64decode(saved.attributes)
            netlink.request(RTM_NEWQDISC, REPLACE, payload, operation)


def _dump(link: Link) -> list[Saved]:
    qdiscs = []
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        for body in netlink.dump(RTM_GETQDISC, TCMSG.pack(0, link.index, 0, 0, 0), "list qdiscs"):
            _family, index, handle, parent, _info = TCMSG.unpack_from(body)
            if index != link.index:
                continue
            fields = dict(attributes(body, TCMSG.size))
            saved = b"".join(attribute(each, fields[each]) for each in _SAVED_ATTRIBUTES if each in fields)
            qdiscs.append(Saved(handle, parent, text(fields.get(TCA_KIND)), base64.b64encode(saved).decode()))
    return qdiscs


def _has_filters(link: Link, parent: int) -> bool:
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        return any(True for _ in netlink.dump(_RTM_GETTFILTER, TCMSG.pack(0, link.index, 0, parent, 0), "list filters"))
