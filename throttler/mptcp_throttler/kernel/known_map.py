"""A BPF map of ours together with what it is to have, so that both can be compared: others may change it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mptcp_throttler.kernel.bpf import Bpf, Map
from mptcp_throttler.kernel.scheduling import in_turns


class KnownMap:
    """One map, empty at first. All raise KernelError where it is full or the kernel refuses."""

    def __init__(self, bpf: Bpf, table: Map) -> None:
        self._bpf = bpf
        self._table = table
        self._known: dict[bytes, bytes] = {}
        self._touched: set[bytes] | None = None
        """What was changed since the comparison began that is under way."""

    @property
    def descriptor(self) -> int:
        return self._table.descriptor

    def get(self, key: bytes) -> bytes | None:
        """Return what the map is to have for *key*."""
        return self._known.get(key)

    def update(self, entries: Mapping[bytes, bytes]) -> None:
        """Set entries; those that are refused are known, and tried again by :meth:`check`."""
        self._known.update(entries)
        self._touch(entries)
        self._bpf.update_batch(self._table, b"".join(entries), b"".join(entries.values()))

    def delete(self, keys: Collection[bytes]) -> None:
        """Forget keys; unknown ones are fine."""
        for key in keys:
            self._known.pop(key, None)
        self._touch(keys)
        self._bpf.delete_batch(self._table, b"".join(keys))

    async def check(self) -> int:
        """Compare the map with what it is to have, and put right what differs; return how many entries that was."""
        self._touched = touched = set[bytes]()
        try:
            found: dict[bytes, bytes] = {}
            async for key, value in in_turns(self._bpf.entries(self._table)):
                found[key] = value
            wrong: dict[bytes, bytes] = {}
            async for key, value in in_turns(list(self._known.items())):
                if found.pop(key, None) != value:
                    wrong[key] = value
        finally:
            self._touched = None
        wrong = {key: value for key, value in wrong.items() if key not in touched}
        foreign = [key for key in found if key not in self._known and key not in touched]
        if wrong:
            self._bpf.update_batch(self._table, b"".join(wrong), b"".join(wrong.values()))
        if foreign:
            self._bpf.delete_batch(self._table, b"".join(foreign))
        return len(wrong) + len(foreign)

    def _touch(self, keys: Iterable[bytes]) -> None:
        if self._touched is not None:
            self._touched.update(keys)
