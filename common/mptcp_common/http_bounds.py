# SPDX-License-Identifier: GPL-2.0-or-later
"""HTTP connections with bounds on how long a request may take to come, and on how many connections wait for one.

uvicorn ends a connection that is idle after an answer, but waits without limit for a first request, and for the rest of
a begun one. For console and portal; no other program loads uvicorn.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS: Final = 10.0
"""Limit for a whole request with its body, from the connection's begin or the previous answer."""
MOST_WAITING: Final = 64
"""Maximum number of connections without a complete request; if there are more, the one that waited longest is ended. No
browser opens so many."""


class BoundedHttp(H11Protocol):
    """HTTP/1.1 with these bounds."""

    def __init__(
        self,
        *arguments: Any,
        request_seconds: float = REQUEST_SECONDS,
        most_waiting: int | None = MOST_WAITING,
        with_answers: bool = False,
        idle_seconds: float = 0.0,
        **named: Any,
    ) -> None:
        """*with_answers*: *request_seconds* include the answer; otherwise that may take its time, like a stream of
        events. *idle_seconds*: additional idle time after an answer."""
        super().__init__(*arguments, **named)
        self._request_seconds = request_seconds
        self._most_waiting = most_waiting
        self._with_answers = with_answers
        self._idle_seconds = idle_seconds
        self._deadline: asyncio.TimerHandle | None = None
        """Timer that runs while a request must come, or while it must be answered if answers are bounded."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def send_400_response(self, msg: str) -> None:
        # A malformed request body may already have an answer, or be about to. uvicorn's second answer would be an
        # error with a traceback: anyone could fill the journal.
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # there is an answer already, or it has no body (HEAD)
            self._end()

    def on_response_complete(self) -> None:
        # Not only until the next request begins, like uvicorn's own timer: an endless request would stay forever.
        self._cancel_deadline()
        super().on_response_complete()
        self._look(self._idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_deadline()

    def _look(self, idle_seconds: float = 0.0) -> None:
        """Start or stop the deadline; *idle_seconds* are added."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY) and not self._with_answers:
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(idle_seconds + self._request_seconds, self._end)
            self._make_room()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        if self._most_waiting is None:
            return
        waiting = {
            each: each._deadline.when()
            for each in self.connections
            if isinstance(each, BoundedHttp) and each._deadline is not None
        }
        if len(waiting) > self._most_waiting:
            min(waiting, key=waiting.__getitem__)._end()

    def _end(self) -> None:
        self._cancel_deadline()
        # Not close(), which would wait for a client that reads nothing.
        self.transport.abort()
