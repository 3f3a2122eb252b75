# SPDX-License-Identifier: GPL-2.0-or-later
"""The grant stage: lifts the caps of clients with a grant. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import chain
from zoneinfo import ZoneInfo

from mptcp_throttler.mptcp.model import Connection
from mptcp_throttler.policy.budget import Grant
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.policy.values import Network, Prefixes
from mptcp_throttler.policy.verdict import Verdict, add_sentence
from mptcp_throttler.stages.stage import Stage


class GrantStage(Stage):
    """The second stage: removes the caps of clients with a grant. Their budgets are still metered."""

    needs_sockets = False
    interval, period = 1.0, float("inf")

    def __init__(self) -> None:
        self._zone: ZoneInfo | None = None
        self._prefixes: Prefixes[Grant] = Prefixes(())
        self.in_force: tuple[Grant, ...] = ()
        self.next_change = math.inf  # when the next grant begins or ends, seconds since the epoch

    def set_policy(self, policy: Policy) -> None:
        self._zone = policy.time_zone

    def set_grants(self, grants: Sequence[Grant], now: float, connections: Mapping[int, Connection]) -> Collection[int]:
        """Adopt the *grants* valid at *now*, in epoch seconds; return the connections to decide again."""
        lifts = [each for each in grants if not each.budget and now < each.until]
        in_force = tuple(sorted((each for each in lifts if each.since <= now), key=lambda each: -each.until))
        self.next_change = min((each.until if each.since <= now else each.since for each in lifts), default=math.inf)
        changed = set(in_force) ^ set(self.in_force)
        self.in_force = in_force
        self._prefixes = Prefixes((each.network, each) for each in in_force)
        if not changed:
            return ()
        changed_networks = Prefixes((each.network, True) for each in changed)
        return [
            token
            for token, connection in connections.items()
            if any(changed_networks.contains(each.four_tuple.remote) for each in connection.subflows)
        ]

    def covers(self, network: Network) -> bool:
        """Return whether a grant in force is for all of *network*."""
        return self._prefixes.has(network)

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return *verdicts*, without caps if a subflow of *connection* comes from a client with a grant."""
        if not self.in_force:
            return verdicts
        grants = chain.from_iterable(self._prefixes.values_of(each.four_tuple.remote) for each in connection.subflows)
        grant = max(grants, key=lambda each: each.until, default=None)
        if grant is None:
            return verdicts
        until = datetime.fromtimestamp(grant.until, self._zone)
        sentence = f"cap lifted until {until:%Y-%m-%d %H:%M %Z}: granted{f' by {grant.by}' if grant.by else ''}"
        return tuple([each if each.throttle is None else _lift_cap(each, sentence) for each in verdicts])


def _lift_cap(verdict: Verdict, sentence: str) -> Verdict:
    reason = add_sentence(verdict.reason, sentence, verdict.direction)
    return verdict._replace(scope=None, throttle=None, reason=reason, rests=False)
