"""The answer to ``client``: what the owner of one connection may see of it, and nothing of anybody else's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from mptcp_throttler.mptcp.model import Connection, Subflow, SubflowState
from mptcp_throttler.views.client_budgets import own_budget
from mptcp_throttler.views.known import Known
from mptcp_throttler.views.requests import Request
from mptcp_throttler.views.snapshot import by_direction
from mptcp_throttler.views.words import address_text

End = tuple[bytes, int]


def connections_with(known: Known, endpoint: End) -> Iterator[tuple[Connection, Subflow]]:
    """Yield the connections of which *endpoint*, address and port, is the client's end of a subflow, with that subflow.

    Clients behind one NAT have the same one where they go to different addresses or ports of this host.
    """
    for connection in known.connections.values():
        for subflow in connection.subflows:
            if (subflow.four_tuple.remote, subflow.four_tuple.remote_port) == endpoint:
                yield connection, subflow


def _asked_for(known: Known, request: Request) -> Connection | None:
    """Return the one connection that *request* means; None where there is none, or there are several.

    By its token where it has one: the subflow may have ended since, and its ends be another connection's.
    """
    token, local = request.get("token"), request.get("local")
    if token is not None:
        return known.connections.get(token)
    found = [
        connection
        for connection, subflow in connections_with(known, request.arguments["endpoint"])
        if subflow.state is SubflowState.ACTIVE
        and local in (None, (subflow.four_tuple.local, subflow.four_tuple.local_port))
    ]
    return found[0] if len(found) == 1 else None


def own_client(
    known: Known, budgets: Callable[[Collection[str]], list[dict[str, Any]]], request: Request
) -> dict[str, Any]:
    """Return the answer. *budgets* returns the accounts of some addresses, and those that all share."""
    connection = _asked_for(known, request)
    time_zone = str(known.policy.time_zone)
    if connection is None:
        return {"multipath": False, "since": None, "time_zone": time_zone, "subflows": [], "budgets": []}
    verdicts = known.verdicts.get(connection.token, ())
    down, up = by_direction(verdicts)
    active = [each for each in connection.subflows if each.state is SubflowState.ACTIVE]
    samples, _ = known.sockets.look_up([each.four_tuple for each in active])
    dry_run = known.policy.dry_run
    subflows = []
    for each in active:
        verdict, upload = down.get(each.four_tuple), up.get(each.four_tuple)
        # What a dry run would cap is no cap.
        capping = verdict if verdict is not None and verdict.throttle is not None and not dry_run else None
        on_upload = upload.throttle if upload is not None and not dry_run else None
        sample = samples.get(each.four_tuple)
        sent, received = (
            known.traffic.carried(each.four_tuple) if sample is None else (sample.bytes_acked, sample.bytes_received)
        )
        subflows.append(
            {
                "path": None if verdict is None else verdict.path,
                "address": address_text(each.four_tuple.remote),
                "capped": capping is not None,
                "rate": None if capping is None or capping.throttle is None else capping.throttle.ceil,
                "rule": None if capping is None or capping.rule is None else capping.rule.name,
                "upload_rate": None if on_upload is None else on_upload.ceil,
                "bytes": sent + received,
                "bytes_sent": sent,
                "bytes_received": received,
            }
        )
    metered = {
        each.budget.budget.name for each in verdicts if each.budget is not None and each.budget.budget is not None
    }
    texts = (address_text(each.four_tuple.remote) for each in connection.subflows)
    addresses = {text for text in texts if text is not None}
    return {
        "multipath": True,
        "since": known.wall(connection.since),
        "time_zone": time_zone,
        "subflows": subflows,
        "budgets": [own_budget(each) for each in budgets(addresses) if each["name"] in metered],
    }
