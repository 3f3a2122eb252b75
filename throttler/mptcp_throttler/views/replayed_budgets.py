"""Budgets of a replayed capture: the daemon's stage, for which what was captured stands for samples of sockets. Pure.

All budgets begin with nothing used. A subflow's data count when they were captured, each byte once, within
SAMPLE_SECONDS; what it carried to its end counts when it ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow
from mptcp_throttler.policy.budget import period
from mptcp_throttler.policy.model import Policy, Verdict
from mptcp_throttler.stages.budget import BudgetStage, Reached
from mptcp_throttler.stages.stage import Samples
from mptcp_throttler.views.budgets import budget_rows
from mptcp_throttler.views.replayed import Carried

SAMPLE_SECONDS: Final = 0.1
"""As often as the daemon samples what brings a budget near its next step."""
MOST_SHOWN: Final = 20
"""Accounts in what came out of all; more where the policy has more budgets, one of each."""


class ReplayedBudgets:
    """Of one policy. All times are the capture's, seconds since the epoch."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._stage = BudgetStage()
        self._stage.set_policy(policy)
        self._moved: dict[FourTuple, tuple[int, Carried]] = {}
        """Subflows that carried something since the last sample: their tokens, and all that they carried."""
        self._sample_due = math.inf
        self._period_ends = math.inf
        self._cookies = count(1)
        self._cookie_of: dict[FourTuple, int] = {}

    @property
    def due(self) -> float:
        """When :meth:`sample` is next to be called."""
        return min(self._sample_due, self._period_ends)

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return *verdicts* with the caps of budgets that are used up."""
        if self._period_ends == math.inf:
            self._find_periods(now)
        return self._stage.apply(connection, verdicts, now)

    def forget(self, token: int) -> None:
        """The connection has ended."""
        self._stage.forget(token)

    def carried(self, token: int, four_tuple: FourTuple, carried: Carried, now: float) -> None:
        """A subflow has carried data: *carried* in all."""
        if self._policy.budgets:
            self._sample_due = min(self._sample_due, now + SAMPLE_SECONDS)
            self._moved[four_tuple] = token, carried

    def closed(self, four_tuple: FourTuple, carried: Carried, now: float) -> None:
        """A subflow has ended, and its connection been decided on without it; it carried so much."""
        if self._policy.budgets:
            self._sample_due = min(self._sample_due, now)
            self._moved.pop(four_tuple, None)
            end = four_tuple.remote, four_tuple.remote_port, four_tuple.local_port
            self._stage.socket_closed(self._cookie(four_tuple), end, carried.down, carried.up)
            del self._cookie_of[four_tuple]

    def sample(self, now: float) -> tuple[Sequence[int], Sequence[Reached]]:
        """Count what was carried; return which connections are to be decided anew, and the steps that were reached."""
        sockets = {
            each: KernelSubflow(
                token, each, True, 0, 0, False, now, carried.down, carried.up, cookie=self._cookie(each)
            )
            for each, (token, carried) in self._moved.items()
        }
        self._moved.clear()
        self._sample_due = math.inf
        changed = set(self._stage.advance(now, now))
        reached: list[Reached] = []
        for outcome in self._stage.observe(Samples(now, sockets, False)):
            changed.update(outcome.changed)
            reached += [each for each in outcome.effects if isinstance(each, Reached)]
        self._find_periods(now)
        return sorted(changed), reached

    def accounts(self, now: float) -> list[dict[str, Any]]:
        """Return the accounts, the fullest first, as ``summary`` has them."""
        return budget_rows(self._policy, self._stage.accounts(), now, MOST_SHOWN)[1] if self._policy.budgets else []

    def _find_periods(self, now: float) -> None:
        ends = (period(each, self._policy.time_zone, now)[1] for each in self._policy.budgets)
        self._period_ends = min(ends, default=math.inf)

    def _cookie(self, four_tuple: FourTuple) -> int:
        if four_tuple not in self._cookie_of:
            self._cookie_of[four_tuple] = next(self._cookies)
        return self._cookie_of[four_tuple]
