# SPDX-License-Identifier: GPL-2.0-or-later
"""The console's pages and their API (Starlette). They change nothing except the login cookie."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from mptcp_common import __version__, journal
from mptcp_console import parameters
from mptcp_console.access import COOKIE, COOKIE_SECONDS, HostNames, Token
from mptcp_console.address_names import AddressNames
from mptcp_console.live import Live
from mptcp_console.overviews import policy_page
from mptcp_console.protection import Protection
from mptcp_console.query_queue import Busy, QueryQueue
from mptcp_console.rates import columns
from mptcp_console.settings import Settings
from mptcp_console.watch import MAX_WATCHERS, TooManyWatchers, Watch, state_of_error

STATIC: Final = Path(__file__).parent / "static"
DOCS: Final = (Path("/usr/share/doc/mptcp-steering-proxy/docs"), Path(__file__).parents[2] / "docs")
"""Possible directories of the documentation: in the package, and in a checkout."""
MAX_BODY: Final = 256 * 1024
"""Maximum size of a request's body, bytes: enough for a policy in which JSON escapes every character as ``\\uXXXX``."""
MAX_FORM: Final = 4096

_DOC: Final = re.compile("[a-z0-9-]{1,40}")

Handler = Callable[[Request], Awaitable[Response]]


class Console:
    """Answers each route."""

    def __init__(
        self, watch: Watch, query_queue: QueryQueue, settings: Settings, clock: Callable[[], float] = time.time
    ) -> None:
        self._watch = watch
        self._query_queue = query_queue
        self._settings = settings
        self._token = None if settings.token is None else Token(settings.token)
        self._names = AddressNames(settings.names, lambda text: journal.say(f"mptcp-console: {text}", journal.WARNING))
        self._docs = next((each for each in DOCS if (each / "console.md").exists()), None)
        self._live = Live(watch, self._token is not None, self._names)
        self._clock = clock

    def application(self, *mounted: BaseRoute) -> ASGIApp:
        """Return the application, with the *mounted* routes under the same protection."""
        routes: list[BaseRoute] = [
            Route("/", self._page("index.html")),
            Route("/api/live", self._with_errors(self._stream)),
            Route("/api/viewers", self._with_errors(self._viewers)),
            Route("/api/history", self._with_errors(self._history)),
            Route("/api/events", self._with_errors(self._events)),
            Route("/api/about", self._with_errors(self._about)),
            Route("/api/clients", self._with_errors(self._clients)),
            Route("/api/policy", self._with_errors(self._policy)),
            Route("/api/connections", self._with_errors(self._connections)),
            Route("/api/explain", self._with_errors(self._explain)),
            Route("/api/policy_text", self._with_errors(self._policy_text)),
            Route("/api/what_if", self._with_errors(self._what_if), methods=["POST"]),
            Route("/docs/{name}.md", self._doc),
            Mount("/static", _Static(directory=STATIC)),
            *mounted,
        ]
        if self._token is not None:
            routes += [
                Route("/login", self._page("login.html")),
                Route("/login", self._with_errors(self._log_in), methods=["POST"]),
                Route("/logout", self._log_out, methods=["POST"]),
            ]
        app = Starlette(routes=routes, lifespan=self._lifespan)
        names = HostNames(self._settings.address, self._settings.hosts)
        return Protection(app, names, self._token, self._clock)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        polling = asyncio.create_task(self._watch.run())
        try:
            yield
        finally:
            await self._watch.close()
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    @staticmethod
    def _page(name: str) -> Handler:
        async def page(_: Request) -> Response:
            return FileResponse(STATIC / name, headers={"Cache-Control": "no-cache"})

        return page

    def _with_errors(self, handler: Handler) -> Handler:
        """Return a function that calls *handler*, and converts its exceptions to error responses."""

        async def answer_or_error(request: Request) -> Response:
            try:
                return await handler(request)
            except parameters.InvalidParameter as error:
                return _error(400, str(error))
            except (Busy, TooManyWatchers):
                return _error(503, "too many requests at once; the page tries again", {"Retry-After": "2"})
            except OSError as error:
                return _error(503, state_of_error(error, self._settings.status_socket)[1], {"Retry-After": "2"})

        return answer_or_error

    async def _stream(self, request: Request) -> Response:
        if request.method == "HEAD":
            # A watch ends with the body of its response. A response to HEAD has no body, so the watch would last as
            # long as the connection.
            return Response(media_type=_Stream.media_type)
        watching = self._watch.watching()
        watching.__enter__()  # before the response begins, so that TooManyWatchers still becomes a status code

        async def stream() -> AsyncIterator[str]:
            async for text in self._live.stream():
                yield text

        return _Stream(stream(), lambda: watching.__exit__(None, None, None))

    async def _viewers(self, _: Request) -> Response:
        """Return the number of streams and its limit, because a browser's EventSource does not tell the page why a
        stream was refused."""
        return _json({"watching": self._watch.watchers, "most": MAX_WATCHERS})

    async def _history(self, request: Request) -> Response:
        first, last, step = parameters.window(request.query_params, self._clock())
        return _json({"time": self._clock()} | columns(self._watch.tracks, first, last, step))

    async def _events(self, request: Request) -> Response:
        event_filter, near, limit = parameters.events(request.query_params)
        event_log = self._watch.event_log
        events, has_more = (
            event_log.newest(event_filter, limit) if near is None else event_log.nearest(event_filter, near, limit)
        )
        head: dict[str, Any] = {"time": self._clock(), "more": has_more, "since": event_log.since}
        if event_filter.first is not None and event_filter.last is not None:
            # The counts ignore the filter: they cover all kinds and clients.
            counted = event_log.counts.between(event_filter.first, event_filter.last)
            span = {"since": event_log.counted_since, "from": counted.first, "to": counted.last}
            head["counted"] = span | {"kinds": counted.kinds}
        return _text(f'{json.dumps(head)[:-1]}, "events": [{",".join(event.text for event in events)}]}}')

    async def _policy(self, _: Request) -> Response:
        if self._watch.summary is None:
            return _error(503, self._watch.throttler.text)
        return _json(policy_page(self._watch.summary) | {"is_current": self._watch.is_current})

    async def _about(self, _: Request) -> Response:
        """Return facts that rarely change. The stream announces a change of names."""
        self._names.refresh()
        return _json(
            {
                "version": __version__,
                "grafana": self._settings.grafana,
                "docs": self._docs is not None,
                "names": self._names.names,
                "names_version": self._names.version,
            }
        )

    async def _doc(self, request: Request) -> Response:
        name = request.path_params["name"]
        file = None if self._docs is None or not _DOC.fullmatch(name) else self._docs / f"{name}.md"
        if file is None or not file.is_file():
            return _error(404, "there is no such page of the documentation")
        return FileResponse(file, media_type="text/plain; charset=utf-8")

    async def _clients(self, request: Request) -> Response:
        return await self._query_throttler(parameters.clients(request.query_params))

    async def _connections(self, request: Request) -> Response:
        return await self._query_throttler(parameters.connections(request.query_params))

    async def _explain(self, request: Request) -> Response:
        return await self._query_throttler(parameters.explain(request.query_params))

    async def _policy_text(self, _: Request) -> Response:
        return await self._query_throttler(parameters.POLICY_TEXT)

    async def _what_if(self, request: Request) -> Response:
        try:
            document = json.loads(await _body(request, MAX_BODY))
        except (ValueError, RecursionError):  # RecursionError: lists nested thousands deep
            raise parameters.InvalidParameter('the body is not JSON; send {"policy": "TEXT"}') from None
        return await self._query_throttler(parameters.what_if(document))

    async def _query_throttler(self, request: Mapping[str, object]) -> Response:
        answer = await self._query_queue.query(request)
        refusal = parameters.refusal(answer)
        return _json(answer) if refusal is None else _error(422, refusal)

    async def _log_in(self, request: Request) -> Response:
        assert self._token is not None
        try:
            form = parse_qs((await _body(request, MAX_FORM)).decode(), max_num_fields=4)
        except ValueError:
            form = {}
        if not self._token.matches(form.get("token", [""])[0].strip()):
            return RedirectResponse("/login?refused", 303)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            COOKIE,
            self._token.cookie(self._clock()),
            max_age=COOKIE_SECONDS,
            httponly=True,
            samesite="strict",
            secure=self._settings.certificate is not None,
        )
        return response

    async def _log_out(self, _: Request) -> Response:
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE)
        return response


class _Stream(StreamingResponse):
    """A response of server-sent events. *end* is called when the browser has disconnected or the console stops."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[str], end: Callable[[], object]) -> None:
        super().__init__(content)
        self._end = end

    async def __call__(self, *arguments: Any) -> None:
        try:
            await super().__call__(*arguments)
        finally:
            self._end()


class _Static(StaticFiles):
    """Files that browsers revalidate each time by ETag, so that a new version of the console is used at once."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _body(request: Request, limit: int) -> bytes:
    """Return the body of *request*. Raises InvalidParameter if it has more than *limit* bytes."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise parameters.InvalidParameter(f"the body has more than {limit} bytes")
    return body


def _json(document: Mapping[str, Any]) -> Response:
    return _text(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def _text(document: str) -> Response:
    return Response(document, media_type="application/json")


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, headers)
