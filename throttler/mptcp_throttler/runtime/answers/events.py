"""The answer to ``events``: what happened, in order, in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.telemetry import events as kinds
from mptcp_throttler.telemetry.events import Happened
from mptcp_throttler.views.answers import EventAnswer
from mptcp_throttler.views.requests import Request
from mptcp_throttler.views.words import address_text, end_text


def events(snapshot: Snapshot, request: Request) -> Iterator[EventAnswer]:
    """Yield the requested events: the first after a number; without one, the latest."""
    ring = snapshot.engine.events.ring
    after, limit = request.get("after"), request.get("limit")
    client, token, rule = (request.get(name) for name in ("client", "token", "rule"))
    # The client's address of each connection that exists or that an event names.
    clients = {token: each.client for token, each in snapshot.connections.items()}
    for event in ring.after(0):
        if event.token is not None and event.four_tuple is not None:
            clients.setdefault(event.token, event.four_tuple.remote)
    found = (
        event
        for event in ring.after(after or 0)
        if token in (None, event.token)
        and rule in (None, event.rule)
        and client in (None, _remote(event), clients.get(event.token or 0))
    )
    for event in deque(found, limit) if after is None else islice(found, limit):
        known = event.four_tuple
        address = _remote(event) if event.token is None else clients.get(event.token)
        yield {
            "seq": event.sequence,
            "time": event.time,
            "kind": event.kind,
            "token": None if event.token is None else f"{event.token:08x}",
            "client": address_text(address or b""),
            "remote": None if known is None else end_text(known.remote, known.remote_port),
            "local": None if known is None else end_text(known.local, known.local_port),
            "path": event.path,
            "rule": event.rule,
            "direction": event.direction,
            "text": _text(event),
        }


def _remote(event: Happened) -> bytes | None:
    return None if event.four_tuple is None else event.four_tuple.remote


def _text(event: Happened) -> str:
    known = event.four_tuple
    remote = "" if known is None else end_text(known.remote, known.remote_port)
    path = "" if event.path is None else f" on path {event.path}"
    upload = "upload of " if event.direction == "up" else ""
    match event.kind:
        case kinds.CONNECTION:
            return f"connection opened from {remote}"
        case kinds.SUBFLOW:
            return f"subflow {remote}: {event.detail}"
        case kinds.CLOSED if known is None:
            return f"connection closed: {event.detail}"
        case kinds.CLOSED:
            return f"subflow {remote} closed: {event.detail}"
        case kinds.DECIDED:
            return f"{upload}{remote}{path}: {event.detail}"
        case kinds.APPLIED:
            return f"{upload}{remote}{path}: cap of rule {event.rule} in force"
        case kinds.LIFTED:
            return f"{upload}{remote}{path}: no cap in force any more"
        case _:
            return f"{remote}{path}: {event.detail}" if remote else event.detail
