"""HTTP connections with bounds on those that ask nothing: on the time in which a request comes, and on their number.

uvicorn ends a connection that is idle after an answer, and waits for a first request, and for the rest of one that has
begun, as long as the other end likes. For console and portal; nobody else loads uvicorn.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS: Final = 10.0
"""Within which a request comes whole, with its body: counted from the connection, or from the answer before."""
MOST_WAITING: Final = 64
"""Connections without a whole request; of more, the one that has waited longest is ended. No browser has so many."""


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
        """*with_answers*: within *request_seconds* the answer is given as well; else it may take its time, as a stream
        of events does. *idle_seconds*: for which a connection may be idle after an answer, beside that."""
        super().__init__(*arguments, **named)
        self._request_seconds = request_seconds
        self._most_waiting = most_waiting
        self._with_answers = with_answers
        self._idle_seconds = idle_seconds
        self._deadline: asyncio.TimerHandle | None = None
        """While a request is to come, or to be answered where answers are bounded."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def send_400_response(self, msg: str) -> None:
        # Where it is a request's body that is no HTTP, that may be answered, or about to be. uvicorn gives a second
        # answer, which is an error with a traceback: whoever likes could fill the journal.
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # there is an answer, or it has no body, as that to HEAD
            self._end()

    def on_response_complete(self) -> None:
        # Not only until the next request begins, as uvicorn's own timer: one that never ends would stay for good.
        self._wait_no_more()
        super().on_response_complete()
        self._look(self._idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._wait_no_more()

    def _look(self, idle_seconds: float = 0.0) -> None:
        """See whether a deadline is to run; *idle_seconds* come before it."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY) and not self._with_answers:
            self._wait_no_more()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(idle_seconds + self._request_seconds, self._end)
            self._make_room()

    def _wait_no_more(self) -> None:
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
        self._wait_no_more()
        # Not close(), which would wait for a client that takes nothing.
        self.transport.abort()
