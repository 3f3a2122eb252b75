# SPDX-License-Identifier: GPL-2.0-or-later
"""Fakes of the kernel ports. They pass the same contract tests as the real adapters: see test_netfilter.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import ClassSpec, Target


async def _nothing() -> None:
    pass


class FakeTrafficControl:
    """Keeps classes in a dictionary, and a log of its operations.

    It can share the log with FakeNetfilter to show the order.
    """

    def __init__(self, log: list[str] | None = None) -> None:
        self.log = [] if log is None else log
        self.classes: dict[int, ClassSpec] = {}
        self.prepared = False
        self.gso = self._wanted = 65_536
        """Maximum size of a GSO packet, in bytes."""
        self.refusals = 0
        """Number of the next changes to refuse."""
        self.problems: list[str] = []
        """The problems that :meth:`check` reports until the next :meth:`prepare`."""
        self.left_out: dict[str, str] = {}

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
        self._refuse_some("limit segments")
        self.gso = self._wanted

    async def read(self) -> tuple[list[str], dict[int, ClassSpec]]:
        return self.problems, dict(self.classes)

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None:
        for spec in specs:
            self._refuse_some(f"set class {spec.minor:x}")
            self.classes[spec.minor] = spec
            self.log.append(f"set class {spec.minor:x} to {spec.rate}")

    def _refuse_some(self, what: str) -> None:
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
        self.room = 1_000_000
        self.refuses_removal = False
        self.only_in_turns = False
        """Whether :meth:`upsert_at_once` declines, so that the caller must use :meth:`upsert_entries`."""
        self.refused: set[int] = set()
        """Client ports. A call that contains an entry with such a port is refused as a whole."""
        self.ports: set[int] | None = None
        """Ports of the proxy for which entries are accepted. None accepts any port."""
        self.reading: Callable[[], Awaitable[None]] = _nothing
        """Called once, in the middle of the next :meth:`read_entries`: simulates changes while entries are being read.
        """

    async def prepare(self) -> None:
        self.log.append("make sets")

    async def check(self) -> list[str]:
        return []

    async def read_entries(self) -> dict[FourTuple, Target]:
        found = dict(list(self.entries.items())[: len(self.entries) // 2])
        meanwhile, self.reading = self.reading, _nothing
        await meanwhile()
        return found | {key: value for key, value in self.entries.items() if key not in found}

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None:
        self._refuse_some(entries)
        for four_tuple, target in entries.items():
            if four_tuple not in self.entries and len(self.entries) >= self.room:
                raise KernelError("add set entries: the set is full")
            self.entries[four_tuple] = target
            self.log.append(f"set entry {four_tuple.remote_port} to {target.minor:x}")

    def upsert_at_once(self, entries: Mapping[FourTuple, Target]) -> bool:
        self._refuse_some(entries)
        if self.only_in_turns:
            return False
        self.entries.update(entries)
        self.log += [
            f"set entry {four_tuple.remote_port} at once to {target.minor:x}" for four_tuple, target in entries.items()
        ]
        return True

    def _refuse_some(self, entries: Iterable[FourTuple]) -> None:
        for each in entries:
            if each.remote_port in self.refused or (self.ports is not None and each.local_port not in self.ports):
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
