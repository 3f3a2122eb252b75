"""The minor numbers of classes: which caps have, and which is next. Pure."""

from __future__ import annotations

from collections.abc import Container

from mptcp_throttler.shaping.model import FIRST_MINOR, LAST_MINOR


class PlanError(Exception):
    """The plan cannot be made: the message says what ran out."""


class ClassNumbers:
    """Those of one qdisc."""

    def __init__(self, htb_major: int) -> None:
        self._htb_major = htb_major
        self._used: set[int] = set()
        self._next = FIRST_MINOR

    def take(self, found: int | None, in_kernel: Container[int]) -> int:
        """Return a number for a cap: *found*, where that is of a class *in_kernel* and no cap has it; else one that no
        cap has and, if possible, that no class in the kernel has either. Raises :class:`PlanError`."""
        if found is None or found in self._used or found not in in_kernel:
            found = self._free(in_kernel)
        self._used.add(found)
        return found

    def give_back(self, minor: int) -> None:
        """The cap is gone."""
        self._used.discard(minor)

    def _free(self, in_kernel: Container[int]) -> int:
        size = LAST_MINOR - FIRST_MINOR + 1
        reserved = FIRST_MINOR <= self._htb_major <= LAST_MINOR
        for avoid in (in_kernel, ()) if len(self._used) < size - reserved else ():
            for step in range(size):
                minor = FIRST_MINOR + (self._next - FIRST_MINOR + step) % size
                # The root's handle would be that of a class's queue.
                if minor not in self._used and minor not in avoid and minor != self._htb_major:
                    self._next = minor + 1
                    return minor
        raise PlanError(f"no HTB class is left: {size} caps are in use; share caps by path or by client")
