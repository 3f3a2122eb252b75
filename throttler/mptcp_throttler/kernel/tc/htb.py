# SPDX-License-Identifier: GPL-2.0-or-later
"""Our HTB tree on one interface, and the IFB device that carries one for uploads. tc-htb(8), linux/pkt_sched.h.

The root qdisc has an inner class for the whole link. Below it are the default class at full speed and one leaf class
per cap. ``skb->priority`` selects the class, so no tc filter is needed. The leaf qdisc is a pfifo on egress, where
``gso_max_size`` limits segments. For received packets it is a tbf(8), which does not delay them but splits merged
segments (GRO) that exceed the class's burst: 64 KB at once would occupy a cap of 5 Mbit/s for 105 ms.

pyroute2 creates only the root and the device. It takes 0.3 ms to parse a class, and does not yield to the event loop
within a datagram; caps for 10,000 clients need 10,000 classes.

The IFB device (drivers/net/ifb.c) gets received packets of capped subflows from nftables (``NftTable``), shapes them
and reinjects them where they came in. One device serves all interfaces. A restarted daemon adopts it by its name.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from socket import NETLINK_ROUTE
from types import MappingProxyType
from typing import Any

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import REPLACE, NetlinkSocket, attribute, attributes, bind_as_ours, integer, text
from mptcp_throttler.kernel.scheduling import in_slices
from mptcp_throttler.kernel.tc import root_qdisc
from mptcp_throttler.kernel.tc.link import Link, find_link
from mptcp_throttler.kernel.tc.root_qdisc import TC_H_ROOT, TCA_KIND, TCA_OPTIONS, TCMSG
from mptcp_throttler.shaping.commands import FULL_SPEED, FULL_SPEED_BURST, FULL_SPEED_QUANTUM, TBF_RATE, tbf_burst
from mptcp_throttler.shaping.model import (
    DEFAULT_MINOR,
    LINK_MINOR,
    MTU,
    UPLOAD_DEVICE,
    ClassCounters,
    ClassSpec,
    Ownership,
)

_RTM_DELTCLASS = 41
_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64 = 1, 6, 7
_HTB_OPTIONS = struct.Struct("=8xI8xIIIIII")  # struct tc_htb_opt; only the rate of each struct tc_ratespec
_TBF_PARMS, _TBF_BURST = 1, 6
_TBF_LIMIT = struct.Struct("=24xI")  # struct tc_tbf_qopt, after two struct tc_ratespec
_TICK_SECONDS = 64e-9
_TCA_STATS2, _STATS_BASIC, _STATS_QUEUE = 7, 1, 3
_BASIC, _QUEUE = struct.Struct("=QI"), struct.Struct("=8xI")
"""struct gnet_stats_basic; drops of struct gnet_stats_queue."""
_ETHERNET = 1  # TC_LINKLAYER_ETHERNET: without it the kernel requires a rate table
_RATE = struct.Struct("=BBHhHI")  # struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate
_MAX_RATE_32 = 0xFFFFFFFF
_UNCAPPED = ClassSpec(0, FULL_SPEED, FULL_SPEED, FULL_SPEED_BURST, FULL_SPEED_BURST, FULL_SPEED_QUANTUM, 0)
_Request = tuple[str, int, int, bytes]  # description, flags, type, payload


class HtbTree:
    """The tree's operations, in the current network namespace. All raise KernelError if the kernel refuses."""

    def __init__(self, ownership: Ownership, for_received: bool = False) -> None:
        self._major = ownership.htb_major
        self._root = ownership.htb_major << 16
        self._fixed_classes = (LINK_MINOR, self._root), (DEFAULT_MINOR, self._root | LINK_MINOR)
        self._for_received = for_received
        self._leaf_kind = "tbf" if for_received else "pfifo"

    def is_ours(self, link: Link) -> bool:
        root = root_qdisc.read_root(link)
        return root is not None and (root.kind, root.handle) == ("htb", self._root)

    async def install_root(self, link: Link) -> None:
        """Install or adopt our root with its two fixed classes on *link*."""
        operation = f"install HTB at the root of {link.name}"
        is_new = not self.is_ours(link)
        if is_new:
            try:
                async with _iproute() as ipr:
                    await ipr.tc("replace", "htb", link.index, self._root, default=DEFAULT_MINOR)
            except NetlinkError as error:
                hint = "; the kernel has no HTB (module sch_htb)" if error.code == errno.ENOENT else ""
                raise KernelError(f"{operation}: {os.strerror(error.code)}{hint}") from error
        # Always set both classes: a daemon may have been killed before it did, or another program changed them.
        for minor, parent in self._fixed_classes:
            await _request([self._class_request(operation, link, replace(_UNCAPPED, minor=minor), parent)])
        if is_new:
            kind, options = ("tbf", _tbf(FULL_SPEED_BURST, 1000 * MTU)) if self._for_received else ("fq_codel", b"")
            operation = f"set the default queue of {link.name} to {kind}"
            queue = _message(link.index, 0, self._root | DEFAULT_MINOR, kind, options)
            # Without fq_codel in the kernel the default class keeps HTB's own pfifo.
            ignored = () if self._for_received else (errno.ENOENT,)
            await _request([(operation, REPLACE, root_qdisc.RTM_NEWQDISC, queue)], ignored)

    async def upsert(self, links: Sequence[Link], specs: Iterable[ClassSpec]) -> None:
        """Create or change classes on all *links*; if the kernel refuses some, still make the others."""
        await _request(request for spec in specs for link in links for request in self._class_and_queue(link, spec))

    def _class_and_queue(self, link: Link, spec: ClassSpec) -> Iterator[_Request]:
        operation = f"set class {self._major:x}:{spec.minor:x} of {link.name} to {spec.rate} bit/s"
        yield self._class_request(operation, link, spec, self._root | LINK_MINOR)
        # With a fixed handle (the class's minor as major) a second replace only changes the limit.
        handle, options = spec.minor << 16 & 0xFFFFFFFF, struct.pack("=I", spec.queue_packets)
        if self._for_received:
            options = _tbf(tbf_burst(spec), spec.queue_packets * MTU)
        queue = _message(link.index, handle, self._root | spec.minor, self._leaf_kind, options)
        yield operation, REPLACE, root_qdisc.RTM_NEWQDISC, queue

    def _class_request(self, operation: str, link: Link, spec: ClassSpec, parent: int) -> _Request:
        rate, ceil = spec.rate // 8, spec.ceil // 8
        ticks = (
            min(0xFFFFFFFF, round(size / speed / _TICK_SECONDS))
            for size, speed in ((spec.burst, rate), (spec.cburst, ceil))
        )
        options = attribute(_HTB_PARMS, _rate(rate) + _rate(ceil) + struct.pack("=IIIII", *ticks, spec.quantum, 0, 0))
        for kind, speed in ((_HTB_RATE64, rate), (_HTB_CEIL64, ceil)):
            if speed > _MAX_RATE_32:
                options += attribute(kind, struct.pack("=Q", speed))
        body = _message(link.index, self._root | spec.minor, parent, "htb", options)
        return operation, REPLACE, root_qdisc.RTM_NEWTCLASS, body

    async def delete(self, links: Sequence[Link], minors: Iterable[int]) -> None:
        """Remove classes from all *links*; ignore missing classes."""

        def request(minor: int, link: Link) -> _Request:
            operation = f"remove class {self._major:x}:{minor:x} from {link.name}"
            return operation, 0, _RTM_DELTCLASS, TCMSG.pack(0, link.index, self._root | minor, 0, 0)

        await _request((request(minor, link) for minor in minors for link in links), ignore=(errno.ENOENT,))

    async def read(self, link: Link) -> tuple[list[str], dict[int, ClassSpec]]:
        """Return deviations from :meth:`install_root` on *link*, as texts, and our leaf classes by minor number."""
        queue_packets: dict[int, int] = {}
        is_ours = False
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            # The kernel filters only class dumps by interface: a qdisc dump covers all interfaces.
            async for body in in_slices(netlink.dump(root_qdisc.RTM_GETQDISC, _dump_request(link), "list qdiscs")):
                handle, parent, kind, options = _parse(body, link, TCA_OPTIONS)
                if parent == TC_H_ROOT:
                    is_ours = is_ours or (kind, handle) == ("htb", self._root)
                elif kind == self._leaf_kind:
                    queue_packets[parent] = _tbf_packets(options) if self._for_received else integer(options[:4])
            specs: dict[int, ClassSpec] = {}
            parents: dict[int, int] = {}
            classes = netlink.dump(root_qdisc.RTM_GETTCLASS, _dump_request(link), f"list the classes of {link.name}")
            async for body in in_slices(classes):
                handle, parent, kind, options = _parse(body, link, TCA_OPTIONS)
                if kind == "htb" and handle >> 16 == self._major:
                    minor = handle & 0xFFFF
                    specs[minor] = _spec(minor, options, queue_packets.get(handle, 0))
                    parents[minor] = parent
        problems = [] if is_ours else [f"our root qdisc is not on {link.name}"]
        for minor, parent in self._fixed_classes:
            spec = specs.pop(minor, None)
            # The kernel reports TC_H_ROOT as parent of a class directly below the root qdisc.
            has_parent = parents.get(minor) in (parent, TC_H_ROOT if minor == LINK_MINOR else parent)
            if is_ours and not (spec and has_parent and (spec.rate, spec.ceil) == (FULL_SPEED, FULL_SPEED)):
                problems.append(f"class {self._major:x}:{minor:x} of {link.name} was changed")
        return problems, specs


