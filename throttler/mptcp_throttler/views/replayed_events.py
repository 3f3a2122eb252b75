"""What the tracker tells of a replayed capture, as entries of its timeline. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mptcp_throttler.mptcp.model import Connection, Event, EventKind, FourTuple, Subflow, SubflowState
from mptcp_throttler.views.replayed import Carried, Entry

ConnectionOf = Callable[[int], Connection | None]
"""Returns the open connection with a token."""

_DETAILS: Final = {
    "unknown token": "no connection with this token is known: it began before the capture, or the join is forged",
}


def entry_of(event: Event, now: float, connection_of: ConnectionOf, carried: Carried) -> Entry:
    """Return the entry of *event*; *carried* is what its subflow carried, where it has one."""
    four_tuple, token = event.four_tuple, event.token
    match event.kind:
        case EventKind.CONNECTION_OPENED:
            return Entry(now, "connection", f"connection {token:08x} is open", token, four_tuple)
        case EventKind.CONNECTION_CLOSED:
            return Entry(now, "closed", f"connection {token:08x} has ended: {event.detail}", token)
        case EventKind.SUBFLOW_ACTIVE if four_tuple is not None:
            text = f"active: {_kind(_subflow(connection_of(token), four_tuple))}"
            return Entry(now, "subflow", text, token, four_tuple)
        case EventKind.SUBFLOW_CLOSED if four_tuple is not None:
            return Entry(now, "closed", f"has ended: {event.detail}; {carried}", token, four_tuple)
        case EventKind.SUBFLOW_CHANGED:
            subflow = None if four_tuple is None else _subflow(connection_of(token), four_tuple)
            return Entry(now, "changed", _change(event, subflow), token, four_tuple)
        case EventKind.JOIN_REFUSED:
            detail = _DETAILS.get(event.detail, event.detail)
            return Entry(now, "refused", f"join refused: {detail}", token, four_tuple)
    return Entry(now, "changed", event.detail, token, four_tuple)


def _change(event: Event, subflow: Subflow | None) -> str:
    if subflow is None or subflow.state is SubflowState.CLOSING:
        return f"is closing: {event.detail}"
    return f"is now: {_kind(subflow)}"


def _kind(subflow: Subflow | None) -> str:
    if subflow is None:
        return "a subflow"
    parts = ["initial subflow" if subflow.initial else "joined subflow"]
    if subflow.remote_id:
        parts.append(f"address id {subflow.remote_id}")
    parts.append("backup" if subflow.backup else "regular")
    if subflow.interface:
        parts.append(f"leaves by {subflow.interface}")
    return ", ".join(parts)


def _subflow(connection: Connection | None, four_tuple: FourTuple) -> Subflow | None:
    found = () if connection is None else connection.subflows
    return next((each for each in found if each.four_tuple == four_tuple), None)
