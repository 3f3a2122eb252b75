# SPDX-License-Identifier: GPL-2.0-or-later
"""Applies the policy to Multipath UDP tunnels: queries the tunnel daemon, and sends it the classes of their paths.

Netfilter does not see a tunnel's packets, because the BPF program that splits the traffic redirects them to an
interface. So that program also sets their class. A request, once a second and at once after a change, sends the class
of every path, and its answer lists the tunnels. For all other modules a tunnel looks like a connection: its paths
appear among the sockets (:meth:`Tunnels.add_paths`) and have entries (:meth:`Tunnels.wrap_netfilter`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import KernelAccess
from mptcp_throttler.kernel.ports import KernelSockets, Netfilter
from mptcp_throttler.mptcp.model import FourTuple, KernelEvent, KernelSubflow, Sockets
from mptcp_throttler.mptcp.tunnels import PATH_TIMEOUT, TunnelTable
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.event_loop import wait_at_most
from mptcp_throttler.shaping.model import ClassSpec, Target

log = logging.getLogger(__name__)

QUERY_SECONDS: Final = 1.0  # interval of requests
MIN_PAUSE: Final = 0.02  # minimum pause between two requests
ANSWER_TIMEOUT: Final = 2.0


class Tunnels(Component):
    """The tunnels of one host. Without ``tunnel_ports`` in the settings it does nothing."""

    def __init__(
        self,
        settings: Settings,
        kernel: KernelAccess,
        on_events: Callable[[Sequence[KernelEvent]], None],
        on_earlier_bytes: Callable[[int, int, int], None],
    ) -> None:
        """*on_events* gets the events of paths, *on_earlier_bytes* a path's cookie and the bytes that the path sent and
        received before the throttler tracked it."""
        self._settings, self._query = settings, kernel.query_tunnels
        self._on_events, self._on_earlier_bytes = on_events, on_earlier_bytes
        self.table = TunnelTable(settings.ownership.tunnel_ports)
        self.entries: dict[FourTuple, Target] = {}
        self.classes: Mapping[int, ClassSpec] = {}  # classes by minor number, from the planner of downloads
        self._newest_id = time.time_ns()  # newest path ID, a time; at first, this daemon's start
        self._last_answer = time.monotonic()
        self._is_answering = True
        self._is_prepared = False
        self._wake = asyncio.Event()

    def is_path(self, four_tuple: FourTuple) -> bool:
        return four_tuple.local_port in self.table.ports

    def interface(self, four_tuple: FourTuple) -> str | None:
        path = self.table.paths.get(four_tuple)
        return None if path is None else path.interface

    async def prepare(self, policy: Policy) -> None:
        """Query the tunnel daemon for the first time, and adopt the classes that a killed throttler left."""
        if self._is_prepared or not self.table.ports:
            return
        self._is_prepared = True
        await self._exchange({})
        for four_tuple, path in self.table.paths.items():
            if path.class_id >> 16 == self._settings.ownership.htb_major:
                self.entries[four_tuple] = Target(path.class_id & 0xFFFF, 0)

    async def run(self) -> None:
        while self.table.ports:
            await wait_at_most(self._wake, QUERY_SECONDS)
            self._wake.clear()
            sent = self._classes()
            self._on_events(await self._exchange({"classes": sent}))
            if self._classes() != sent:
                self._wake.set()  # the tunnel daemon restarted, or a path has another address
            await asyncio.sleep(MIN_PAUSE)
        await super().run()

    async def release(self) -> None:
        """Remove all paths from the throttler's classes."""
        self.entries.clear()
        if self.table.ports:
            await self._exchange({"classes": {}})

    def add_paths(self, sockets: KernelSockets) -> KernelSockets:
        """Return *sockets* with the paths of tunnels."""
        return _SocketsAndPaths(sockets, self) if self.table.ports else sockets

    def wrap_netfilter(self, netfilter: Netfilter) -> Netfilter:
        """Return a wrapper of *netfilter* that passes entries of paths to this object."""
        return _NetfilterAndPaths(netfilter, self) if self.table.ports else netfilter

    def set_entries(self, entries: Mapping[FourTuple, Target]) -> dict[FourTuple, Target]:
        """Store the entries of paths; return the other entries."""
        paths = {each: target for each, target in entries.items() if self.is_path(each)}
        if paths:
            self.entries |= paths
            self._wake.set()
        return {each: target for each, target in entries.items() if each not in paths}

    def delete_entries(self, four_tuples: Iterable[FourTuple]) -> list[FourTuple]:
        """Drop the entries of paths; return the four-tuples that are not paths."""
        before, others = len(self.entries), [each for each in four_tuples if self.entries.pop(each, None) is None]
        if len(self.entries) < before:
            self._wake.set()
        return [each for each in others if not self.is_path(each)]

    def _classes(self) -> dict[str, list[int]]:
        """Return the class handle and ceil in bits/s (0: no ceil) by path ID. With the ceil, the tunnel daemon need not
        detect the rate from losses."""
        classes, major = {}, self._settings.ownership.htb_major
        for four_tuple, target in self.entries.items():
            if (path := self.table.paths.get(four_tuple)) is not None:
                spec = self.classes.get(target.minor)
                classes[str(path.path_id)] = [major << 16 | target.minor, 0 if spec is None else spec.ceil]
        return classes

    async def _exchange(self, request: Mapping[str, object]) -> list[KernelEvent]:
        now, socket = time.monotonic(), self._settings.tunnel_socket
        earlier_ids, earlier_ignored = {each.path_id for each in self.table.paths.values()}, set(self.table.ignored)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                events = self.table.update(await self._query(socket, request), time.monotonic())
        except (OSError, ValueError) as error:
            if self._is_answering:
                log.warning("tunnels: %s: %s; trying again every second", socket, str(error) or "no answer")
            self._is_answering = False
            # Packets still pass while the tunnel daemon is down, so its last answer stays valid for PATH_TIMEOUT.
            return self.table.update({"tunnels": ()}, now) if now - self._last_answer > PATH_TIMEOUT else []
        if not self._is_answering:
            log.info("tunnels: %s answers", socket)
        self._is_answering, self._last_answer = True, now
        self._exclude_earlier_bytes(earlier_ids)
        for name, port in self.table.ignored - earlier_ignored:
            log.warning("tunnel %s is ignored, because its port %d is not in tunnel_ports", name, port)
        return events

    def _exclude_earlier_bytes(self, earlier_ids: Set[int]) -> None:
        """Exclude the earlier bytes of paths that existed before this daemon started, or that returned: their IDs are
        not newer than ``_newest_id``. If the ledger has counters of such a path, the bytes since then still count."""
        new = [path for path in self.table.paths.values() if path.path_id not in earlier_ids]
        for path in new:
            if path.path_id <= self._newest_id:
                self._on_earlier_bytes(path.socket.cookie, path.socket.bytes_acked, path.socket.bytes_received)
        self._newest_id = max([self._newest_id, *(path.path_id for path in new)])