class IfbTrafficControl:
    """Implements ``TrafficControl`` for the IFB device of the network namespace in which it is used."""

    settled = True
    left_out: Mapping[str, str] = MappingProxyType({})  # always empty: there is no other interface

    def __init__(self, ownership: Ownership) -> None:
        self._tree = HtbTree(ownership, for_received=True)

    async def prepare(self) -> None:
        try:
            async with _iproute() as ipr:
                if _upload_device() is None:
                    await ipr.link("add", ifname=UPLOAD_DEVICE, kind="ifb")
                link = _upload_device()
                if link is None:
                    raise KernelError(f"the IFB device {UPLOAD_DEVICE} was deleted after its creation")
                await ipr.link("set", index=link.index, state="up")
        except NetlinkError as error:
            raise KernelError(
                f"create the IFB device {UPLOAD_DEVICE}, which rules for uploads need (kernel module ifb): "
                f"{os.strerror(error.code)}"
            ) from error
        await self._tree.install_root(link)

    async def settle(self) -> None:
        """Do nothing: there are no settings other than root and classes."""

    async def read(self) -> tuple[list[str], dict[int, ClassSpec]]:
        link = _upload_device()
        if link is None:
            return [f"the IFB device {UPLOAD_DEVICE} does not exist"], {}
        problems, classes = await self._tree.read(link)
        return problems if link.up else [f"the IFB device {UPLOAD_DEVICE} is down"], classes

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None:
        await self._tree.upsert([self._device()], specs)

    async def delete_classes(self, minors: Iterable[int]) -> None:
        await self._tree.delete([self._device()], minors)

    async def restore(self) -> None:
        link = _upload_device()
        if link is not None:
            try:
                async with _iproute() as ipr:
                    await ipr.link("del", index=link.index)
            except NetlinkError as error:
                raise KernelError(f"remove the IFB device {UPLOAD_DEVICE}: {error}") from error

    def _device(self) -> Link:
        link = _upload_device()
        if link is None:
            raise KernelError(f"the IFB device {UPLOAD_DEVICE} does not exist")
        return link


