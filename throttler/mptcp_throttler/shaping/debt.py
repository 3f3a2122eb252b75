"""What got past the classes of caps, and how it is repaid: a class stays lower until the mean is the cap. Pure.

Some bytes of a capped subflow do not go through its class: those that it sent before its entry was there, and those of
a rate transition. They are charged to the cap. While it owes more than ``MIN_SECONDS`` send at its rate, its class has
``SHARE`` of that rate; what is missing repays the debt. A smaller debt is forgotten when nothing was added for a while.

There may be a cap for each of thousands of connections: a charge costs O(1), and asking what changed as much as there
are caps that repay.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.5
"""Of its rate, while a cap repays."""
MIN_SECONDS = 0.05
"""What a cap owes at least, in time at its rate, before its class is lowered."""
MAX_SECONDS = 4.0
"""What it owes at most: nobody who shares the cap pays longer than twice that for what others sent."""
FORGOTTEN_SECONDS = 10.0
"""A debt too small to be repaid is forgotten after so long."""


@dataclass(slots=True)
class _Debt:
    ceil: int
    bits: float
    at: float
    """When that was so."""


class Debts:
    """By the minor number of a cap's class. Times in monotonic seconds."""

    def __init__(self) -> None:
        self._small: dict[int, _Debt] = {}
        """In the order of their last charges."""
        self._repaying: dict[int, _Debt] = {}
        self._begun: list[int] = []

    def __len__(self) -> int:
        """Return how many caps owe anything."""
        return len(self._small) + len(self._repaying)

    def charge(self, minor: int, ceil: int, octets: float, now: float) -> None:
        """Charge bytes to a cap of *ceil* bits/s."""
        debt = self._repaying.get(minor)
        if debt is None:
            debt = self._small.pop(minor, None) or _Debt(ceil, 0.0, now)
        elif minor not in self._begun:
            _repay(debt, now)
        # Samples of one cap's subflows do not come in the order of their times.
        debt.ceil, debt.at = ceil, max(debt.at, now)
        debt.bits = min(debt.bits + 8 * octets, ceil * MAX_SECONDS)
        if minor in self._repaying:
            return
        if debt.bits > ceil * MIN_SECONDS:
            self._repaying[minor] = debt
            self._begun.append(minor)
        else:
            self._small[minor] = debt

    def changed(self, now: float) -> dict[int, bool]:
        """Return the caps that begin or end to repay, and which of the two."""
        changes = dict.fromkeys(self._begun, True)
        for minor in self._begun:
            self._repaying[minor].at = now  # its class is lower from here on
        self._begun.clear()
        for minor, debt in list(self._repaying.items()):
            _repay(debt, now)
            if debt.bits <= 0:
                changes[minor] = False
                del self._repaying[minor]
        while self._small and now - (oldest := next(iter(self._small.items())))[1].at > FORGOTTEN_SECONDS:
            del self._small[oldest[0]]
        return changes

    def forgive(self) -> list[int]:
        """Forget all; return the caps that were repaying."""
        repaying = list(self._repaying)
        for each in (self._small, self._repaying, self._begun):
            each.clear()
        return repaying


def _repay(debt: _Debt, now: float) -> None:
    """Count what the class has not sent since."""
    debt.bits -= debt.ceil * (1 - SHARE) * max(0.0, now - debt.at)
    debt.at = max(debt.at, now)
