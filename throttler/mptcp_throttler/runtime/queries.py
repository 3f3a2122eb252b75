"""Answers requests of the status socket, in a child: one function of ``runtime.answers`` per query."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

import msgspec

from mptcp_throttler.runtime.answers import connections, explain, summary, what_if
from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.views.answers import SCHEMA
from mptcp_throttler.views.requests import Request, RequestError, parse_request


def answer(snapshot: Snapshot, line: bytes) -> Iterator[bytes]:
    """Yield the JSON answer to *line* in pieces; for an empty line, the whole status. An answer is one line: without an
    end of line it was cut off."""
    try:
        yield from _answer(snapshot, parse_request(line))
    except RequestError as error:  # before any part of an answer
        yield _encoded({"schema": SCHEMA, "error": str(error)})
    yield b"\n"


def _answer(snapshot: Snapshot, request: Request) -> Iterator[bytes]:
    common, policy = snapshot.common, snapshot.policy
    match request.query:
        case "status":
            yield from _long(summary.head(snapshot), "connections", connections.status_connections(snapshot))
            rest = {"classes": connections.classes(snapshot), "counters": summary.counters(snapshot)}
            yield b"," + _encoded(rest)[1:]
        case "head":
            yield _encoded(summary.head(snapshot))
        case "summary":
            yield _encoded(summary.summary(snapshot))
        case "connections":
            found = connections.matching(snapshot, request)
            start: int = request.get("offset")
            page = found[start : start + request.get("limit")]
            yield from _long({**common, "total": len(found)}, "connections", connections.details(snapshot, page))
            yield b"}"
        case "clients":
            yield _encoded(summary.clients(snapshot, request))
        case "explain":
            yield _encoded(explain.explain(snapshot, request))
        case "events":
            ring = snapshot.engine.events.ring
            head = {**common, "first": ring.first, "last": ring.last}
            yield from _long(head, "events", explain.events(snapshot, request))
            yield b"}"
        case "client":
            yield _encoded(connections.client(snapshot, request))
        case "budgets":
            yield _encoded({**common, "budgets": connections.client_budgets(snapshot, request.get("client"))})
        case "policy":
            about = {"file": str(snapshot.settings.policy), "since": snapshot.taken, "dry_run": policy.dry_run}
            yield _encoded({**common, **about, "text": policy.text})
        case "what_if":
            yield _encoded(what_if.what_if(snapshot, request.get("policy")))


def _long(head: Mapping[str, object], key: str, items: Iterable[object]) -> Iterator[bytes]:
    """Yield, in pieces and without its closing brace, the object *head* plus the list *key* of *items*."""
    yield _encoded(head)[:-1] + f',"{key}":['.encode()
    separator = b""
    for item in items:
        yield separator + _encoded(item)
        separator = b","
    yield b"]"


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # half a surrogate pair, of a request or a file's name: it may pass escaped
        return json.dumps(value, default=attrgetter("value")).encode()