def _upload_device() -> Link | None:
    """Return the IFB device, or None. Raises KernelError if another interface has its name."""
    link = find_link(UPLOAD_DEVICE)
    if link is not None and link.kind != "ifb":
        raise KernelError(f"interface {UPLOAD_DEVICE} is not an IFB device; rules for uploads need this name")
    return link


@asynccontextmanager
async def _iproute() -> AsyncIterator[Any]:
    """Open an AsyncIPRoute whose changes ``kernel.notices`` recognizes as ours. Raises KernelError."""
    async with AsyncExitStack() as stack:
        try:
            ipr = await stack.enter_async_context(AsyncIPRoute())
            bind_as_ours(ipr.socket)
        except OSError as error:  # no descriptor or memory is left
            raise KernelError(f"open a netlink socket: {error.strerror}") from error
        yield ipr


async def _request(requests: Iterable[_Request], ignore: Sequence[int] = ()) -> None:
    failures: list[KernelError] = []  # only the first; a list avoids a reference cycle (``runtime.event_loop``)
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        # With 10,000 classes the kernel takes up to 1 ms for each.
        async for operation, flags, kind, payload in in_slices(requests):
            try:
                netlink.request(kind, flags, payload, operation, ignore)
            except KernelError as error:
                failures = failures or [error]
    if failures:
        raise failures.pop()


