"""Answers requests of the status socket, in a child: one function of ``runtime.answers`` per query."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

import msgspec

from mptcp_common import __version__
from mptcp_throttler.runtime.answers.clients import clients
from mptcp_throttler.runtime.answers.connections import (
    classes,
    client_budgets,
    connection_budgets,
    details,
    matching,
    own_connection,
    own_subflows,
    status_connections,
)
from mptcp_throttler.runtime.answers.explain import asked_for, events, explained
from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.runtime.answers.summary import counters, head, summary
from mptcp_throttler.runtime.answers.what_if import what_if
from mptcp_throttler.views.answers import (
    SCHEMA,
    Answer,
    BudgetsAnswer,
    ClientAnswer,
    ErrorAnswer,
    ExplainAnswer,
    PolicyAnswer,
)
from mptcp_throttler.views.requests import Request, RequestError, parse_request

_encode = msgspec.json.Encoder().encode


def answer(snapshot: Snapshot, line: bytes) -> Iterator[bytes]:
    """Yield the JSON answer to *line* in pieces; for an empty line, the whole status. An answer is one line: without an
    end of line it was cut off."""
    try:
        yield from _answer(snapshot, parse_request(line))
    except RequestError as error:  # before any part of an answer
        refused: ErrorAnswer = {"schema": SCHEMA, "error": str(error)}
        yield _encoded(refused)
    yield b"\n"


def _answer(snapshot: Snapshot, request: Request) -> Iterator[bytes]:
    ring = snapshot.engine.events.ring
    common: Answer = {"schema": SCHEMA, "time": snapshot.now, "version": __version__, "pid": snapshot.pid}
    match request.query:
        case "status":
            yield from _long(head(snapshot, common), "connections", status_connections(snapshot))
            yield b"," + _encoded({"classes": classes(snapshot), "counters": counters(snapshot)})[1:]
        case "head":
            yield _encoded(head(snapshot, common))
        case "summary":
            yield _encoded(summary(snapshot, common))
        case "connections":
            found = matching(snapshot, request)
            start: int = request.get("offset")
            page = found[start : start + request.get("limit")]
            yield from _long({**common, "total": len(found)}, "connections", details(snapshot, page))
            yield b"}"
        case "clients":
            yield _encoded(clients(snapshot, common, request))
        case "explain":
            asked = asked_for(snapshot, request)
            explain: ExplainAnswer = {
                **common,
                "time_zone": str(snapshot.policy.time_zone),
                "total": len(asked),
                "connections": explained(snapshot, asked),
            }
            yield _encoded(explain)
        case "events":
            yield from _long({**common, "first": ring.first, "last": ring.last}, "events", events(snapshot, request))
            yield b"}"
        case "client":
            connection = own_connection(snapshot, request)
            client: ClientAnswer = {
                **common,
                "multipath": connection is not None,
                "since": None if connection is None else snapshot.wall(connection.since),
                "time_zone": str(snapshot.policy.time_zone),
                "subflows": [] if connection is None else own_subflows(snapshot, connection),
                "budgets": [] if connection is None else connection_budgets(snapshot, connection),
            }
            yield _encoded(client)
        case "budgets":
            budgets: BudgetsAnswer = {**common, "budgets": client_budgets(snapshot, request.get("client"))}
            yield _encoded(budgets)
        case "policy":
            policy: PolicyAnswer = {
                **common,
                "file": str(snapshot.settings.policy),
                "since": snapshot.taken,
                "dry_run": snapshot.policy.dry_run,
                "text": snapshot.policy.text,
            }
            yield _encoded(policy)
        case "what_if":
            yield _encoded(what_if(snapshot, common, request.get("policy")))


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
        return _encode(value)
    except UnicodeEncodeError:  # half a surrogate pair, of a request or a file's name: it may pass escaped
        return json.dumps(value, default=attrgetter("value")).encode()
