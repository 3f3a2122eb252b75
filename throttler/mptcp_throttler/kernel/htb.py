"""Our HTB tree on one interface, through pyroute2. tc-htb(8).

The tree is two levels deep: root qdisc, an inner class for the whole link, and below it the default class at
full speed and one leaf class for each cap. A packet chooses its class by ``skb->priority`` alone, which
netfilter sets to the class identifier; no tc filter is needed.

The leaf's queue differs: on egress a pfifo, because what is queued there was built no larger than ``gso_max_size``
allows; on what was received a tbf(8), which passes everything on at once but first cuts segments that the interface
merged (GRO) and that are larger than the class's burst: one of 64 KB would occupy a cap of 5 Mbit/s for 105 ms.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from socket import NETLINK_ROUTE
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from ..shaping.model import DEFAULT_MINOR, LINK_MINOR, MTU, ClassSpec, Ownership
from ..shaping.words import (
    FULL_SPEED,
    FULL_SPEED_BURST,
    FULL_SPEED_QUANTUM,
    TBF_RATE,
    tbf_burst,
)
from . import root_qdisc
from .netlink import NetlinkSocket
from .ports import KernelError

_TICK_SECONDS = 64e-9
_ENOENT = 2


@dataclass(frozen=True, slots=True)
class Link:
    """An interface that is there."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """The queueing discipline at the leaves: how to ask for it, and what its options say."""

    kind: str
    arguments: Callable[[ClassSpec], dict[str, Any]]
    packets: Callable[[Any], int]
    """The queue's length, from the options of the kernel's answer."""
    default: tuple[str, dict[str, Any]]
    """The kind and the arguments of what the class of everything else gets."""
    default_needed: bool
    """The kernel has to have it; else that class keeps the pfifo which HTB gives it."""


DOWN_LEAF = Leaf(
    "pfifo", lambda spec: {"limit": spec.queue_packets}, lambda options: int(options["limit"]), ("fq_codel", {}), False
)
UP_LEAF = Leaf(
    "tbf",
    lambda spec: {
        "rate": TBF_RATE // 8,
        "burst": tbf_burst(spec),
        "limit": spec.queue_packets * MTU,
    },
    lambda options: int(options.get_attr("TCA_TBF_PARMS")["limit"]) // MTU,
    ("tbf", {"rate": TBF_RATE // 8, "burst": FULL_SPEED_BURST, "limit": 1000 * MTU}),
    True,
)


class HtbTree:
    """The tree's operations. All raise :class:`KernelError` for what the kernel refuses."""

    def __init__(self, ipr: Any, ownership: Ownership, leaf: Leaf) -> None:
        """*ipr* is an open AsyncIPRoute."""
        self._ipr = ipr
        self._major = ownership.htb_major
        self._root = ownership.htb_major << 16
        self._leaf = leaf

    def is_ours(self, netlink: NetlinkSocket, link: Link) -> bool:
        """Tell whether our root qdisc is on *link*."""
        return root_qdisc.root_handle(netlink, link.index) == ("htb", self._root)

    async def make_root(self, link: Link) -> None:
        """Put our root with its two fixed classes on *link*, or adopt it."""
        what = f"put HTB at the root of {link.name}"
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            fresh = not self.is_ours(netlink, link)
        if fresh:
            await self._do(self._ipr.tc("replace", "htb", link.index, self._root, default=DEFAULT_MINOR), what)
        # Both classes every time: a daemon may have been killed before it came to them, or somebody changed them.
        for minor, parent in ((LINK_MINOR, self._root), (DEFAULT_MINOR, self._root | LINK_MINOR)):
            await self._do(
                self._ipr.tc(
                    "replace-class",
                    "htb",
                    link.index,
                    self._root | minor,
                    parent=parent,
                    quantum=FULL_SPEED_QUANTUM,
                    rate=FULL_SPEED // 8,
                    ceil=FULL_SPEED // 8,
                    burst=FULL_SPEED_BURST,
                    cburst=FULL_SPEED_BURST,
                ),
                what,
            )
        if not fresh:
            return
        kind, arguments = self._leaf.default
        call = self._ipr.tc("replace", kind, link.index, 0, parent=self._root | DEFAULT_MINOR, **arguments)
        ignored = () if self._leaf.default_needed else (_ENOENT,)
        await self._do(call, f"queue what is not capped on {link.name} with {kind}", ignored)

    async def upsert(self, link: Link, spec: ClassSpec) -> None:
        """Make the class *spec* of *link*, or change it."""
        classid = self._root | spec.minor
        what = f"set class {self._major:x}:{spec.minor:x} of {link.name} to {spec.rate} bit/s"
        await self._do(
            self._ipr.tc(
                "replace-class",
                "htb",
                link.index,
                classid,
                parent=self._root | LINK_MINOR,
                rate=spec.rate // 8,
                ceil=spec.ceil // 8,
                burst=spec.burst,
                cburst=spec.cburst,
                quantum=spec.quantum,
            ),
            what,
        )
        # The handle is that of the class with the numbers swapped: replacing it again then only changes its limit.
        arguments = self._leaf.arguments(spec)
        call = self._ipr.tc("replace", self._leaf.kind, link.index, spec.minor << 16, parent=classid, **arguments)
        await self._do(call, what)

    async def delete(self, link: Link, minor: int) -> None:
        """Remove a class of *link*; one that is gone is fine."""
        await self._do(
            self._ipr.tc("del-class", index=link.index, handle=self._root | minor),
            f"remove class {self._major:x}:{minor:x} from {link.name}",
            ignore=(_ENOENT,),
        )

    async def classes_of(self, link: Link) -> dict[int, ClassSpec]:
        """Return our leaf classes of *link* by minor number."""
        try:
            return await self._dump_classes(link)
        except NetlinkError as error:
            raise KernelError(f"list the classes of {link.name}: {error}") from error

    async def _dump_classes(self, link: Link) -> dict[int, ClassSpec]:
        limits: dict[int, int] = {}
        async for qdisc in await self._ipr.get_qdiscs(index=link.index):
            if qdisc.get_attr("TCA_KIND") == self._leaf.kind:
                limits[qdisc["parent"]] = self._leaf.packets(qdisc.get_attr("TCA_OPTIONS"))
        specs = {}
        async for found in await self._ipr.get_classes(index=link.index):
            handle, minor = found["handle"], found["handle"] & 0xFFFF
            if handle >> 16 != self._major or minor in (LINK_MINOR, DEFAULT_MINOR):
                continue
            parms = found.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")
            rate, ceil = (
                found.get_attr("TCA_OPTIONS").get_attr(f"TCA_HTB_{n}64") or parms[n.lower()] for n in ("RATE", "CEIL")
            )
            specs[minor] = ClassSpec(
                minor=minor,
                rate=rate * 8,
                ceil=ceil * 8,
                burst=round(parms["buffer"] * _TICK_SECONDS * rate),
                cburst=round(parms["cbuffer"] * _TICK_SECONDS * ceil),
                quantum=parms["quantum"],
                queue_packets=limits.get(handle, 0),
            )
        return specs

    async def _do(self, call: Any, what: str, ignore: Sequence[int] = ()) -> None:
        try:
            await call
        except NetlinkError as error:
            if error.code not in ignore:
                raise KernelError(f"{what}: {os.strerror(error.code)}") from error