def read_class_counters(interfaces: Iterable[str], major: int) -> dict[int, ClassCounters]:
    """Return the counters of our classes by minor number, summed over *interfaces*. Raises KernelError."""
    totals: dict[int, ClassCounters] = {}
    for link in filter(None, map(find_link, interfaces)):
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            for body in netlink.dump(root_qdisc.RTM_GETTCLASS, _dump_request(link), f"list the classes of {link.name}"):
                handle, _parent, _kind, statistics = _parse(body, link, _TCA_STATS2)
                counters = dict(attributes(statistics))
                basic, queue = counters.get(_STATS_BASIC, b""), counters.get(_STATS_QUEUE, b"")
                if handle >> 16 != major or len(basic) < _BASIC.size or len(queue) < _QUEUE.size:
                    continue
                values = *_BASIC.unpack_from(basic), *_QUEUE.unpack_from(queue)
                previous = totals.get(handle & 0xFFFF, ClassCounters(0, 0, 0))
                totals[handle & 0xFFFF] = ClassCounters(*map(sum, zip(previous, values, strict=True)))
    return totals


def _dump_request(link: Link) -> bytes:
    return TCMSG.pack(0, link.index, 0, 0, 0)


def _parse(body: bytes, link: Link, attribute_type: int) -> tuple[int, int, str, bytes]:
    """Return handle, parent, kind and one attribute of a qdisc or class; zeros and empty values if not on *link*."""
    _family, index, handle, parent, _info = TCMSG.unpack_from(body)
    if index != link.index:
        return 0, 0, "", b""
    fields = dict(attributes(body, TCMSG.size))
    return handle, parent, text(fields.get(TCA_KIND)), fields.get(attribute_type, b"")


def _spec(minor: int, options: bytes, queue_packets: int) -> ClassSpec:
    fields = dict(attributes(options))
    rate, ceil, buffer, cbuffer, quantum, _level, _priority = _HTB_OPTIONS.unpack_from(fields[_HTB_PARMS])
    # The 32-bit rate field (bytes/s) holds at most 34 Gbit/s.
    rate = integer(fields.get(_HTB_RATE64, b"")) or rate
    ceil = integer(fields.get(_HTB_CEIL64, b"")) or ceil
    burst, cburst = round(buffer * _TICK_SECONDS * rate), round(cbuffer * _TICK_SECONDS * ceil)
    return ClassSpec(minor, rate * 8, ceil * 8, burst, cburst, quantum, queue_packets)


def _rate(rate: int) -> bytes:
    return _RATE.pack(0, _ETHERNET, 0, 0, 0, min(rate, _MAX_RATE_32))


def _message(index: int, handle: int, parent: int, kind: str, options: bytes) -> bytes:
    options = attribute(TCA_OPTIONS, options) if options else b""
    return TCMSG.pack(0, index, handle, parent, 0) + attribute(TCA_KIND, kind.encode() + b"\0") + options


def _tbf(burst: int, limit: int) -> bytes:
    """Return the options of a tbf that does not limit the rate. Sizes are in bytes."""
    parameters = _rate(TBF_RATE // 8) + _RATE.pack(0, 0, 0, 0, 0, 0) + struct.pack("=III", limit, 0, 0)
    return attribute(_TBF_PARMS, parameters) + attribute(_TBF_BURST, struct.pack("=I", burst))


def _tbf_packets(options: bytes) -> int:
    parameters = dict(attributes(options)).get(_TBF_PARMS, b"")
    return int(_TBF_LIMIT.unpack_from(parameters)[0]) // MTU if len(parameters) >= _TBF_LIMIT.size else 0
