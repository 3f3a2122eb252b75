# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of the console's tests: each mutant breaks one part of the console, and the named test must fail."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import test_application
import test_connections
import test_event_log
import test_health
import test_history
import test_live
import test_query_queue
import test_rates
import test_watch
import watched_site
from fake_throttler import World
from starlette.responses import Response

from mptcp_common import http_bounds
from mptcp_console import application, live, overviews, parameters, protection, rates, watch
from mptcp_console.access import HostNames, Token
from mptcp_console.event_counts import CountsInSpan, EventCounts
from mptcp_console.event_log import EventFilter, EventLog
from mptcp_console.health import Health
from mptcp_console.history import Tracks, _Ring
from mptcp_console.query_queue import QueryQueue

CSP = "Content-Security-Policy"
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """A change that breaks something, and the test, with its parameters, that must fail then."""

    apply: Callable[[Patch], None]
    test: Callable[..., None]
    parameters_of_test: dict[str, Any] = field(default_factory=dict)


def change_csp(old: str, new: str) -> Callable[[Patch], None]:
    """Change the content security policy."""
    assert old in protection.POLICY
    return lambda patch: patch.setitem(protection.HEADERS, CSP, protection.POLICY.replace(old, new))


def return_always(target: Any, name: str, value: Any) -> Callable[[Patch], None]:
    """Let the function *name* of *target* always return *value*."""
    return lambda patch: patch.setattr(target, name, lambda *_, **__: value)


