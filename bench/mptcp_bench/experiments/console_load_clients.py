# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients of the console in the experiment ``console``: browsers on its event stream, a table request, a scraper."""

from __future__ import annotations

import http.client
import json
import math
import re
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from mptcp_lab.testbed import LiveNode

from .console_load_judging import Pushed
from .working_thread import WorkingThread

ADDRESS: Final = "127.0.0.1"
PATIENCE: Final = 20.0
"""Seconds after which an answer counts as missing."""
MOMENT: Final = re.compile(rb"event: moment\ndata: (\{.*\})\n\n")
_POLL: Final = 0.02
_TAKE: Final = 0.2
"""Seconds within which a thread notices that it should stop."""
_CONNECTIONS: Final = re.compile(r"^mptcp_throttler_connections (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class _Stream:
    """What one browser has received."""

    octets: int = 0
    updates: int = 0
    rest: bytes = b""
    capped: list[tuple[float, int]] = field(default_factory=list)
    """For each update, its time and the number of capped connections that it reports."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What each browser had received up to a time: bytes and updates."""

    time: float
    octets: tuple[int, ...]
    updates: tuple[int, ...]

    def until(self, later: Reading) -> Pushed:
        """Return bytes and updates per second between this reading and a *later* one."""
        span = later.time - self.time
        return Pushed(
            tuple((b - a) / span for a, b in zip(self.octets, later.octets, strict=True)),
            tuple((b - a) / span for a, b in zip(self.updates, later.updates, strict=True)),
        )


class Streams(WorkingThread):
    """*count* browsers that have the page open: each reads the event stream ``/api/live`` continuously."""

    def __init__(self, node: LiveNode, port: int, count: int) -> None:
        super().__init__("streams", node)
        self._port = port
        self._streams = [_Stream() for _ in range(count)]

    def work(self) -> None:
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            for stream in self._streams:
                client = stack.enter_context(socket.create_connection((ADDRESS, self._port), timeout=PATIENCE))
                client.sendall(f"GET /api/live HTTP/1.1\r\nHost: {ADDRESS}:{self._port}\r\n\r\n".encode())
                selector.register(client, selectors.EVENT_READ, stream)
            while not self.stop.is_set():
                for key, _ in selector.select(_TAKE):
                    try:
                        data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    except ConnectionResetError:
                        data = b""
                    if not data:
                        selector.unregister(key.fileobj)
                    self._take(key.data, data)

    def _take(self, stream: _Stream, data: bytes) -> None:
        stream.octets += len(data)
        stream.rest, found = moments(stream.rest + data)
        stream.updates += len(found)
        now = time.monotonic()
        overviews = (json.loads(each)["now"] for each in found)
        stream.capped += [(now, each["capped"]) for each in overviews if each is not None]

    def read(self) -> Reading:
        streams = self._streams
        return Reading(
            time.monotonic(), tuple(each.octets for each in streams), tuple(each.updates for each in streams)
        )

    def all_with(self, capped: int, after: float, within: float) -> float:
        """Return when the last browser learned, after *after*, of *capped* caps; infinite after *within* seconds."""
        deadline = time.monotonic() + within
        while math.isinf(last := max(_first(each.capped, capped, after) for each in self._streams)):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL)
        return last


def _first(seen: list[tuple[float, int]], capped: int, after: float) -> float:
    return next((when for when, number in seen if when >= after and number == capped), math.inf)


def moments(text: bytes) -> tuple[bytes, list[bytes]]:
    """Return the bytes of *text* after the last complete message, and the JSON data of all complete messages."""
    rest, found = 0, []
    for match in MOMENT.finditer(text):
        rest = match.end()
        found.append(match[1])
    return text[rest:], found


class Repeating(WorkingThread):
    """A thread that calls *call* every *interval* seconds and keeps the results."""

    def __init__(self, node: LiveNode, interval: float, call: Callable[[], Any]) -> None:
        super().__init__("repeated", node)
        self._interval = interval
        self._call = call
        self.results: list[Any] = []

    def work(self) -> None:
        due = time.monotonic()
        while not self.stop.wait(max(0.0, due - time.monotonic())):
            self.results.append(self._call())
            due = max(due + self._interval, time.monotonic())


@dataclass(frozen=True, slots=True)
class Answer:
    """The console's answer to one request."""

    seconds: float
    status: int
    body: bytes


def get(port: int, path: str) -> Answer:
    """Request *path* from the console. Raises OSError or HTTPException if it does not answer."""
    begin = time.monotonic()
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    return Answer(time.monotonic() - begin, answer.status, body)


def scrape(port: int, tunnels: int) -> float:
    """Return the seconds that ``/metrics`` took; infinite if it failed or does not show *tunnels* connections."""
    try:
        answer = get(port, "/metrics")
    except (OSError, http.client.HTTPException):
        return float("inf")
    return answer.seconds if answer.status == 200 and is_whole(answer.body.decode(), tunnels) else float("inf")


def is_whole(metrics: str, tunnels: int) -> bool:
    """Return whether *metrics* show that the throttler answers and has *tunnels* connections."""
    found = _CONNECTIONS.search(metrics)
    return "\nmptcp_throttler_up 1.0\n" in metrics and found is not None and float(found[1]) == tunnels


def rows(port: int, tunnels: int, limit: int = 50) -> tuple[float, int]:
    """Request a page of the table. Return the seconds, infinite for a wrong answer, and the answer's bytes."""
    try:
        answer = get(port, f"/api/connections?sort=rate&limit={limit}&offset=0")
        document = json.loads(answer.body)
    except (OSError, http.client.HTTPException, ValueError):
        return float("inf"), 0
    right = document.get("total") == tunnels and len(document["connections"]) == min(limit, tunnels)
    return (answer.seconds if right else float("inf")), len(answer.body)
