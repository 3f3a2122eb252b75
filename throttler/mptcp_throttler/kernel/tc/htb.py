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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from socket import NETLINK_ROUTE
from types import MappingProxyType
from typing import Any

from mptcp_throttler.kernel.libraries import NetlinkError
from mptcp_throttler.kernel.netlink import NLM_F_CREATE, NLM_F_REPLACE, NetlinkSocket
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.tc import htb_wire, root_qdisc
from mptcp_throttler.kernel.tc.link import Link
from mptcp_throttler.kernel.turns import in_turns
from mptcp_throttler.shaping.commands import (
    FULL_SPEED,
    FULL_SPEED_BURST,
    FULL_SPEED_QUANTUM,
    TBF_RATE,
    tbf_burst,
)
from mptcp_throttler.shaping.model import DEFAULT_MINOR, LINK_MINOR, MTU, ClassSpec, Ownership

_ENOENT = 2
_Request = tuple[str, int, int, bytes]
"""What it does in words, flags, type, payload."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The queueing discipline at the leaves: how to ask for it, and what its options say."""

    kind: str
    options: Callable[[ClassSpec], bytes]
    packets: Callable[[bytes], int]
    """The queue's length, from the options of the kernel's answer."""
    default: tuple[str, dict[str, Any]]
    """The kind and the arguments of what the class of everything else gets."""
    default_needed: bool
    """The kernel has to have it; else that class keeps the pfifo which HTB gives it."""


