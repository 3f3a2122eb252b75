"""The answer to ``clients``: who uses what. One pass over the connections; rows only for the clients that are shown."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final

from mptcp_throttler.mptcp.model import Connection
from mptcp_throttler.runtime.answers.plain_tcp import plain_tcp
from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.views.answers import AccountAnswer, Answer, ClientsAnswer, ClientTotals
from mptcp_throttler.views.budgets import budget_rows, budgets_of
from mptcp_throttler.views.requests import Request
from mptcp_throttler.views.words import address_text


class _Client:
    """One address that opened connections, or that only has a budget account."""

    __slots__ = (
        "address", "addresses", "capped", "connections", "received", "received_rate", "sent", "sent_rate", "subflows",
    )  # fmt: skip

    def __init__(self, address: bytes) -> None:
        self.address = address
        self.addresses = {address}
        self.connections = self.subflows = self.capped = 0
        self.sent = self.received = self.sent_rate = self.received_rate = 0

    def take(self, connection: Connection, snapshot: Snapshot, is_dry: bool) -> None:
        traffic = snapshot.engine.traffic
        self.connections += 1
        for subflow in connection.subflows:
            four_tuple = subflow.four_tuple
            rates, (sent, received) = traffic.rates(four_tuple), traffic.carried(four_tuple)
            self.subflows += 1
            self.addresses.add(four_tuple.remote)
            self.sent += sent
            self.received += received
            self.sent_rate += rates.sent or 0
            self.received_rate += rates.received or 0
        if not is_dry:
            verdicts = snapshot.verdicts(connection.token)
            self.capped += len({each.four_tuple for each in verdicts if each.throttle is not None})


_SORTS: Final[Mapping[str, Callable[[_Client], Any]]] = {
    "rate": lambda each: (-each.sent_rate - each.received_rate, -each.sent - each.received, each.address),
    "bytes": lambda each: (-each.sent - each.received, each.address),
    "connections": lambda each: (-each.connections, each.address),
    "client": lambda each: (len(each.address), each.address),
}


def clients(snapshot: Snapshot, answer: Answer, request: Request) -> ClientsAnswer:
    """Return the common *answer* plus the first clients in the order of *request*."""
    found: dict[bytes, _Client] = {}
    is_dry = snapshot.policy.dry_run
    for connection in list(snapshot.connections.values()):
        address = connection.client
        if not address:  # its last subflow has ended, but the connection has not yet
            continue
        client = found.get(address)
        if client is None:
            client = found[address] = _Client(address)
        client.take(connection, snapshot, is_dry)
    total, limit, sort = len(found), request.get("limit"), request.get("sort")
    if sort == "budget":
        shown = _fullest(snapshot, found, limit)
    else:
        shown = heapq.nsmallest(limit, found.values(), key=_SORTS[sort])
    accounts = _accounts(snapshot, shown)
    return {
        **answer,
        "total": total,
        "clients": [_row(each, accounts.get(id(each), [])) for each in shown],
        "plain_tcp": plain_tcp(snapshot, limit),
    }


def _fullest(snapshot: Snapshot, found: Mapping[bytes, _Client], limit: int) -> list[_Client]:
    """Return first the clients that used most of their own budget, connected or not; then the others."""
    policy = snapshot.policy
    most = limit * max(1, len(policy.budgets))
    _, rows = budget_rows(policy, snapshot.engine.budget_stage.accounts.used, snapshot.now, most)
    owners = {address: client for client in found.values() for address in client.addresses}
    shown: dict[bytes, _Client] = {}
    for row in rows:
        if row["client"] is not None:
            address = ip_address(row["client"]).packed
            owner = owners.get(address) or _Client(address)
            shown.setdefault(owner.address, owner)
    others = heapq.nsmallest(limit, (each for each in found.values() if each.address not in shown), key=_SORTS["rate"])
    return list(islice([*shown.values(), *others], limit))


def _accounts(snapshot: Snapshot, shown: list[_Client]) -> dict[int, list[AccountAnswer]]:
    """Return the accounts of *shown*, by the identity of each client, the fullest first."""
    owners = {address_text(address) or "": client for client in shown for address in client.addresses}
    found: dict[int, list[AccountAnswer]] = {}
    rows = budgets_of(snapshot.policy, snapshot.engine.budget_stage.accounts.used, snapshot.now, owners.keys())
    for row in rows:
        if row["client"] is not None:
            found.setdefault(id(owners[row["client"]]), []).append(row)
    return found


def _row(client: _Client, budgets: list[AccountAnswer]) -> ClientTotals:
    return {
        "client": address_text(client.address) or "",
        "connections": client.connections,
        "subflows": client.subflows,
        "capped": client.capped,
        "rate_sent": client.sent_rate,
        "rate_received": client.received_rate,
        "bytes_sent": client.sent,
        "bytes_received": client.received,
        "budgets": budgets,
    }
