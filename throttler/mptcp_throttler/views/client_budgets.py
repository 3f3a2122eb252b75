"""The answer to ``budgets``: the volumes of one client address, whether or not it has a connection now.

An operating system asks what is left when it joins a network, before it has opened anything. So the policy is asked
what it would meter of a subflow from that address; and what has metered it is known by verdicts and by accounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mptcp_throttler.mptcp.model import Connection, FourTuple, Subflow, SubflowState
from mptcp_throttler.policy.budget import Account, period
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.model import Budget, Policy, Verdict
from mptcp_throttler.views.budgets import budgets_of
from mptcp_throttler.views.known import Known
from mptcp_throttler.views.words import address_text

_SHOWN: Final = ("name", "client", "used", "volume", "left", "step", "next_step", "until")


def own_budget(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client may see of an account that counts its traffic."""
    return {key: row[key] for key in _SHOWN} | {"shared": row["client"] is None}


def client_budgets(known: Known, used: Mapping[Account, int], address: bytes) -> list[dict[str, Any]]:
    """Return the accounts of *address*, packed, and those that it shares with others; the fullest first."""
    policy, text = known.policy, address_text(address) or ""
    names = _would_meter(policy, address, known.now) | {
        budget.name
        for verdicts in known.verdicts.values()
        for verdict in verdicts
        if verdict.four_tuple.remote == address and (budget := _metering(verdict)) is not None
    }
    unused = {
        Account(each.name, text, period(each, policy.time_zone, known.now)[0]): 0
        for each in policy.budgets.values()
        if each.per_client and each.name in names
    }
    rows = budgets_of(policy, unused | dict(used), known.now, {text})
    return [own_budget(each) for each in rows if each["client"] is not None or each["name"] in names]


def _metering(verdict: Verdict) -> Budget | None:
    return None if verdict.budget is None else verdict.budget.budget


def _would_meter(policy: Policy, address: bytes, now: float) -> set[str]:
    """Return the budgets that would meter the first or the second subflow from *address*, whatever its interface."""
    local = bytes(len(address))
    subflows = tuple(
        Subflow(FourTuple(local, 0, address, port), SubflowState.ACTIVE, not port, None, None, False, None, now)
        for port in (0, 1)
    )
    return {
        budget.name
        for count in (1, 2)
        for verdict in evaluate(policy, Connection(0, subflows[:count], now), now)
        if (budget := _metering(verdict)) is not None
    }
