"""The answer to ``events``: what happened, in order, in words."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.telemetry import events as kinds
from mptcp_throttler.telemetry.events import EventRing, Happened
from mptcp_throttler.views.requests import Request
from mptcp_throttler.views.snapshot import end_text
from mptcp_throttler.views.words import address_text

DEFAULT_LIMIT = 1000


def events(ring: EventRing, connections: Mapping[int, Connection], request: Request) -> Iterator[str]:
    """Yield the text of the answer's keys, without braces."""
    after, limit = request.get("after"), request.get("limit", DEFAULT_LIMIT)
    clients = _clients(ring, connections)
    found = _matching(ring.after(after or 0), clients, request)
    # Who does not say from where on wants the latest.
    chosen: Iterable[Happened] = deque(found, limit) if after is None else islice(found, limit)
    yield f'"first": {ring.first}, "last": {ring.last}, "events": ['
    separator = ""
    for event in chosen:
        yield separator + json.dumps(_event(event, clients))
        separator = ", "
    yield "]"


def _clients(ring: EventRing, connections: Mapping[int, Connection]) -> dict[int, bytes]:
    """Return the client's address of each connection that there is, or of which an event tells."""
    clients = {token: each.client for token, each in connections.items()}
    for event in ring.after(0):
        if event.token is not None and event.four_tuple is not None:
            clients.setdefault(event.token, event.four_tuple.remote)
    return clients


def _matching(found: Iterable[Happened], clients: Mapping[int, bytes], request: Request) -> Iterator[Happened]:
    client, token, rule = (request.get(name) for name in ("client", "token", "rule"))
    for event in found:
        if token is not None and event.token != token:
            continue
        if rule is not None and event.rule != rule:
            continue
        if client is not None and client != _remote(event) and client != clients.get(event.token or 0):
            continue
        yield event


def _remote(event: Happened) -> bytes | None:
    return None if event.four_tuple is None else event.four_tuple.remote


def _event(event: Happened, clients: Mapping[int, bytes]) -> dict[str, Any]:
    known = event.four_tuple
    client = _remote(event) if event.token is None else clients.get(event.token, b"")
    return {
        "seq": event.sequence,
        "time": event.time,
        "kind": event.kind,
        "token": None if event.token is None else f"{event.token:08x}",
        "client": address_text(client or b""),
        "remote": None if known is None else end_text(known.remote, known.remote_port),
        "local": None if known is None else end_text(known.local, known.local_port),
        "path": event.path,
        "rule": event.rule,
        "direction": event.direction,
        "text": _text(event, known),
    }


def _text(event: Happened, known: FourTuple | None) -> str:
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
