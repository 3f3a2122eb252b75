# SPDX-License-Identifier: GPL-2.0-or-later
"""Save an interface's root qdisc, and restore it exactly. tc(8), rtnetlink(7).

The saved data is the kernel's dump, byte for byte: kind and options of the root qdisc, its classes and the qdiscs below
them. For the kinds in :data:`RESTORABLE` these bytes recreate the tree. :func:`save` refuses other kinds and trees with
filters, which could not be restored. A default qdisc has handle 0: it returns when ours is removed.
"""

from __future__ import annotations

import base64
import errno
import struct
from graphlib import TopologicalSorter
from socket import NETLINK_ROUTE
from typing import NamedTuple

from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import REPLACE, NetlinkSocket, attribute, attributes, integer, text
from mptcp_throttler.kernel.tc.link import Link

RTM_NEWQDISC, _RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTCLASS, RTM_GETTCLASS, _RTM_GETTFILTER = 40, 42, 46
TC_H_ROOT, _TC_H_INGRESS_MAJOR = 0xFFFFFFFF, 0xFFFF
TCA_KIND, TCA_OPTIONS, _TCA_STAB, _TCA_HTB_INIT = 1, 2, 8, 2

RESTORABLE = frozenset(
    "bfifo cake codel fq fq_codel fq_pie hfsc htb mq noqueue pfifo pfifo_fast pie prio sfq tbf".split()  # noqa: SIM905
)
"""Without red and netem: the kernel does not dump their probability and delay tables."""
_CLASSES_BY_HAND = frozenset(["htb", "hfsc"])  # kinds whose classes are created one by one; others create their own
TCMSG = struct.Struct("=BxxxiIII")  # struct tcmsg: family, interface, handle, parent, info


class Saved(NamedTuple):
    """A dumped qdisc or class: netlink message type, handles, and the attributes that recreate it, in base64."""

    message: int
    handle: int
    parent: int
    kind: str
    attributes: str


def present(link: Link) -> Saved | None:
    """Return the root qdisc of *link*; None if the kernel shows none. Raises KernelError."""
    return next((saved for saved in _dump(RTM_GETQDISC, RTM_NEWQDISC, link) if saved.parent == TC_H_ROOT), None)


def save(link: Link) -> list[Saved]:
    """Return the root tree of *link*; empty for the default qdisc. Raises KernelError if it is not restorable."""
    interface, root = link.name, present(link)
    if root is None or root.handle == 0:
        return []
    qdiscs = [
        saved
        for saved in _dump(RTM_GETQDISC, RTM_NEWQDISC, link)
        if saved.parent >> 16 != _TC_H_INGRESS_MAJOR or saved.parent == TC_H_ROOT
    ]
    foreign = sorted({saved.kind for saved in qdiscs if saved.kind not in RESTORABLE})
    if foreign:
        raise KernelError(
            f"interface {interface} has a qdisc of kind {', '.join(foreign)}, which could not be restored exactly; "
            f"remove it (tc qdisc del dev {interface} root) or leave {interface} out of 'interfaces'"
        )
    classes = _dump(RTM_GETTCLASS, RTM_NEWTCLASS, link)
    if any(_has_filters(link, saved.handle) for saved in (*qdiscs, *classes) if saved.handle):
        raise KernelError(
            f"the root qdisc of {interface} has filters, which could not be restored exactly; "
            f"remove them (tc filter del dev {interface}) or leave {interface} out of 'interfaces'"
        )
    below = [saved for saved in qdiscs if saved.parent != TC_H_ROOT and saved.handle]
    by_hand = [saved for saved in classes if saved.kind in _CLASSES_BY_HAND]
    return [root, *_parents_first([*by_hand, *below])]


def restore(link: Link, tree: list[Saved]) -> None:
    """Replace the root of *link* with *tree*, or with the default qdisc if that is empty. Raises KernelError."""
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        header = TCMSG.pack(0, link.index, 0, TC_H_ROOT, 0)
        gone = (errno.ENOENT, errno.EINVAL)
        netlink.request(_RTM_DELQDISC, 0, header, f"remove the root qdisc of {link.name}", ignore=gone)
        for saved in tree:
            kind = "class" if saved.message == RTM_NEWTCLASS else "qdisc"
            what = f"restore {kind} {saved.kind} {saved.handle >> 16:x}:{saved.handle & 0xFFFF:x} of {link.name}"
            payload = TCMSG.pack(0, link.index, saved.handle, saved.parent, 0) + base64.b64decode(saved.attributes)
            netlink.request(saved.message, REPLACE, payload, what)


def _dump(get: int, new: int, link: Link) -> list[Saved]:
    found = []
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        for body in netlink.dump(get, TCMSG.pack(0, link.index, 0, 0, 0), "list qdiscs and classes"):
            _family, owner, handle, parent, _info = TCMSG.unpack_from(body)
            if owner != link.index:
                continue
            kind, kept = "", b""
            for number, payload in attributes(body, TCMSG.size):
                if number == TCA_KIND:
                    kind = text(payload)
                if number == TCA_OPTIONS and kind == "htb":
                    payload = _htb_version_as_asked_for(payload)  # noqa: PLW2901
                if number in (TCA_KIND, TCA_OPTIONS, _TCA_STAB):
                    kept += attribute(number, payload)
            found.append(Saved(new, handle, parent, kind, base64.b64encode(kept).decode()))
    return found


def _htb_version_as_asked_for(options: bytes) -> bytes:
    """Fix the version: HTB dumps it as major << 16 | minor, but accepts only the major number for a new qdisc."""
    fixed = b""
    for number, payload in attributes(options):
        if number == _TCA_HTB_INIT:
            payload = struct.pack("=I", integer(payload[:4]) >> 16) + payload[4:]  # noqa: PLW2901
        fixed += attribute(number, payload)
    return fixed


def _has_filters(link: Link, parent: int) -> bool:
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        return any(True for _ in netlink.dump(_RTM_GETTFILTER, TCMSG.pack(0, link.index, 0, parent, 0), "list filters"))


def _parents_first(objects: list[Saved]) -> list[Saved]:
    """Order qdiscs and classes so that each comes after its parents. A class also comes after the qdisc of its major
    number."""
    by_handle = {saved.handle: saved for saved in objects}
    parents = {}
    for handle, saved in by_handle.items():
        own_qdisc = {handle & 0xFFFF0000} if saved.message == RTM_NEWTCLASS else set[int]()
        parents[handle] = {saved.parent, saved.parent & 0xFFFF0000, *own_qdisc} - {handle}
    return [by_handle[handle] for handle in TopologicalSorter(parents).static_order() if handle in by_handle]