DOWN_LEAF = Leaf(
    "pfifo", lambda spec: htb_wire.pfifo_options(spec.queue_packets), htb_wire.pfifo_limit, ("fq_codel", {}), False
)
UP_LEAF = Leaf(
    "tbf",
    lambda spec: htb_wire.tbf_options(TBF_RATE // 8, tbf_burst(spec), spec.queue_packets * MTU),
    lambda options: htb_wire.tbf_limit(options) // MTU,
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
            root = self._ipr.tc("replace", "htb", link.index, self._root, default=DEFAULT_MINOR)
            await self._do(root, what, hints={_ENOENT: "; the kernel has no HTB (module sch_htb)"})
        # Both classes every time: a daemon may have been killed before it came to them, or somebody changed them.
        for minor, parent in self._fixed():
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

    async def upsert(self, links: Sequence[Link], specs: Iterable[ClassSpec]) -> None:
        """Make classes on all *links*, or change them; where some are refused, the others are made nevertheless."""
        await _request(request for spec in specs for link in links for request in self._requests(link, spec))

    def _requests(self, link: Link, spec: ClassSpec) -> Iterator[_Request]:
        """Yield what makes one class with its queue."""
        kind = NLM_F_CREATE | NLM_F_REPLACE
        classid = self._root | spec.minor
        what = f"set class {self._major:x}:{spec.minor:x} of {link.name} to {spec.rate} bit/s"
        rates = spec.rate // 8, spec.ceil // 8
        wanted = htb_wire.HtbClass(classid, self._root | LINK_MINOR, *rates, spec.burst, spec.cburst, spec.quantum)
        yield what, kind, htb_wire.RTM_NEWTCLASS, htb_wire.class_request(link.index, wanted)
        # The handle is that of the class with the numbers swapped: replacing it again then only changes its limit.
        queue = htb_wire.Queue(self._leaf.kind, spec.minor << 16 & 0xFFFFFFFF, classid, self._leaf.options(spec))
        yield what, kind, htb_wire.RTM_NEWQDISC, htb_wire.queue_request(link.index, queue)

    async def delete(self, links: Sequence[Link], minors: Iterable[int]) -> None:
        """Remove classes of all *links*; those that are gone are fine."""
        requests = (
            (
                f"remove class {self._major:x}:{minor:x} from {link.name}",
                0,
                htb_wire.RTM_DELTCLASS,
                htb_wire.class_name(link.index, self._root | minor),
            )
            for minor in minors
            for link in links
        )
        await _request(requests, ignore=(_ENOENT,))

    async def classes_of(self, link: Link) -> dict[int, ClassSpec]:
        """Return our leaf classes of *link* by minor number."""
        return (await self._read(link))[0]

    async def check(self, link: Link) -> list[str]:
        """Return in words what of :meth:`make_root` is not on *link* any more."""
        _, fixed, roots = await self._read(link)
        if ("htb", self._root) not in roots:
            return [f"our root qdisc is not on {link.name}"]
        return [
            f"class {self._major:x}:{minor:x} of {link.name} is not as we made it"
            for minor, parent in self._fixed()
            if minor not in fixed or not _is_full_speed(fixed[minor], parent)
        ]

    def _fixed(self) -> tuple[tuple[int, int], ...]:
        """Return minor number and parent of the two classes that are always there."""
        return (LINK_MINOR, self._root), (DEFAULT_MINOR, self._root | LINK_MINOR)

    async def _read(
        self, link: Link
    ) -> tuple[dict[int, ClassSpec], dict[int, htb_wire.HtbClass], set[tuple[str, int]]]:
        """Return our leaf classes and our fixed classes by minor number, and kind and handle of what is at the root."""
        limits: dict[int, int] = {}
        roots = set()
        specs, fixed = {}, {}
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            # The interface counts for classes only; qdiscs come of all.
            qdiscs = netlink.dump(root_qdisc.RTM_GETQDISC, htb_wire.TCMSG.pack(0, link.index, 0, 0, 0), "list qdiscs")
            async for body in in_turns(qdiscs):
                found = htb_wire.queue(body, link.index)
                if found is not None and found.parent == root_qdisc.TC_H_ROOT:
                    roots.add((found.kind, found.handle))
                elif found is not None and found.kind == self._leaf.kind:
                    limits[found.parent] = self._leaf.packets(found.options)
            what = f"list the classes of {link.name}"
            classes = netlink.dump(root_qdisc.RTM_GETTCLASS, htb_wire.TCMSG.pack(0, link.index, 0, 0, 0), what)
            async for body in in_turns(classes):
                each = htb_wire.htb_class(body, link.index)
                if each is None or each.handle >> 16 != self._major:
                    continue
                minor = each.handle & 0xFFFF
                if minor in (LINK_MINOR, DEFAULT_MINOR):
                    fixed[minor] = each
                else:
                    specs[minor] = ClassSpec(
                        minor=minor,
                        rate=each.rate * 8,
                        ceil=each.ceil * 8,
                        burst=each.burst,
                        cburst=each.cburst,
                        quantum=each.quantum,
                        queue_packets=limits.get(each.handle, 0),
                    )
        return specs, fixed, roots

    async def _do(
        self, call: Any, what: str, ignore: Sequence[int] = (), hints: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        try:
            await call
        except NetlinkError as error:
            if error.code not in ignore:
                raise KernelError(f"{what}: {os.strerror(error.code)}{hints.get(error.code, '')}") from error


def _is_full_speed(found: htb_wire.HtbClass, parent: int) -> bool:
    # The kernel gives the root as parent of a class that hangs on the root qdisc.
    hangs = found.parent in (parent, root_qdisc.TC_H_ROOT) if parent & 0xFFFF == 0 else found.parent == parent
    return hangs and (found.rate, found.ceil) == (FULL_SPEED // 8, FULL_SPEED // 8)


async def _request(requests: Iterable[_Request], ignore: Sequence[int] = ()) -> None:
    """Make requests; where some are refused, raise the first such KernelError afterwards."""
    failures: list[KernelError] = []  # the first alone: see ``runtime.garbage``
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        # The kernel takes up to a millisecond for a class where there are ten thousand.
        async for what, flags, kind, payload in in_turns(requests):
            try:
                netlink.request(kind, flags, payload, what, ignore)
            except KernelError as error:
                failures = failures or [error]
    if failures:
        raise failures.pop()
