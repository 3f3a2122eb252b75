"""Traffic control: our HTB tree on every egress interface, through pyroute2. tc-htb(8).

What stood at the root before, and the interface's largest GSO segment, are written to the state directory
before they are replaced, so that a crashed daemon's successor or ``cleanup`` can put them back.

A start takes all interfaces or none. Later somebody may give one of them a root that cannot be replaced: that one is
left out, and left alone, until it can be taken again. The others go on, for a cap that one class lacks has no entry.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from pathlib import Path
from socket import NETLINK_ROUTE, if_indextoname
from typing import Any

from mptcp_throttler.kernel.libraries import AsyncIPRoute
from mptcp_throttler.kernel.netlink import NetlinkSocket
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.state_file import read_state, write_state
from mptcp_throttler.kernel.tc import root_qdisc
from mptcp_throttler.kernel.tc.htb import DOWN_LEAF, HtbTree
from mptcp_throttler.kernel.tc.link import Link, find, set_gso
from mptcp_throttler.shaping.model import ClassSpec, Ownership

log = logging.getLogger(__name__)


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
        self._left_out: dict[str, str] = {}
        """Interfaces that could not be taken again while others could, and why."""
        self._noted: dict[str, Any] = {}
        """What the state file has, for the case that somebody removes it."""
        self._gso: Callable[[int], int] | None = None
        """The limit on GSO segments, bytes, for what there was before; None until somebody says."""
        self._settled = True
        self._ipr: Any = None
        self._tree: HtbTree

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[HtbTrafficControl]:
        async with AsyncIPRoute() as self._ipr:
            self._tree = HtbTree(self._ipr, self._ownership, DOWN_LEAF)
            yield self

    async def prepare(self) -> None:
        links = self._links()
        if not links and self.prepared:
            return  # until one returns
        if not links:
            raise KernelError(f"there is no interface {' or '.join(self._interfaces)}; 'ip link' lists those there are")
        state = self._read_state()
        if self.prepared:
            await self._take_again(links, state)
        else:
            self._follow_names(state)
            await self._take_all(links, state)
        if self._noted and read_state(self._state_file) is None:
            self._write_state(state)
        if not self.prepared:
            self._put_back_others(state)
        self.prepared = True
        await self.settle()

    @property
    def left_out(self) -> Mapping[str, str]:
        return self._left_out

    async def retry(self) -> bool:
        links = [link for link in self._links() if link.name in self._left_out]
        refused = await self._take_each(links, self._read_state())
        self._leave_out(refused)
        return len(refused) < len(links)

    async def _take_all(self, links: Sequence[Link], state: dict[str, Any]) -> None:
        taken: list[Link] = []
        try:
            for link in links:
                await self._take(link, state, taken)
        except KernelError:
            # All or none: nobody else would put back what was there.
            for link in taken:
                self._give_back(link, state)
            raise

    async def _take_again(self, links: Sequence[Link], state: dict[str, Any]) -> None:
        """Take those of *links* that can be taken. Raises KernelError where none can."""
        refused = await self._take_each(links, state)
        if len(refused) < len(links):
            self._leave_out(refused)
            return
        # Classes would be made nowhere, and count as made.
        self._left_out = {}
        raise KernelError("; ".join(refused.values()))

    async def _take_each(self, links: Sequence[Link], state: dict[str, Any]) -> dict[str, str]:
        """Take *links*, each by itself; return why some cannot be taken, which are then as they were.

        Raises KernelError, after the others were taken, where one has our root already: it is nobody else's, caps hold
        there, and what the kernel refuses is tried again soon.
        """
        refused = {}
        failed = None
        for link in links:
            taken: list[Link] = []
            try:
                await self._take(link, state, taken)
            except KernelError as error:
                if not taken and self._has_ours(link):
                    failed = error
                    continue
                refused[link.name] = str(error)
                for each in taken:
                    self._give_back(each, state)
        if failed is not None:
            raise failed
        return refused

    def _has_ours(self, link: Link) -> bool:
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            return self._tree.is_ours(netlink, link)

    def _leave_out(self, refused: dict[str, str]) -> None:
        """Have *refused* left out and no others; what is new in that is said."""
        for name, why in refused.items():
            if self._left_out.get(name) != why:
                log.error("%s; until it can be taken, %s is not shaped; the others are", why, name)
        for name in self._left_out.keys() - refused.keys():
            if name not in self._absent:
                log.info("%s can be taken again: it is shaped", name)
        self._left_out = refused

    async def _take(self, link: Link, state: dict[str, Any], taken: list[Link]) -> None:
        """Put our root on *link*; one that had another is added to *taken* before that changes."""
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            if self._tree.is_ours(netlink, link):
                before = None
            else:
                before = [saved.to_json() for saved in root_qdisc.save(netlink, link.index, link.name)]
                self._keep_renamed(link, state)
                state[link.name] = self._gso_before(state, link) | {"index": link.index, "tree": before}
                self._write_state(state)
                taken.append(link)
        await self._tree.make_root(link)
        if before is not None:
            what = ", ".join(str(saved["kind"]) for saved in before) or "the default"
            log.info("%s: HTB root %x: takes the place of %s", link.name, self._ownership.htb_major, what)

    def _keep_renamed(self, link: Link, state: dict[str, Any]) -> None:
        """Note under its new name what another interface had that was called as *link* is now."""
        renamed = self._renamed(link.name)
        if renamed is not None and renamed != link.name:
            state[renamed] = state[link.name]

    def _follow_names(self, state: dict[str, Any]) -> None:
        """Note under its new name what an interface had that was renamed since a predecessor took it."""
        for name in state.keys() - set(self._interfaces):
            renamed = self._renamed(name)
            if renamed in self._interfaces:
                # What is noted under that name is of another interface, which is gone, or has another name by now.
                other = self._renamed(renamed)
                if other not in (None, renamed):
                    state[other] = state[renamed]
                state[renamed] = state.pop(name)
                self._write_state(state)

    def _put_back_others(self, state: dict[str, Any]) -> None:
        """Put back what a killed predecessor replaced on interfaces that are not ours any more.

        Last of all, for a start that is refused leaves them capped. What fails stays noted for the stop.
        """
        for name in sorted(state.keys() - set(self._interfaces)):
            try:
                link = find(self._renamed(name) or name)
                if link is not None and link.name not in self._interfaces:
                    self._restore_one(link, state[name], state)
                del state[name]
                self._write_state(state)
            except KernelError as error:
                log.error("%s, which is not among 'interfaces' any more: %s", name, error)

    def _give_back(self, link: Link, state: dict[str, Any]) -> None:
        try:
            self._restore_one(link, state.get(link.name, {}), state)
            state.pop(link.name, None)
            self._write_state(state)
        except KernelError as error:
            log.error("%s", error)

    async def check(self) -> list[str]:
        problems = []
        state = self._read_state()
        if self._noted and read_state(self._state_file) is None:
            problems.append(f"{self._state_file} is gone, which says what to put back")
        for link in self._shaped():
            problems += await self._tree.check(link)
            wanted = self._gso_wanted(state, link)
            if wanted != link.gso:
                problems.append(f"the limit on GSO segments of {link.name} is {link.gso}, not {wanted}")
        return problems

    def want_gso(self, limit: Callable[[int], int]) -> None:
        self._gso, self._settled = limit, False

    @property
    def settled(self) -> bool:
        return self._settled

    async def settle(self) -> None:
        state = self._read_state()
        for link in self._shaped():
            wanted = self._gso_wanted(state, link)
            if wanted != link.gso:
                set_gso(link, wanted)
        self._settled = True

    def _gso_wanted(self, state: dict[str, Any], link: Link) -> dict[str, int]:
        """Return the limits that *link* is to have; those it has, until somebody says."""
        if self._gso is None:
            return link.gso
        before: dict[str, int] = self._gso_before(state, link)["gso"]
        return {name: self._gso(size) for name, size in before.items()}

    @staticmethod
    def _gso_before(state: dict[str, Any], link: Link) -> dict[str, Any]:
        """Return the sizes from before we came: those noted, if they are of this very interface."""
        noted = state.get(link.name, {})
        return {"gso": noted["gso"] if noted.get("index") == link.index else link.gso}

    async def read_classes(self) -> dict[int, ClassSpec] | None:
        common: dict[int, ClassSpec] | None = None
        stray: set[int] = set()
        for link in self._shaped():
            found = await self._tree.classes_of(link)
            stray |= found.keys()
            common = (
                found
                if common is None
                else {minor: spec for minor, spec in common.items() if minor in found and spec.same_as(found[minor])}
            )
        if common is None:
            return None
        kept = common
        # A class that is only on some interfaces shows with a rate that is not desired: it is repaired or removed.
        return kept | {minor: ClassSpec(minor, 0, 0, 0, 0, 0, 0) for minor in stray - kept.keys()}

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None:
        await self._tree.upsert(self._shaped(), specs)

    async def delete_classes(self, minors: Iterable[int]) -> None:
        await self._tree.delete(self._shaped(), minors)

    async def restore(self) -> None:
        self._gso, self._settled = None, True
        self._left_out = {}
        state = self._read_state()
        failures = []
        names = {link.name: link for link in self._links({*self._interfaces, *state})}
        for name in state.keys() - names.keys():
            renamed = self._renamed(name)
            if renamed is not None and renamed not in names and (link := find(renamed)) is not None:
                names[name] = link
        for name, link in names.items():
            noted = state.get(name, {})
            try:
                self._restore_one(link, noted, state)
            except KernelError as error:
                failures.append(str(error))
                continue
            state.pop(name, None)
            self._write_state(state)
        self.prepared = False
        if failures:
            raise KernelError("; ".join(failures))
        self._noted = {}
        write_state(self._state_file, None)

    def _restore_one(self, link: Link, noted: dict[str, Any], state: dict[str, Any]) -> None:
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            # A restoration that failed half-way has removed our root already: the note says to go on.
            if self._tree.is_ours(netlink, link) or noted.get("restoring"):
                tree = [root_qdisc.Saved.from_json(saved) for saved in noted.get("tree", [])]
                if noted:
                    noted["restoring"] = True
                    self._write_state(state)
                root_qdisc.restore(netlink, link.index, link.name, tree)
                log.info("%s: put back %s", link.name, ", ".join(s.kind for s in tree) or "the default root qdisc")
        if noted.get("index") == link.index and noted["gso"] != link.gso:
            set_gso(link, noted["gso"])

    def _shaped(self) -> list[Link]:
        """Return those of the interfaces that are there and not left out."""
        return [link for link in self._links() if link.name not in self._left_out]

    def _links(self, names: Iterable[str] = ()) -> list[Link]:
        """Return those of the interfaces that are there; one that is not is said once, until it returns."""
        found = []
        for name in names or self._interfaces:
            link = find(name)
            if link is not None:
                found.append(link)
                self._absent.discard(name)
            elif name not in self._absent:
                self._absent.add(name)
                renamed = self._renamed(name)
                now = "" if renamed is None else f", which is called {renamed} now"
                log.warning("there is no interface %s%s; 'ip link' lists those there are", name, now)
        return found

    def _renamed(self, name: str) -> str | None:
        """Return what the interface is called now that was *name* when we took it; None where it is gone."""
        with suppress(OSError):
            return if_indextoname(self._noted.get(name, {}).get("index", 0))
        return None

    def _read_state(self) -> dict[str, Any]:
        text = read_state(self._state_file)
        try:
            state: dict[str, Any] = deepcopy(self._noted) if text is None else json.loads(text)
        except ValueError as error:
            raise KernelError(
                f"{self._state_file} cannot be read ({error}); it says what to put back at the root"
            ) from error
        self._noted = deepcopy(state)
        return state

    def _write_state(self, state: dict[str, Any]) -> None:
        self._noted = deepcopy(state)
        # A note of nothing would outlive a start that was refused.
        write_state(self._state_file, json.dumps(state) if state else None)
