"""The minor numbers of classes: which caps have, and which is next. Pure."""

from __future__ import annotations

from collections.abc import Container

from mptcp_throttler.shaping.model import FIRST_MINOR, LAST_MINOR

PATHS_SHARE = 128
"""One number in so many is left to caps that a whole path shares: a reload from caps of clients, which have all others,
to one of a path is in force at once, and gives theirs back."""


class PlanError(Exception):
    """The plan cannot be made: the message says what ran out."""


class ClassNumbers:
    """Those of one qdisc."""

    def __init__(self, htb_major: int) -> None:
        self._htb_major = htb_major
        self._used: set[int] = set()
        self._next = FIRST_MINOR

    def take(self, found: int | None, in_kernel: Container[int], *, of_path: bool) -> int:
        """Return a number for a cap: *found*, where that is of a class *in_kernel* and no cap has it; else one that no
        cap has and, if possible, that no class in the kernel has either. Raises :class:`PlanError`.

        *of_path*: the cap is shared by a whole path.
        """
        size = LAST_MINOR - FIRST_MINOR + 1
        left = size - (FIRST_MINOR <= self._htb_major <= LAST_MINOR) - len(self._used)
        if left <= (0 if of_path else size // PATHS_SHARE):
            raise PlanError(f"no HTB class is left: {len(self._used)} caps are in use; share caps by path or by client")
        if found is None or found in self._used or found not in in_kernel:
            found = self._free(in_kernel)
        self._used.add(found)
        return found

    def give_back(self, minor: int) -> None:
        """The cap is gone."""
        self._used.discard(minor)

    def _free(self, in_kernel: Container[int]) -> int:
        """Return one; there must be any."""
        size = LAST_MINOR - FIRST_MINOR + 1
        for avoid in (in_kernel, ()):
            for step in range(size):
                minor = FIRST_MINOR + (self._next - FIRST_MINOR + step) % size
                # The root's handle would be that of a class's queue.
                if minor not in self._used and minor not in avoid and minor != self._htb_major:
                    self._next = minor + 1
                    return minor
        raise AssertionError("a number is free, and was not found")
