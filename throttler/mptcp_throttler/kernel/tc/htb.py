"""Our HTB tree on one interface. tc-htb(8), linux/pkt_sched.h.

The tree is two levels deep: root qdisc, an inner class for the whole link, and below it the default class at
full speed and one leaf class for each cap. A packet chooses its class by ``skb->priority`` alone, which
netfilter sets to the class identifier; no tc filter is needed.

The leaf's queue differs: on egress a pfifo, because what is queued there was built no larger than ``gso_max_size``
allows; on what was received a tbf(8), which passes everything on at once but first cuts segments that the interface
merged (GRO) and that are larger than the class's burst: one of 64 KB would occupy a cap of 5 Mbit/s for 105 ms.

The root is made through pyroute2. Classes and their queues are written and read here: pyroute2 takes 0.3 ms for a class
that it reads and a whole datagram of them at once, and a cap for each of 10,000 clients is as many classes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from socket import NETLINK_ROUTE
from types import MappingProxyType
from typing import Any, NamedTuple

from mptcp_throttler.kernel.libraries import NetlinkError
from mptcp_throttler.kernel.netlink import NLM_F_CREATE, NLM_F_REPLACE, NetlinkSocket, attribute, attributes
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.scheduling import in_turns
from mptcp_throttler.kernel.tc import root_qdisc
from mptcp_throttler.kernel.tc.link import Link, find
from mptcp_throttler.shaping.commands import (
    FULL_SPEED,
    FULL_SPEED_BURST,
    FULL_SPEED_QUANTUM,
    TBF_RATE,
    tbf_burst,
)
from mptcp_throttler.shaping.model import DEFAULT_MINOR, LINK_MINOR, MTU, ClassCounters, ClassSpec, Ownership

_ENOENT = 2
TCMSG = struct.Struct("=BxxxiIII")
RTM_NEWQDISC, RTM_NEWTCLASS, RTM_DELTCLASS = 36, 40, 41
_TCA_KIND, _TCA_OPTIONS = 1, 2
_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64 = 1, 6, 7
_HTB_OPTIONS = struct.Struct("=8xI8xIIIIII")
"""struct tc_htb_opt: of the two struct tc_ratespec the rate only."""
_TBF_PARMS = 1
_TBF_LIMIT = struct.Struct("=24xI")
"""struct tc_tbf_qopt, after two struct tc_ratespec."""
_TICK_SECONDS = 64e-9
_TCA_STATS2, _STATS_BASIC, _STATS_QUEUE = 7, 1, 3
_BASIC, _QUEUE = struct.Struct("=QI"), struct.Struct("=8xI")
"""struct gnet_stats_basic; of struct gnet_stats_queue the drops."""
_ETHERNET = 1
"""TC_LINKLAYER_ETHERNET: without it the kernel would look for a table of rates."""
_RATE = struct.Struct("=BBHhHI")
"""struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate."""
_MAX_RATE_32 = 0xFFFFFFFF
_TBF_RATE64, _TBF_BURST = 4, 6
_Request = tuple[str, int, int, bytes]
"""What it does in words, flags, type, payload."""


class HtbClass(NamedTuple):
    """One class. Rates in bytes/s, sizes in bytes."""

    handle: int
    parent: int
    rate: int
    ceil: int
    burst: int
    cburst: int
    quantum: int


class Queue(NamedTuple):
    """One queueing discipline."""

    kind: str
    handle: int
    parent: int
    options: bytes


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
        wanted = HtbClass(classid, self._root | LINK_MINOR, *rates, spec.burst, spec.cburst, spec.quantum)
        yield what, kind, RTM_NEWTCLASS, _class_request(link.index, wanted)
        # The handle is that of the class with the numbers swapped: replacing it again then only changes its limit.
        queue = Queue(self._leaf.kind, spec.minor << 16 & 0xFFFFFFFF, classid, self._leaf.options(spec))
        yield what, kind, RTM_NEWQDISC, _queue_request(link.index, queue)

    async def delete(self, links: Sequence[Link], minors: Iterable[int]) -> None:
        """Remove classes of all *links*; those that are gone are fine."""
        requests = (
            (
                f"remove class {self._major:x}:{minor:x} from {link.name}",
                0,
                RTM_DELTCLASS,
                TCMSG.pack(0, link.index, self._root | minor, 0, 0),
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

    async def _read(self, link: Link) -> tuple[dict[int, ClassSpec], dict[int, HtbClass], set[tuple[str, int]]]:
        """Return our leaf classes and our fixed classes by minor number, and kind and handle of what is at the root."""
        limits: dict[int, int] = {}
        roots = set()
        specs, fixed = {}, {}
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            # The interface counts for classes only; qdiscs come of all.
            qdiscs = netlink.dump(root_qdisc.RTM_GETQDISC, TCMSG.pack(0, link.index, 0, 0, 0), "list qdiscs")
            async for body in in_turns(qdiscs):
                found = _queue(body, link.index)
                if found is not None and found.parent == root_qdisc.TC_H_ROOT:
                    roots.add((found.kind, found.handle))
                elif found is not None and found.kind == self._leaf.kind:
                    limits[found.parent] = self._leaf.packets(found.options)
            what = f"list the classes of {link.name}"
            classes = netlink.dump(root_qdisc.RTM_GETTCLASS, TCMSG.pack(0, link.index, 0, 0, 0), what)
            async for body in in_turns(classes):
                each = _htb_class(body, link.index)
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


def _is_full_speed(found: HtbClass, parent: int) -> bool:
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


def read_class_counters(interfaces: Iterable[str], major: int) -> dict[int, ClassCounters]:
    """Return the counters of our classes by minor number, those of all *interfaces* added up. Raises KernelError."""
    found: dict[int, ClassCounters] = {}
    for name in interfaces:
        link = find(name)
        if link is None:
            continue
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            question = TCMSG.pack(0, link.index, 0, 0, 0)
            for body in netlink.dump(root_qdisc.RTM_GETTCLASS, question, f"list the classes of {name}"):
                each = _class_counters(body, link.index)
                if each is None or each[0] >> 16 != major:
                    continue
                minor = each[0] & 0xFFFF
                before = found.get(minor, ClassCounters(0, 0, 0))
                found[minor] = ClassCounters(*(one + more for one, more in zip(before, each[1:], strict=True)))
    return found


# The wire form


def _queue(body: bytes, index: int) -> Queue | None:
    """Return what an RTM_NEWQDISC says; None for another interface's."""
    _family, owner, handle, parent, _info = TCMSG.unpack_from(body)
    if owner != index:
        return None
    fields = dict(attributes(body, TCMSG.size))
    kind = fields.get(_TCA_KIND, b"").rstrip(b"\0").decode()
    return Queue(kind, handle, parent, fields.get(_TCA_OPTIONS, b""))


