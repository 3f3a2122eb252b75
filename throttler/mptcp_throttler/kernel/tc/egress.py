# SPDX-License-Identifier: GPL-2.0-or-later
"""Traffic control: our HTB tree on every egress interface. tc-htb(8).

Before a change, the previous root qdisc and GSO limits are saved in the state directory by interface index, which
survives a rename, for ``cleanup`` or the successor of a crashed daemon.

A start shapes all interfaces or none. If another program later gives an interface a root qdisc that cannot be replaced,
the throttler omits that interface until that root is removed; the other interfaces are shaped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mptcp_common.kernel_error import KernelError
from mptcp_common.state_file import read_state, write_state
from mptcp_throttler.kernel.tc import root_qdisc
from mptcp_throttler.kernel.tc.htb import HtbTree
from mptcp_throttler.kernel.tc.link import Link, find_link, set_gso
from mptcp_throttler.shaping.model import ClassSpec, Ownership

log = logging.getLogger(__name__)


class HtbTrafficControl:
    """Implements ``TrafficControl`` for interfaces that other programs use too, in the current network namespace."""

    def __init__(self, interfaces: Sequence[str], ownership: Ownership, state_directory: Path) -> None:
        self.prepared = False
        """Whether our root is installed, so that :meth:`restore` must remove it."""
        self.left_out: dict[str, str] = {}
        self.settled = True
        self._interfaces = tuple(interfaces)
        self._ownership = ownership
        self._state_file = state_directory / "replaced.json"
        self._loaded_originals: dict[str, dict[str, Any]] | None = None
        """Original roots and limits by interface index, as in the state file; None before the first read."""
        self._absent: set[str] = set()
        self._adapt_gso: Callable[[int], int] | None = None
        """Maps the original GSO limit to ours, in bytes; None before :meth:`set_gso_limit`."""
        self._tree = HtbTree(ownership)

    async def prepare(self) -> None:
        links = self._links()
        if not links:
            if self.prepared:
                return  # wait for an interface to return
            raise KernelError(f"there is no interface {' or '.join(self._interfaces)}; see 'ip link'")
        replaced, refused = list[Link](), dict[str, str]()
        for link in links:
            try:
                if await self._take_over(link):
                    replaced.append(link)
            except KernelError as error:
                if not self.prepared:
                    for each in replaced:  # no other code would restore them
                        self._try_restore(each)
                if not self.prepared or self._tree.is_ours(link):  # our root keeps the caps, and a retry follows
                    raise
                refused[link.name] = str(error)
        if len(refused) == len(links):
            # Otherwise classes would count as created although no interface has them.
            self.left_out = {}
            raise KernelError("; ".join(refused.values()))
        self._report_left_out(refused)
        if not self.prepared:
            self._restore_others()
        if self._is_note_missing():
            self._write_notes()
        self.prepared = True
        await self.settle()

    async def _take_over(self, link: Link) -> bool:
        """Install our root on *link*; return whether it replaced another root. On an error, restore the other root."""
        if self._tree.is_ours(link):
            await self._tree.install_root(link)
            return False
        former = root_qdisc.save(link)
        # An interface that is created again has another index.
        for index, original in list(self._originals.items()):
            if original["name"] == link.name and find_link(int(index)) is None:
                del self._originals[index]
        tree = [saved._asdict() for saved in former]
        self._originals[str(link.index)] = {"name": link.name, "gso": self._original_gso(link), "tree": tree}
        self._write_notes()
        try:
            await self._tree.install_root(link)
        except KernelError:
            self._try_restore(link)
            raise
        kinds = ", ".join(saved.kind for saved in former) or "the default"
        log.info("%s: HTB root %x replaces %s", link.name, self._ownership.htb_major, kinds)
        return True

    def _report_left_out(self, refused: dict[str, str]) -> None:
        for name, reason in refused.items():
            if self.left_out.get(name) != reason:
                log.error("%s; until its root can be replaced, %s is not shaped; others are shaped", reason, name)
        for name in self.left_out.keys() - refused.keys() - self._absent:
            log.info("the root of %s can be replaced again: %s is shaped", name, name)
        self.left_out = refused

    def _restore_others(self) -> None:
        """Restore interfaces that a killed predecessor changed and that are no longer ours.

        Called last, so that a refused start leaves them capped. After a failure, the note stays: the stop retries.
        """
        ours = {link.index for link in self._links()}
        for index, original in list(self._originals.items()):
            if int(index) in ours:
                continue
            try:
                link = find_link(int(index))
                if link is None:
                    del self._originals[index]
                    self._write_notes()
                else:
                    self._restore_one(link)
            except KernelError as error:
                log.error("%s, which is not among 'interfaces' any more: %s", original["name"], error)

    def _try_restore(self, link: Link) -> None:
        try:
            self._restore_one(link)
        except KernelError as error:
            log.error("%s", error)

    def set_gso_limit(self, limit: Callable[[int], int]) -> None:
        """Let the next :meth:`settle` or :meth:`prepare` set the GSO limits: *limit* maps original to new bytes."""
        self._adapt_gso, self.settled = limit, False

    async def settle(self) -> None:
        for link in self._shaped_links():
            target = self._gso_target(link)
            if target != link.gso:
                set_gso(link, target)
        self.settled = True

    def _gso_target(self, link: Link) -> dict[str, int]:
        if self._adapt_gso is None:
            return link.gso
        return {name: self._adapt_gso(size) for name, size in self._original_gso(link).items()}

    def _original_gso(self, link: Link) -> dict[str, int]:
        original = self._originals.get(str(link.index))
        return link.gso if original is None else dict(original["gso"])

    async def read(self) -> tuple[list[str], dict[int, ClassSpec] | None]:
        problems = []
        if self._is_note_missing():
            problems.append(f"{self._state_file} is missing; it records what to restore")
        common: dict[int, ClassSpec] | None = None
        all_minors: set[int] = set()
        for link in self._shaped_links():
            deviations, classes = await self._tree.read(link)
            problems += deviations
            target = self._gso_target(link)
            if target != link.gso:
                problems.append(f"the limit on GSO segments of {link.name} is {link.gso}, not {target}")
            all_minors |= classes.keys()
            previous = classes if common is None else common
            common = {key: spec for key, spec in previous.items() if key in classes and spec.same_as(classes[key])}
        if common is None:
            return problems, None
        # A class that only some interfaces have gets rate 0, which no plan has, so it is repaired or removed.
        return problems, common | {minor: ClassSpec(minor, 0, 0, 0, 0, 0, 0) for minor in all_minors - common.keys()}

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None:
        await self._tree.upsert(self._shaped_links(), specs)

    async def delete_classes(self, minors: Iterable[int]) -> None:
        await self._tree.delete(self._shaped_links(), minors)

    async def restore(self) -> None:
        self._adapt_gso, self.settled = None, True
        self.left_out = {}
        links = [*self._links(), *filter(None, (find_link(int(index)) for index in self._originals))]
        failures = []
        for link in {link.index: link for link in links}.values():
            try:
                self._restore_one(link)
            except KernelError as error:
                failures.append(str(error))
        self.prepared = False
        if failures:
            raise KernelError("; ".join(failures))
        self._originals.clear()
        self._write_notes()

    def _restore_one(self, link: Link) -> None:
        """Restore the qdisc and limits that *link* had before our root, and remove their note. Raises KernelError."""
        original = self._originals.get(str(link.index), {})
        # A restoration that failed midway has already removed our root: the note marks this.
        if self._tree.is_ours(link) or original.get("restoring"):
            tree = [root_qdisc.Saved(*map(saved.get, root_qdisc.Saved._fields)) for saved in original.get("tree", [])]
            if original:
                original["restoring"] = True
                self._write_notes()
            root_qdisc.restore(link, tree)
            log.info("%s: restored %s", link.name, ", ".join(s.kind for s in tree) or "the default root qdisc")
        if original:
            if original["gso"] != link.gso:
                set_gso(link, original["gso"])
            del self._originals[str(link.index)]
            self._write_notes()

    def _shaped_links(self) -> list[Link]:
        return [link for link in self._links() if link.name not in self.left_out]

    def _links(self) -> list[Link]:
        """Return the existing interfaces; warn once about a missing one, until it returns."""
        links = []
        for name in self._interfaces:
            link = find_link(name)
            if link is not None:
                links.append(link)
                self._absent.discard(name)
            elif name not in self._absent:
                self._absent.add(name)
                renamed = (find_link(int(index)) for index, each in self._originals.items() if each["name"] == name)
                note = "".join(f", which is called {link.name} now" for link in renamed if link is not None)
                log.warning("there is no interface %s%s; see 'ip link'", name, note)
        return links

    @property
    def _originals(self) -> dict[str, dict[str, Any]]:
        if self._loaded_originals is None:
            text = read_state(self._state_file)
            try:
                notes: dict[str, dict[str, Any]] = {} if text is None else json.loads(text)
                if not all(map(str.isdigit, notes)):
                    raise ValueError("an earlier version wrote it; 'mptcp-throttler cleanup' of that version reads it")
            except ValueError as error:
                message = f"{self._state_file} cannot be read ({error}); it records what to restore at the root"
                raise KernelError(message) from error
            self._loaded_originals = notes
        return self._loaded_originals

    def _is_note_missing(self) -> bool:
        return bool(self._originals) and read_state(self._state_file) is None

    def _write_notes(self) -> None:
        # An empty note would outlive a refused start.
        write_state(self._state_file, json.dumps(self._originals) if self._originals else None)
