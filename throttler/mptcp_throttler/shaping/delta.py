"""Desired and actual state of one kind of kernel object, and the pending difference. Pure.

Each change updates the pending sets in O(1), so that reading them costs nothing. The model is Calico's delta tracker.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class DeltaTracker(Generic[K, V]):
    """Two maps and their difference. ``same`` compares an actual and a desired value: the kernel rounds some."""

    def __init__(self, same: Callable[[V, V], bool] = operator.eq) -> None:
        self.desired: dict[K, V] = {}
        self.actual: dict[K, V] = {}
        self.upserts: dict[K, V] = {}
        """Desired objects that are missing or differ."""
        self.deletes: set[K] = set()
        """Actual objects that are not desired."""
        self.told: Callable[[Collection[K], bool], None] | None = None
        """Called with the objects that the kernel added or changed (True) or removed (False)."""
        self._same = same

    @property
    def settled(self) -> bool:
        return not self.upserts and not self.deletes

    def want(self, key: K, value: V) -> None:
        self.desired[key] = value
        self.deletes.discard(key)
        if key in self.actual and self._same(self.actual[key], value):
            self.upserts.pop(key, None)
        else:
            self.upserts[key] = value

    def drop(self, key: K) -> None:
        """Stop wanting *key*, which may be unknown."""
        self.desired.pop(key, None)
        self.upserts.pop(key, None)
        if key in self.actual:
            self.deletes.add(key)

    def observed(self, actual: Mapping[K, V]) -> None:
        """Replace the actual state by what was read back, and recompute the pending sets."""
        self.actual = dict(actual)
        self.deletes = self.actual.keys() - self.desired.keys()
        self.upserts = {
            key: value
            for key, value in self.desired.items()
            if key not in self.actual or not self._same(self.actual[key], value)
        }

    def upserted(self, done: Mapping[K, V]) -> None:
        """Record that *done* are now in the kernel; the desired values may have changed meanwhile."""
        for key, value in done.items():
            self.actual[key] = value
            if key not in self.desired:
                self.deletes.add(key)
            elif self._same(value, self.desired[key]):
                self.upserts.pop(key, None)
            else:
                self.upserts[key] = self.desired[key]
        if self.told is not None:
            self.told(done.keys(), True)

    def deleted(self, done: Collection[K]) -> None:
        """Record that *done* are gone from the kernel."""
        for key in done:
            self.actual.pop(key, None)
            self.deletes.discard(key)
            if key in self.desired:
                self.upserts[key] = self.desired[key]
        if self.told is not None:
            self.told(done, False)