def _htb_class(body: bytes, index: int) -> HtbClass | None:
    """Return what an RTM_NEWTCLASS says; None for another interface's and for one that is not HTB's."""
    _family, owner, handle, parent, _info = TCMSG.unpack_from(body)
    if owner != index:
        return None
    fields = dict(attributes(body, TCMSG.size))
    options = dict(attributes(fields.get(_TCA_OPTIONS, b"")))
    parameters = options.get(_HTB_PARMS, b"")
    if fields.get(_TCA_KIND) != b"htb\0" or len(parameters) < _HTB_OPTIONS.size:
        return None
    rate, ceil, buffer, cbuffer, quantum, _level, _priority = _HTB_OPTIONS.unpack_from(parameters)
    # 32 bits are not enough for 34 Gbit/s.
    rate = int.from_bytes(options.get(_HTB_RATE64, b""), "little") or rate
    ceil = int.from_bytes(options.get(_HTB_CEIL64, b""), "little") or ceil
    burst, cburst = round(buffer * _TICK_SECONDS * rate), round(cbuffer * _TICK_SECONDS * ceil)
    return HtbClass(handle, parent, rate, ceil, burst, cburst, quantum)


def _class_counters(body: bytes, index: int) -> tuple[int, int, int, int] | None:
    """Return handle, bytes, packets and drops that an RTM_NEWTCLASS says; None for another interface's."""
    _family, owner, handle, _parent, _info = TCMSG.unpack_from(body)
    if owner != index:
        return None
    counters = dict(attributes(dict(attributes(body, TCMSG.size)).get(_TCA_STATS2, b"")))
    basic, queue = counters.get(_STATS_BASIC, b""), counters.get(_STATS_QUEUE, b"")
    if len(basic) < _BASIC.size or len(queue) < _QUEUE.size:
        return None
    passed, packets = _BASIC.unpack_from(basic)
    return handle, passed, packets, _QUEUE.unpack_from(queue)[0]