class _SocketsAndPaths:
    def __init__(self, sockets: KernelSockets, tunnels: Tunnels) -> None:
        self._sockets, self._tunnels = sockets, tunnels
        self.close = sockets.close

    def batches(self) -> Iterator[Sequence[KernelSubflow]]:
        yield from self._sockets.batches()
        yield [each.socket for each in self._tunnels.table.paths.values()]

    def look_up(self, four_tuples: Sequence[FourTuple]) -> Sockets:
        paths = self._tunnels.table.paths
        path_sockets = {each: paths[each].socket for each in four_tuples if each in paths}
        return {**self._sockets.look_up(self._exclude_paths(four_tuples)), **path_sockets}

    def close_sockets(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, str]:
        refusals = dict.fromkeys(filter(self._tunnels.is_path, four_tuples), "left open: a path of a tunnel")
        return {**self._sockets.close_sockets(self._exclude_paths(four_tuples)), **refusals}

    def _exclude_paths(self, four_tuples: Sequence[FourTuple]) -> list[FourTuple]:
        return [each for each in four_tuples if not self._tunnels.is_path(each)]


class _NetfilterAndPaths:
    def __init__(self, netfilter: Netfilter, tunnels: Tunnels) -> None:
        self._netfilter, self._tunnels = netfilter, tunnels
        self.prepare, self.check, self.close = netfilter.prepare, netfilter.check, netfilter.close

    async def read_entries(self) -> dict[FourTuple, Target]:
        return {**await self._netfilter.read_entries(), **self._tunnels.entries}

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None:
        if others := self._tunnels.set_entries(entries):
            await self._netfilter.upsert_entries(others)

    def upsert_at_once(self, entries: Mapping[FourTuple, Target]) -> bool:
        others = self._tunnels.set_entries(entries)
        return not others or self._netfilter.upsert_at_once(others)

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None:
        if others := self._tunnels.delete_entries(four_tuples):
            await self._netfilter.delete_entries(others)

    async def remove(self) -> None:
        await self._tunnels.release()
        await self._netfilter.remove()
