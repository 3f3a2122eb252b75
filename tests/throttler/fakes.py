# SPDX-License-Identifier: GPL-2.0-or-later
"""Fakes of traffic control and Netfilter. test_netfilter.py tests the fake and the real Netfilter alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import ClassSpec, Target


async def _do_nothing() -> None:
    pass


class FakeTrafficControl:
    """Keeps classes in a dictionary, and a log of its operations.

    If FakeNetfilter has the same log, the log shows the order of operations.
    """

    def __init__(self, log: list[str] | None = None) -> None:
        self.log = [] if log is None else log
        self.classes: dict[int, ClassSpec] = {}
        self.prepared = False
        self.gso = self._wanted = 65_536
        """Maximum size of a GSO packet in bytes."""
        self.refusals = 0
        """This many of the next changes are refused."""
        self.problems: list[str] = []
        """The problems that :meth:`check` reports until the next :meth:`prepare`."""
        self.left_out: dict[str, str] = {}
        """The interfaces that are not shaped, with the reasons."""

    async def prepare(self) -> None:
        self.problems = []
        self.log.append("replace root qdisc")
        self.prepared = True

    def set_gso_limit(self, limit: Callable[[int], int]) -> None:
        self._wanted = limit(65_536)

    @property
    def settled(self) -> bool:
        return self.gso == self._wanted

    async def settle(self) -> None:
        self._refuse_if_configured("limit segments")
        self.gso = self._wanted

    async def read(self) -> tuple[list[str], dict[int, ClassSpec]]:
        return self.problems, dict(self.classes)

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None:
        for spec in specs:
            self._refuse_if_configured(f"set class {spec.minor:x}")
            self.classes[spec.minor] = spec
            self.log.append(f"set class {spec.minor:x} to {spec.rate}")

    def _refuse_if_configured(self, what: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise KernelError(f"{what}: refused")

    async def delete_classes(self, minors: Iterable[int]) -> None:
        for minor in minors:
            self.classes.pop(minor, None)
            self.log.append(f"delete class {minor:x}")

    async def restore(self) -> None:
        self.classes.clear()
        self.log.append("restore root qdisc")


class FakeNetfilter:
    """Keeps set entries in a dictionary, and a log of its operations."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.log = [] if log is None else log
        self.entries: dict[FourTuple, Target] = {}
        self.max_entries = 1_000_000
        self.refuses_removal = False
        self.declines_immediate_upserts = False
        """Whether :meth:`upsert_at_once` returns False. Then the caller must use :meth:`upsert_entries`."""
        self.refused_ports: set[int] = set()
        """Client ports. A call with an entry for such a port fails, and sets no entry."""
        self.ports: set[int] | None = None
        """Ports of the proxy for which entries are accepted. None accepts any port."""
        self.during_read: Callable[[], Awaitable[None]] = _do_nothing
        """Called once, in the middle of the next :meth:`read_entries`, to change entries during the read."""

    async def prepare(self) -> None:
        self.log.append("make sets")

    async def check(self) -> list[str]:
        return []

    async def read_entries(self) -> dict[FourTuple, Target]:
        entries = dict(list(self.entries.items())[: len(self.entries) // 2])
        during_read, self.during_read = self.during_read, _do_nothing
        await during_read()
        return entries | {key: value for key, value in self.entries.items() if key not in entries}

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None:
        self._refuse_if_configured(entries)
        for four_tuple, target in entries.items():
            if four_tuple not in self.entries and len(self.entries) >= self.max_entries:
                raise KernelError("add set entries: the set is full")
            self.entries[four_tuple] = target
            self.log.append(f"set entry {four_tuple.remote_port} to {target.minor:x}")

    def upsert_at_once(self, entries: Mapping[FourTuple, Target]) -> bool:
        self._refuse_if_configured(entries)
        if self.declines_immediate_upserts:
            return False
        self.entries.update(entries)
        self.log += [
            f"set entry {four_tuple.remote_port} at once to {target.minor:x}" for four_tuple, target in entries.items()
        ]
        return True

    def _refuse_if_configured(self, entries: Iterable[FourTuple]) -> None:
        for each in entries:
            if each.remote_port in self.refused_ports or (self.ports is not None and each.local_port not in self.ports):
                raise KernelError("add set entries: refused")

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None:
        for four_tuple in four_tuples:
            self.entries.pop(four_tuple, None)
            self.log.append(f"delete entry {four_tuple.remote_port}")

    async def remove(self) -> None:
        if self.refuses_removal:
            raise KernelError("remove sets: in use")
        self.entries.clear()
        self.log.append("remove sets")

    def close(self) -> None:
        pass
