# SPDX-License-Identifier: GPL-2.0-or-later
"""HTTP connections with two limits: the time in which a request must arrive, and the number of connections without a
complete request.

uvicorn ends a connection that is idle after an answer, but waits without limit for the first request, and for the rest
of a request that has begun. The console and the portal use this; no other program loads uvicorn.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS: Final = 10.0
"""Maximum time for a whole request with its body, from the connection's start or from the previous answer."""
MAX_WAITING: Final = 64
"""Maximum number of connections without a complete request; if there are more, the connection that has waited longest
is closed. A browser opens fewer."""


class BoundedHttp(H11Protocol):
    """An HTTP/1.1 connection with both limits."""

    def __init__(
        self,
        *arguments: Any,
        request_seconds: float = REQUEST_SECONDS,
        max_waiting: int | None = MAX_WAITING,
        with_answers: bool = False,
        idle_seconds: float = 0.0,
        **named: Any,
    ) -> None:
        """*with_answers*: whether *request_seconds* includes the answer; if not, an answer may last without limit, like
        a stream of events. *idle_seconds*: additional idle time after an answer."""
        super().__init__(*arguments, **named)
        self._request_seconds = request_seconds
        self._max_waiting = max_waiting
        self._with_answers = with_answers
        self._idle_seconds = idle_seconds
        self._deadline: asyncio.TimerHandle | None = None
        """Timer that runs while a request is expected and, if answers are limited, until it has been answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_deadline()

    def send_400_response(self, msg: str) -> None:
        # A request with a malformed body may already have an answer, or get one soon. If uvicorn tried to send a second
        # answer, it would log a traceback, so any client could fill the journal.
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # the request was already answered, or its answer has no body (HEAD)
            self._end()

    def on_response_complete(self) -> None:
        # The new timer runs until the next request is complete. uvicorn's own timer runs only until the request
        # begins, so a request without an end would keep its connection forever.
        self._cancel_deadline()
        super().on_response_complete()
        self._update_deadline(self._idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_deadline()

    def _update_deadline(self, idle_seconds: float = 0.0) -> None:
        """Start or stop the timer, depending on the connection's state; *idle_seconds* are added to its time."""
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
        if self._max_waiting is None:
            return
        waiting = {
            each: each._deadline.when()
            for each in self.connections
            if isinstance(each, BoundedHttp) and each._deadline is not None
        }
        if len(waiting) > self._max_waiting:
            min(waiting, key=waiting.__getitem__)._end()

    def _end(self) -> None:
        self._cancel_deadline()
        # close() would wait for a client that does not read.
        self.transport.abort()
