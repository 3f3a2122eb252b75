"""Traffic control: our HTB tree on every egress interface, through pyroute2. tc-htb(8).

What stood at the root before, and the interface's largest GSO segment, are written to the state directory
before they are replaced, so that a crashed daemon's successor or ``cleanup`` can put them back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import NETLINK_ROUTE
from typing import Any

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from ..shaping.model import ClassSpec, Ownership
from . import link_gso, root_qdisc
from .htb import DOWN_LEAF, HtbTree, Link
from .netlink import NetlinkSocket
from .ports import KernelError

log = logging.getLogger(__name__)

_ENODEV = 19


@dataclass(frozen=True, slots=True)
class _Link(Link):
    gso: dict[str, int]
    """The limits on GSO segments in bytes, by attribute; older kernels have gso_max_size only."""


class HtbTrafficControl:
    """The TrafficControl port on real interfaces, all of the namespace it is opened in."""

    def __init__(
        self,
        interfaces: Sequence[str],
        ownership: Ownership,
        state_directory: Path,
    ) -> None:
        self.prepared = False
        """Our root is there, so that there is something to put back."""
        self._interfaces = tuple(interfaces)
        self._ownership = ownership
        self._state_file = state_directory / "replaced.json"
        self._absent: set[str] = set()
        self._ipr: Any = None
        self._tree: HtbTree

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[HtbTrafficControl]:
        async with AsyncIPRoute() as self._ipr:
            self._tree = HtbTree(self._ipr, self._ownership, DOWN_LEAF)
            yield self

    async def prepare(self) -> None:
        links = await self._links()
        if not links:
            raise KernelError(f"there is no interface {' or '.join(self._interfaces)}; 'ip link' lists those there are")
        state = self._read_state()
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            for link in links:
                if not self._tree.is_ours(netlink, link):
                    tree = [saved.to_json() for saved in root_qdisc.save(netlink, link.index, link.name)]
                    state[link.name] = self._gso_before(state, link) | {"index": link.index, "tree": tree}
                    self._write_state(state)
                    what = ", ".join(str(saved["kind"]) for saved in tree) or "the default"
                    log.info("%s: HTB root %x: takes the place of %s", link.name, self._ownership.htb_major, what)
                await self._tree.make_root(link)
        self.prepared = True

    async def limit_gso(self, size: int | None) -> None:
        """Let the interfaces build GSO segments of at most *size* bytes; None restores what was there before."""
        state = self._read_state()
        for link in await self._links():
            before = self._gso_before(state, link)["gso"]
            self._set_gso(link, {name: b if size is None else min(size, b) for name, b in before.items()})

    async def gso_before(self) -> int:
        """Return the smallest ``gso_max_size`` in bytes that the interfaces had before we came."""
        state = self._read_state()
        sizes = [self._gso_before(state, link)["gso"]["gso_max_size"] for link in await self._links()]
        return min(sizes, default=link_gso.LARGEST)

    @staticmethod
    def _gso_before(state: dict[str, Any], link: _Link) -> dict[str, Any]:
        """Return the sizes from before we came: those noted, if they are of this very interface."""
        noted = state.get(link.name, {})
        return {"gso": noted["gso"] if noted.get("index") == link.index else link.gso}

    @staticmethod
    def _set_gso(link: _Link, sizes: dict[str, int]) -> None:
        if sizes != link.gso:
            with NetlinkSocket(NETLINK_ROUTE) as netlink:
                link_gso.write(netlink, link.index, sizes, link.name)

    async def read_classes(self) -> dict[int, ClassSpec]:
        common: dict[int, ClassSpec] | None = None
        stray: set[int] = set()
        for link in await self._links():
            found = await self._tree.classes_of(link)
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
        for link in await self._links():
            for spec in wanted:
                await self._tree.upsert(link, spec)

    async def delete_classes(self, minors: Iterable[int]) -> None:
        gone = list(minors)
        for link in await self._links():
            for minor in gone:
                await self._tree.delete(link, minor)

    async def restore(self) -> None:
        state = self._read_state()
        failures = []
        for link in await self._links({*self._interfaces, *state}):
            noted = state.get(link.name, {})
            try:
                await self._restore_one(link, noted, state)
            except KernelError as error:
                failures.append(str(error))
                continue
            state.pop(link.name, None)
            self._write_state(state)
        self.prepared = False
        if failures:
            raise KernelError("; ".join(failures))
        self._state_file.unlink(missing_ok=True)

    async def _restore_one(self, link: _Link, noted: dict[str, Any], state: dict[str, Any]) -> None:
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            # A restoration that failed half-way has removed our root already: the note says to go on.
            if self._tree.is_ours(netlink, link) or noted.get("restoring"):
                tree = [root_qdisc.Saved.from_json(saved) for saved in noted.get("tree", [])]
                if noted:
                    noted["restoring"] = True
                    self._write_state(state)
                root_qdisc.restore(netlink, link.index, link.name, tree)
                log.info("%s: put back %s", link.name, ", ".join(s.kind for s in tree) or "the default root qdisc")
        self._set_gso(link, self._gso_before(state, link)["gso"])

    async def _links(self, names: Iterable[str] = ()) -> list[_Link]:
        """Return those of the interfaces that are there; one that is not is said once, until it returns."""
        found = []
        for name in names or self._interfaces:
            link = await self._link(name)
            if link is not None:
                found.append(link)
                self._absent.discard(name)
            elif name not in self._absent:
                self._absent.add(name)
                log.warning("there is no interface %s; 'ip link' lists those there are", name)
        return found

    async def _link(self, name: str) -> _Link | None:
        try:
            found = [x async for x in await self._ipr.get_links(ifname=name)]
        except NetlinkError as error:
            if error.code == _ENODEV:
                return None
            raise KernelError(f"look up interface {name}: {error}") from error
        if not found:
            return None
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            return _Link(name, found[0]["index"], link_gso.read(netlink, found[0]["index"]))

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
        temporary = self._state_file.with_suffix(".new")
        try:
            self._state_file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(state))
            temporary.replace(self._state_file)
        except OSError as error:
            raise KernelError(f"note in {self._state_file} what is replaced: {error.strerror}") from error
