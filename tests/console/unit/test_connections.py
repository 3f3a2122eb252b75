# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that idle connections and incomplete requests are ended after a time, and the oldest if there are too many."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from mptcp_common.http_bounds import MAX_WAITING, REQUEST_SECONDS, BoundedHttp

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"


class Timer:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self._when = when
        self.call = call
        self.is_cancelled = False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.is_cancelled = True


class Clock:
    """Replacement for the event loop's clock, which a test advances. Tasks run in the real event loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = count()

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self.now + delay, call)
        heapq.heappush(self._timers, (timer.when(), next(self._numbers), timer))
        return timer

    def create_task(self, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(task)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        while self._timers and self._timers[0][0] <= self.now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.is_cancelled:
                timer.call()


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_open = True
        self.sent = b""
        self.protocol: BoundedHttp | None = None

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return not self.is_open

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            assert self.protocol is not None
            self.protocol.connection_lost(None)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Server:
    """A server without a network. If it has a *gate*, it completes its answers only after this event is set."""

    def __init__(self, gate: asyncio.Event | None = None, **bounds: Any) -> None:
        self.clock = Clock()
        self._bounds = bounds
        self.bodies: list[bytes] = []
        self._gate = gate
        self._config = uvicorn.Config(
            self._app, interface="asgi3", http=BoundedHttp, ws="none", log_config=None, proxy_headers=False
        )
        self._config.load()
        self._state = ServerState()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more_body = b"", True
        while more_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more_body = body + message.get("body", b""), message.get("more_body", False)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        if self._gate is not None:
            await self._gate.wait()
        await send({"type": "http.response.body", "body": b"ok"})

    def connect(self) -> tuple[BoundedHttp, FakeTransport]:
        protocol = BoundedHttp(self._config, self._state, {}, self.clock, **self._bounds)
        transport = FakeTransport()
        transport.protocol = protocol
        protocol.connection_made(transport)
        return protocol, transport


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_connection_without_a_request_is_ended() -> None:
    async def run() -> None:
        server = Server()
        _, transport = server.connect()
        server.clock.advance(REQUEST_SECONDS - 0.1)
        assert transport.is_open
        server.clock.advance(0.1)
        assert not transport.is_open
        assert transport.sent == b""

    asyncio.run(run())


def test_connection_with_a_slow_request_is_ended() -> None:
    """A slow header or an unfinished body does not extend the time."""

    async def run() -> None:
        for request in (GET, POST + b"123"):
            server = Server()
            protocol, transport = server.connect()
            for number in range(len(request) - 1):
                protocol.data_received(request[number : number + 1])
                server.clock.advance((REQUEST_SECONDS - 0.1) / len(request))
            assert transport.is_open
            server.clock.advance(1)
            assert not transport.is_open
            await settle()
            assert server.bodies == []

    asyncio.run(run())


def test_slow_answer_is_not_aborted() -> None:
    async def run() -> None:
        gate = asyncio.Event()
        server = Server(gate)
        for request in (GET, POST + b"1234"):
            protocol, transport = server.connect()
            server.clock.advance(REQUEST_SECONDS - 1)
            protocol.data_received(request)
            await settle()
            server.clock.advance(100 * REQUEST_SECONDS)
            assert transport.is_open
            gate.set()
            await settle()
            assert transport.sent.endswith(b"ok")
            gate.clear()
        assert server.bodies == [b"", b"1234"]

    asyncio.run(run())


def test_incomplete_second_request_does_not_extend_the_time() -> None:
    """Defect: data after an answer stopped uvicorn's timer for idle connections, and no other timer was started."""

    async def run() -> None:
        server = Server()
        protocol, transport = server.connect()
        protocol.data_received(GET)
        await settle()
        assert transport.sent.endswith(b"ok")
        server.clock.advance(4)
        protocol.data_received(GET[:10])
        server.clock.advance(REQUEST_SECONDS - 4.1)
        assert transport.is_open
        server.clock.advance(0.2)
        assert not transport.is_open

    asyncio.run(run())


def test_slow_answer_is_aborted_if_answers_are_bounded() -> None:
    async def run() -> None:
        server = Server(asyncio.Event(), request_seconds=20, with_answers=True)
        protocol, transport = server.connect()
        protocol.data_received(GET)
        await settle()
        server.clock.advance(19.9)
        assert transport.is_open
        server.clock.advance(0.2)
        assert not transport.is_open

    asyncio.run(run())


def test_idle_time_may_exceed_the_request_time() -> None:
    """An example is a proxy that keeps connections for the next request of any client."""

    async def run() -> None:
        server = Server(request_seconds=20, with_answers=True, idle_seconds=75)
        protocol, transport = server.connect()
        for _ in range(2):
            protocol.data_received(GET)
            await settle()
            assert transport.sent.endswith(b"ok")
            protocol._unset_keepalive_if_required()  # uvicorn's own timer, which is 5 s here
            server.clock.advance(94.9)
            assert transport.is_open
        server.clock.advance(0.2)
        assert not transport.is_open

    asyncio.run(run())


def test_oldest_idle_connection_is_ended_and_an_active_one_kept() -> None:
    async def run() -> None:
        server = Server(asyncio.Event())
        protocol, served = server.connect()
        protocol.data_received(GET)
        await settle()
        transports = []
        for _ in range(MAX_WAITING + 10):
            transports.append(server.connect()[1])
            server.clock.advance(0.01)
        assert [transport.is_open for transport in transports] == [False] * 10 + [True] * MAX_WAITING
        assert served.is_open

    asyncio.run(run())