def set_to(target: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(target, name, value)


def cookie_without(word: str) -> Callable[[Patch], None]:
    real = Response.set_cookie

    def set_cookie(self: Response, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **(named | {word: False}))

    return set_to(Response, "set_cookie", set_cookie)


def cookies_never_end(patch: Patch) -> None:
    real = Token.is_valid_cookie
    patch.setattr(Token, "is_valid_cookie", lambda self, value, now: real(self, value, 0.0))


def watchers_are_not_removed(patch: Patch) -> None:
    real = application._Stream.__init__
    ends: list[Any] = []

    def begin(self: application._Stream, content: Any, end: Any) -> None:
        ends.append(end)
        real(self, content, lambda: None)

    patch.setattr(application._Stream, "__init__", begin)


async def one_snapshot(self: live.Live) -> Any:
    yield "retry: 1000\n\n"
    yield self._message(0)


def first_snapshot_again(patch: Patch) -> None:
    real = live.Live._message
    sent: list[tuple[str, int]] = []

    def message(self: live.Live, serial: int) -> tuple[str, int]:
        sent.append(real(self, serial))
        return sent[0]

    patch.setattr(live.Live, "_message", message)


def connections_are_pushed(patch: Patch) -> None:
    def overview(summary: Any, found: Any) -> dict[str, Any]:
        return overviews.overview(summary, found) | {"list": ["10.77.1.2"] * summary["connections"]}

    patch.setattr(watch, "overview", overview)


def policies_are_unlimited(patch: Patch) -> None:
    patch.setattr(parameters, "MAX_POLICY_BYTES", 1 << 40)
    patch.setattr(application, "MAX_BODY", 1 << 40)


def new_watcher_waits_forever(patch: Patch) -> None:
    async def pause(self: watch.Watch, seconds: float) -> None:
        await asyncio.Event().wait()

    patch.setattr(watch.Watch, "_pause", pause)


def tracks_without_end(patch: Patch) -> None:
    real = Tracks.__init__
    patch.setattr(Tracks, "__init__", lambda self: real(self, 1 << 40))


async def no_wait(self: QueryQueue) -> None:
    """Do not wait before a query."""


ROOT_PAGE = {"path": "/"}
API = {"path": "/api/history"}
LONG = {"body": b'{"policy": "' + b"a" * (parameters.MAX_POLICY_BYTES + 1) + b'"}'}
app = test_application
MUTANTS = {
    # Content security policy.
    "no policy": Mutant(
        lambda patch: patch.delitem(protection.HEADERS, CSP), app.test_answers_have_security_headers, ROOT_PAGE
    ),
    "scripts within a page are run": Mutant(
        change_csp("script-src 'self'", "script-src 'self' 'unsafe-inline'"),
        app.test_answers_have_security_headers,
        ROOT_PAGE,
    ),
    "everything may be loaded": Mutant(
        change_csp("default-src 'none'", "default-src *"), app.test_answers_have_security_headers, ROOT_PAGE
    ),
    "text may become markup": Mutant(
        change_csp("; require-trusted-types-for 'script'", ""), app.test_answers_have_security_headers, ROOT_PAGE
    ),
    "other sites may frame the page": Mutant(
        change_csp("frame-ancestors 'none'; ", ""), app.test_answers_have_security_headers, ROOT_PAGE
    ),
    # Host names and requests from other sites.
    "every host name is accepted": Mutant(
        return_always(HostNames, "accepts", True), app.test_request_for_a_foreign_host_name_is_refused, API
    ),
    "another site's page may send requests": Mutant(
        return_always(protection, "_is_from_own_page", True),
        app.test_request_from_another_site_is_refused,
        {"headers": {"origin": "http://evil.example"}},
    ),
    # Access by token.
    "no token is needed": Mutant(
        return_always(protection.Protection, "_has_token", True), app.test_requests_without_the_token_are_refused, API
    ),
    "every page is public": Mutant(
        set_to(protection, "_PUBLIC", re.compile(".*")), app.test_requests_without_the_token_are_refused, API
    ),
    "any token is accepted": Mutant(
        return_always(Token, "matches", True), app.test_requests_without_the_token_are_refused, API
    ),
    "the form accepts any token": Mutant(
        return_always(Token, "matches", True), app.test_browser_logs_in_by_a_form_and_logs_out
    ),
    "the cookie is the token": Mutant(
        return_always(Token, "cookie", test_application.TOKEN), app.test_browser_logs_in_by_a_form_and_logs_out
    ),
    "scripts may read the cookie": Mutant(cookie_without("httponly"), app.test_browser_logs_in_by_a_form_and_logs_out),
    "the cookie is sent over plain HTTP": Mutant(
        cookie_without("secure"), app.test_cookie_is_secure_if_the_console_serves_https
    ),
    "cookies never end": Mutant(cookies_never_end, app.test_cookie_expires),
    # The stream of events.
    "a disconnected viewer still counts": Mutant(
        watchers_are_not_removed, app.test_stream_sends_events_and_ends_when_the_browser_disconnects
    ),
    "the stream ends after one snapshot": Mutant(
        set_to(live.Live, "stream", one_snapshot), app.test_stream_sends_events_and_ends_when_the_browser_disconnects
    ),
    "the same snapshot is sent again and again": Mutant(
        first_snapshot_again, test_live.test_each_snapshot_is_sent_once_with_new_events
    ),
    "all events that a slow browser missed are sent": Mutant(
        set_to(live, "MAX_EVENTS", 1 << 40), test_live.test_slow_browser_skips_snapshots
    ),
    "the number of viewers is unlimited": Mutant(
        set_to(watch, "MAX_WATCHERS", 1 << 40), test_watch.test_number_of_viewers_is_bounded
    ),
    # Showing a cap within a second.
    "the throttler is queried too rarely": Mutant(
        set_to(watch, "WATCHED_SECONDS", 1.5), test_watch.test_throttler_is_queried_each_second_only_with_viewers
    ),
    "a new viewer does not end the pause": Mutant(
        new_watcher_waits_forever, test_watch.test_new_viewer_ends_the_pause
    ),
    # Aggregated answers instead of whole tables.
    "the whole table is queried": Mutant(
        return_always(parameters, "connections", {"query": "connections", "limit": 10_000}),
        app.test_connections_are_requested_in_parts,
    ),
    "every connection is pushed": Mutant(
        connections_are_pushed, test_live.test_snapshot_stays_small_with_many_connections_and_rules
    ),
    "every rule is pushed": Mutant(
        set_to(overviews, "MAX_RULES", 1 << 40),
        test_live.test_snapshot_stays_small_with_many_connections_and_rules,
    ),
    "each browser's query is sent": Mutant(
        return_always(QueryQueue, "_reusable", None), test_query_queue.test_equal_concurrent_queries_are_sent_once
    ),
    "queries are sent without a pause": Mutant(
        set_to(QueryQueue, "_wait_until_allowed", no_wait),
        test_query_queue.test_different_queries_are_sent_once_a_second,
    ),
    # What-if questions.
    "another policy is tried": Mutant(
        return_always(parameters, "what_if", {"query": "what_if", "policy": "rules: []"}),
        app.test_what_if_sends_the_whole_policy_to_the_throttler,
    ),
    "the length of a policy is unlimited": Mutant(
        policies_are_unlimited, app.test_malformed_what_if_request_does_not_reach_the_throttler, LONG
    ),
    # History and events.
    "history records nothing": Mutant(
        return_always(watch, "record", None), app.test_history_events_and_policy_come_from_memory
    ),
    "rates are counts": Mutant(
        set_to(rates, "_rates_between", lambda before, after, seconds: after.items()),
        test_rates.test_rates_are_differences_of_byte_counts,
    ),
    "a gap has old values": Mutant(
        return_always(_Ring, "forget", None), test_history.test_gap_shows_no_old_values
    ),
    "the number of tracks is unlimited": Mutant(
        tracks_without_end, test_history.test_memory_is_bounded_for_many_tracks
    ),
    "events are never deleted": Mutant(
        return_always(EventLog, "forget", None), test_event_log.test_events_are_forgotten_after_an_hour
    ),
    "events of all tokens are shown": Mutant(
        set_to(EventFilter, "matching", lambda self, events: events),
        test_event_log.test_events_are_filtered_by_each_field,
        {"name": "token"},
    ),
    "counts are deleted with their events": Mutant(
        return_always(EventCounts, "between", CountsInSpan(0, 0, {})),
        test_event_log.test_counts_outlast_dropped_events,
    ),
    "missing events are not reported": Mutant(
        return_always(EventLog, "mark_missing_before", None),
        test_watch.test_watch_reports_when_its_complete_events_begin,
    ),
    "the latest events are returned instead of the nearest": Mutant(
        set_to(EventLog, "nearest", lambda self, event_filter, time, limit: self.newest(event_filter, limit)),
        test_event_log.test_nearest_events_are_in_order_and_more_are_reported,
    ),
    # Faults of a throttler that answers.
    "faults are not reported": Mutant(
        return_always(Health, "update", []), test_health.test_lasting_fault_is_reported_until_it_ends
    ),
    # Connections without a request.
    "idle connections are not ended": Mutant(
        return_always(http_bounds.BoundedHttp, "_update_deadline", None),
        test_connections.test_connection_without_a_request_is_ended,
    ),
    "the number of connections is unlimited": Mutant(
        return_always(http_bounds.BoundedHttp, "_make_room", None),
        test_connections.test_oldest_idle_connection_is_ended_and_an_active_one_kept,
    ),
}  # fmt: skip


async def run_until_by_iterations(done: Callable[[], bool]) -> None:
    """Wait like the tests' own ``run_until``, but for a number of iterations of the event loop instead of seconds."""
    for _ in range(5000):
        if done():
            return
        await asyncio.sleep(0)
    raise TimeoutError


@pytest.fixture
def fixtures(tmp_path: Path) -> Iterator[Callable[[Callable[..., None]], dict[str, Any]]]:
    """Yield a function that returns the fixtures for a test of another module."""
    with ExitStack() as stack:

        def make_fixtures(test: Callable[..., None]) -> dict[str, Any]:
            arguments = inspect.signature(test).parameters
            found: dict[str, Any] = {"tmp_path": tmp_path}
            if test.__module__ in ("test_watch", "test_live"):
                found["site"] = watched_site.Site()
            if test.__module__ == "test_application":
                found["site"] = test_application.Site(tmp_path)
                found["site_with_token"] = test_application.Site(tmp_path, token=test_application.TOKEN)
            if "client" in arguments:
                found["client"] = stack.enter_context(found["site"].client())
            if test.__module__ == "test_rates":
                found["clock"] = test_rates.Clock()
                found["world"] = World(clock=found["clock"])
            return {name: value for name, value in found.items() if name in arguments}

        yield make_fixtures


TESTS = {f"{mutant.test.__name__}-{sorted(mutant.parameters_of_test)}": mutant for mutant in MUTANTS.values()}


@pytest.mark.nightly(except_for=("security_headers", "rates_are"))
@pytest.mark.parametrize("name", TESTS)
def test_test_passes_on_the_unbroken_console(name: str, fixtures: Callable[..., dict[str, Any]]) -> None:
    mutant = TESTS[name]
    mutant.test(**fixtures(mutant.test), **mutant.parameters_of_test)


ONE_PER_KIND = (
    "no policy", "every host name is", "no token is needed", "the stream ends", "queried too rarely",
    "every connection is pushed", "another policy is tried", "rates are counts", "faults are not reported",
    "idle connections are not",
)  # fmt: skip


@pytest.mark.nightly(except_for=ONE_PER_KIND)
@pytest.mark.parametrize("name", MUTANTS)
def test_test_fails_on_the_mutant(
    name: str, fixtures: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = MUTANTS[name]
    for module in (test_application, test_watch):
        monkeypatch.setattr(module, "run_until", run_until_by_iterations)
    mutant.apply(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):
        mutant.test(**fixtures(mutant.test), **mutant.parameters_of_test)
