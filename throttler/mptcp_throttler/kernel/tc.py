"""Traffic control: our HTB tree on every egress interface, through pyroute2. tc-htb(8).

The tree is two levels deep: root qdisc, an inner class for the whole link, and below it the default class at
full speed and one leaf class for each cap. A packet chooses its class by ``skb->priority`` alone, which
netfilter sets to the class identifier; no tc filter is needed.

What stood at the root before, and the interface's largest GSO segment, are written to the state directory
before they are replaced, so that a crashed daemon's successor or ``cleanup`` can put them back.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import NETLINK_ROUTE
from typing import Any

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from ..shaping.model import DEFAULT_MINOR, LINK_MINOR, ClassSpec, Ownership
from ..shaping.words import FULL_SPEED, FULL_SPEED_BURST, FULL_SPEED_QUANTUM
from . import root_qdisc
from .netlink import NetlinkSocket
from .ports import KernelError

log = logging.getLogger(__name__)

_TICK_SECONDS = 64e-9
_ENOENT, _ENODEV = 2, 19


@dataclass(frozen=True, slots=True)
class _Link:
    name: str
    index: int
    gso_max_size: int


class HtbTrafficControl:
    """The TrafficControl port on real interfaces, all of the namespace it is opened in."""

    def __init__(
        self,
        interfaces: Sequence[str],
        ownership: Ownership,
        state_directory: Path,
        gso_max_size: int | None = None,
    ) -> None:
        self._interfaces = tuple(interfaces)
        self._ownership = ownership
        self._state_file = state_directory / "replaced.json"
        self._gso_max_size = gso_max_size
        self._ipr: Any = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[HtbTrafficControl]:
        async with AsyncIPRoute() as self._ipr:
            yield self

    @property
    def _root(self) -> int:
        return self._ownership.htb_major << 16

    async def prepare(self) -> None:
        links = [await self._link(name) for name in self._interfaces]
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            ours = {link.name: self._is_ours(netlink, link) for link in links}
            state = self._read_state()
            for link in links:
                if not ours[link.name]:
                    tree = root_qdisc.save(netlink, link.index, link.name)
                    state[link.name] = {
                        "gso_max_size": link.gso_max_size,
                        "tree": [s.to_json() for s in tree],
                    }
        self._write_state(state)
        for link in links:
            if not ours[link.name]:
                log.info(
                    "%s: HTB root %x: takes the place of %s",
                    link.name,
                    self._ownership.htb_major,
                    ", ".join(saved["kind"] for saved in state[link.name]["tree"]) or "the default",
                )
                await self._make_root(link)
        await self.limit_gso(self._gso_max_size)

    async def limit_gso(self, size: int | None) -> None:
        """Let the interfaces build GSO segments of at most *size* bytes; None restores what was there before."""
        self._gso_max_size = size
        state = self._read_state()
        for name in self._interfaces:
            link = await self._link(name)
            saved = state.get(name, {}).get("gso_max_size", link.gso_max_size)
            wanted = saved if size is None else min(size, saved)
            if wanted != link.gso_max_size:
                await self._do(
                    self._ipr.link("set", index=link.index, gso_max_size=wanted),
                    f"set gso_max_size of {name}",
                )

    async def gso_before(self) -> int:
        """Return the smallest ``gso_max_size`` in bytes that the interfaces had before we came."""
        state = self._read_state()
        return min(
            [state.get(n, {}).get("gso_max_size") or (await self._link(n)).gso_max_size for n in self._interfaces]
        )

    async def read_classes(self) -> dict[int, ClassSpec]:
        common: dict[int, ClassSpec] | None = None
        stray: set[int] = set()
        for name in self._interfaces:
            found = await self._classes_of(await self._link(name))
            stray |= found.keys()
            common = (
                found
                if common is None
                else {minor: spec for minor, spec in common.items() if minor in found and spec.same_as(found[minor])}
            )
        kept = common or {}
        # A class that is only on some interfaces shows with a rate that nobody wants: it is mended or removed.
        return kept | {minor: ClassSpec(minor, 0, 0, 0, 0, 0, 0) for minor in stray - kept.keys()}

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None:
        wanted = list(specs)
        for name in self._interfaces:
            link = await self._link(name)
            for spec in wanted:
                await self._upsert(link, spec)

    async def delete_classes(self, minors: Iterable[int]) -> None:
        gone = list(minors)
        for name in self._interfaces:
            link = await self._link(name)
            for minor in gone:
                await self._do(
                    self._ipr.tc("del-class", index=link.index, handle=self._root | minor),
                    f"remove class {self._ownership.htb_major:x}:{minor:x} from {name}",
                    ignore=(_ENOENT,),
                )

    async def restore(self) -> None:
        state = self._read_state()
        present = {}
        for name in {*self._interfaces, *state}:
            try:
                present[name] = await self._link(name)
            except KernelError:
                log.info("%s is gone; nothing to put back on it", name)
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            for name, link in present.items():
                if self._is_ours(netlink, link):
                    tree = [root_qdisc.Saved.from_json(saved) for saved in state.get(name, {}).get("tree", [])]
                    root_qdisc.restore(netlink, link.index, name, tree)
                    log.info("%s: put back %s", name, ", ".join(s.kind for s in tree) or "the default root qdisc")
        for name, link in present.items():
            before = state.get(name, {}).get("gso_max_size")
            if before and before != link.gso_max_size:
                await self._do(
                    self._ipr.link("set", index=link.index, gso_max_size=before),
                    f"set gso_max_size of {name}",
                )
        self._state_file.unlink(missing_ok=True)

    async def _link(self, name: str) -> _Link:
        try:
            found = [x async for x in await self._ipr.get_links(ifname=name)]
        except NetlinkError as error:
            if error.code == _ENODEV:
                found = []
            else:
                raise KernelError(f"look up interface {name}: {error}") from error
        if not found:
            raise KernelError(f"there is no interface {name}; 'ip link' lists those there are")
        return _Link(name, found[0]["index"], found[0].get("gso_max_size") or 65536)

    def _is_ours(self, netlink: NetlinkSocket, link: _Link) -> bool:
        return root_qdisc.root_handle(netlink, link.index) == ("htb", self._root)

    async def _make_root(self, link: _Link) -> None:
        what = f"put HTB at the root of {link.name}"
        await self._do(self._ipr.tc("replace", "htb", link.index, self._root, default=DEFAULT_MINOR), what)
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
        try:
            await self._ipr.tc("replace", "fq_codel", link.index, 0, parent=self._root | DEFAULT_MINOR)
        except NetlinkError as error:
            log.debug("%s: no fq_codel in this kernel (%s); the default class keeps its pfifo", link.name, error)

    async def _upsert(self, link: _Link, spec: ClassSpec) -> None:
        classid = self._root | spec.minor
        what = f"set class {self._ownership.htb_major:x}:{spec.minor:x} of {link.name} to {spec.rate} bit/s"
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
        await self._do(
            self._ipr.tc("replace", "pfifo", link.index, spec.minor << 16, parent=classid, limit=spec.queue_packets),
            what,
        )

    async def _classes_of(self, link: _Link) -> dict[int, ClassSpec]:
        limits: dict[int, int] = {}
        async for qdisc in await self._ipr.get_qdiscs(index=link.index):
            if qdisc.get_attr("TCA_KIND") == "pfifo":
                limits[qdisc["parent"]] = qdisc.get_attr("TCA_OPTIONS")["limit"]
        specs = {}
        async for found in await self._ipr.get_classes(index=link.index):
            handle, minor = found["handle"], found["handle"] & 0xFFFF
            if handle >> 16 != self._ownership.htb_major or minor in (LINK_MINOR, DEFAULT_MINOR):
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

    def _read_state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._state_file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise KernelError(
                f"{self._state_file} cannot be read ({error}); it says what to put back at the root"
            ) from error
        return state

    def _write_state(self, state: dict[str, Any]) -> None:
        self._state_file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._state_file.with_suffix(".new")
        temporary.write_text(json.dumps(state))
        temporary.replace(self._state_file)