def _pfifo_limit(options: bytes) -> int:
    """Return the limit of a pfifo, packets; of a bfifo, bytes."""
    return int.from_bytes(options[:4], "little")


def _tbf_limit(options: bytes) -> int:
    """Return the limit of a tbf, bytes."""
    parameters = dict(attributes(options)).get(_TBF_PARMS, b"")
    return int(_TBF_LIMIT.unpack_from(parameters)[0]) if len(parameters) >= _TBF_LIMIT.size else 0


def _class_request(index: int, wanted: HtbClass) -> bytes:
    """Return the payload of the RTM_NEWTCLASS that makes or changes a class of interface *index*."""
    ticks = (
        min(0xFFFFFFFF, round(size / rate / _TICK_SECONDS))
        for size, rate in ((wanted.burst, wanted.rate), (wanted.cburst, wanted.ceil))
    )
    options = attribute(
        _HTB_PARMS, _rate(wanted.rate) + _rate(wanted.ceil) + struct.pack("=IIIII", *ticks, wanted.quantum, 0, 0)
    )
    for kind, rate in ((_HTB_RATE64, wanted.rate), (_HTB_CEIL64, wanted.ceil)):
        if rate > _MAX_RATE_32:
            options += attribute(kind, struct.pack("=Q", rate))
    return _message(index, wanted.handle, wanted.parent, "htb", options)


def _queue_request(index: int, wanted: Queue) -> bytes:
    """Return the payload of the RTM_NEWQDISC that makes or changes a queueing discipline of interface *index*."""
    return _message(index, wanted.handle, wanted.parent, wanted.kind, wanted.options)


def _pfifo_options(packets: int) -> bytes:
    return struct.pack("=I", packets)


def _tbf_options(rate: int, burst: int, limit: int) -> bytes:
    """Return the options of a tbf: bytes/s, bytes, bytes."""
    parameters = _rate(rate) + _RATE.pack(0, 0, 0, 0, 0, 0) + struct.pack("=III", limit, 0, 0)
    options = attribute(_TBF_PARMS, parameters) + attribute(_TBF_BURST, struct.pack("=I", burst))
    return options + (attribute(_TBF_RATE64, struct.pack("=Q", rate)) if rate > _MAX_RATE_32 else b"")


def _rate(rate: int) -> bytes:
    return _RATE.pack(0, _ETHERNET, 0, 0, 0, min(rate, _MAX_RATE_32))


def _message(index: int, handle: int, parent: int, kind: str, options: bytes) -> bytes:
    name = attribute(_TCA_KIND, kind.encode() + b"\0")
    return TCMSG.pack(0, index, handle, parent, 0) + name + attribute(_TCA_OPTIONS, options)


DOWN_LEAF = Leaf("pfifo", lambda spec: _pfifo_options(spec.queue_packets), _pfifo_limit, ("fq_codel", {}), False)
UP_LEAF = Leaf(
    "tbf",
    lambda spec: _tbf_options(TBF_RATE // 8, tbf_burst(spec), spec.queue_packets * MTU),
    lambda options: _tbf_limit(options) // MTU,
    ("tbf", {"rate": TBF_RATE // 8, "burst": FULL_SPEED_BURST, "limit": 1000 * MTU}),
    True,
)
