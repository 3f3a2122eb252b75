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
import test_happenings
import test_health
import test_history
import test_lane
import test_live
import test_rates
import test_watch
import watched_site
from fake_throttler import World
from starlette.responses import Response

from mptcp_common import http_bounds
from mptcp_console import application, live, overviews, protection, questions, rates, watch
from mptcp_console.access import Names, Token
from mptcp_console.event_counts import Counted, EventCounts
from mptcp_console.happenings import Happenings, Wanted
from mptcp_console.health import Health
from mptcp_console.history import Tracks, _Ring
from mptcp_console.lane import Lane

CSP = "Content-Security-Policy"
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """The change that breaks something, and the test, with its parameters, that must notice it."""

    break_it: Callable[[Patch], None]
    test: Callable[..., None]
    given: dict[str, Any] = field(default_factory=dict)


def policy(old: str, new: str) -> Callable[[Patch], None]:
    """Change the content security policy."""
    assert old in protection.POLICY
    return lambda patch: patch.setitem(protection.HEADERS, CSP, protection.POLICY.replace(old, new))


def always(owner: Any, name: str, value: Any) -> Callable[[Patch], None]:
    """Let a function always return *value*."""
    return lambda patch: patch.setattr(owner, name, lambda *_, **__: value)


def set_to(owner: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, value)


def cookie_without(word: str) -> Callable[[Patch], None]:
    real = Response.set_cookie

    def set_cookie(self: Response, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **(named | {word: False}))

    return set_to(Response, "set_cookie", set_cookie)


def cookies_never_end(patch: Patch) -> None:
    real = Token.is_cookie
    patch.setattr(Token, "is_cookie", lambda self, value, now: real(self, value, 0.0))


def watchers_stay(patch: Patch) -> None:
    real = application._Stream.__init__
    kept: list[Any] = []

    def begin(self: application._Stream, content: Any, end: Any) -> None:
        kept.append(end)
        real(self, content, lambda: None)

    patch.setattr(application._Stream, "__init__", begin)


async def one_moment(self: live.Live) -> Any:
    yield "retry: 1000\n\n"
    yield self._message(0)


def the_first_moment_again(patch: Patch) -> None:
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


def bounds_of_policies_are_gone(patch: Patch) -> None:
    patch.setattr(questions, "LONGEST_POLICY", 1 << 40)
    patch.setattr(application, "MAX_BODY", 1 << 40)


def new_watcher_waits_forever(patch: Patch) -> None:
    async def pause(self: watch.Watch, seconds: float) -> None:
        await asyncio.Event().wait()

    patch.setattr(watch.Watch, "_pause", pause)


def tracks_without_end(patch: Patch) -> None:
    real = Tracks.__init__
    patch.setattr(Tracks, "__init__", lambda self: real(self, 1 << 40))


async def no_turn(self: Lane) -> None:
    """Ask at once, without waiting for a turn."""


ROOT_PAGE = {"path": "/"}
API = {"path": "/api/history"}
LONG = {"body": b'{"policy": "' + b"a" * (questions.LONGEST_POLICY + 1) + b'"}'}
app, seen = test_application, test_watch
MUTANTS = {
    # Content security policy.
    "no policy": Mutant(
        lambda patch: patch.delitem(protection.HEADERS, CSP), app.test_answers_have_security_headers, ROOT_PAGE
    ),
    "scripts within a page are run": Mutant(
        policy("script-src 'self'", "script-src 'self' 'unsafe-inline'"),
        app.test_answers_have_security_headers,
        ROOT_PAGE,
    ),
    "all may be loaded": Mutant(
        policy("default-src 'none'", "default-src *"), app.test_answers_have_security_headers, ROOT_PAGE
    ),
    "text may become markup": Mutant(
        policy("; require-trusted-types-for 'script'", ""), app.test_answers_have_security_headers, ROOT_PAGE
    ),
    "others may frame it": Mutant(
        policy("frame-ancestors 'none'; ", ""), app.test_answers_have_security_headers, ROOT_PAGE
    ),
    # Host names and requests from other sites.
    "every name is the console's": Mutant(
        always(Names, "accepts", True), app.test_request_for_a_foreign_host_name_is_refused, API
    ),
    "another site's page may ask": Mutant(
        always(protection, "_is_from_own_page", True),
        app.test_request_from_another_site_is_refused,
        {"headers": {"origin": "http://evil.example"}},
    ),
    # Access by token.
    "no token is needed": Mutant(
        always(protection.Protection, "_is_shown", True), app.test_requests_without_the_token_are_refused, API
    ),
    "all is public": Mutant(
        set_to(protection, "_PUBLIC", re.compile(".*")), app.test_requests_without_the_token_are_refused, API
    ),
    "any token will do": Mutant(
        always(Token, "matches", True), app.test_requests_without_the_token_are_refused, API
    ),
    "any token will do in the form": Mutant(
        always(Token, "matches", True), app.test_browser_logs_in_by_a_form_and_logs_out
    ),
    "the cookie is the token": Mutant(
        always(Token, "cookie", test_application.TOKEN), app.test_browser_logs_in_by_a_form_and_logs_out
    ),
    "scripts may read the cookie": Mutant(cookie_without("httponly"), app.test_browser_logs_in_by_a_form_and_logs_out),
    "the cookie goes over plain HTTP": Mutant(
        cookie_without("secure"), app.test_cookie_is_secure_if_the_console_serves_https
    ),
    "cookies never end": Mutant(cookies_never_end, app.test_cookie_expires),
    # The stream of events.
    "a viewer that left still counts": Mutant(
        watchers_stay, app.test_stream_sends_events_and_ends_when_the_browser_disconnects
    ),
    "the stream ends after a moment": Mutant(
        set_to(live.Live, "stream", one_moment), app.test_stream_sends_events_and_ends_when_the_browser_disconnects
    ),
    "the same moment comes again and again": Mutant(
        the_first_moment_again, test_live.test_each_moment_is_sent_once_with_new_events
    ),
    "all that a slow browser missed is sent": Mutant(
        set_to(live, "MAX_EVENTS", 1 << 40), test_live.test_slow_browser_skips_moments
    ),
    "any number may watch": Mutant(
        set_to(watch, "MAX_WATCHERS", 1 << 40), seen.test_number_of_viewers_is_bounded
    ),
    # Showing a cap within a second.
    "the throttler is asked too rarely": Mutant(
        set_to(watch, "WATCHED_SECONDS", 1.5), seen.test_watch_asks_each_second_with_viewers_and_each_five_without
    ),
    "a new viewer waits for the next round": Mutant(
        new_watcher_waits_forever, seen.test_new_viewer_ends_the_pause
    ),
    # Aggregated answers instead of whole tables.
    "the whole table is asked for": Mutant(
        always(questions, "connections", {"query": "connections", "limit": 10_000}),
        app.test_connections_are_requested_in_parts,
    ),
    "every connection is pushed": Mutant(
        connections_are_pushed, test_live.test_moment_stays_small_with_many_connections_and_rules
    ),
    "every rule is pushed": Mutant(
        set_to(overviews, "MAX_RULES", 1 << 40),
        test_live.test_moment_stays_small_with_many_connections_and_rules,
    ),
    "each browser's question is asked": Mutant(
        always(Lane, "_fresh", None), test_lane.test_equal_concurrent_questions_are_asked_once
    ),
    "questions follow at once": Mutant(
        set_to(Lane, "_turn", no_turn), test_lane.test_different_questions_are_asked_once_a_second
    ),
    # What-if questions.
    "another policy is tried": Mutant(
        always(questions, "what_if", {"query": "what_if", "policy": "rules: []"}),
        app.test_what_if_sends_the_whole_policy_to_the_throttler,
    ),
    "a policy may be as long as it likes": Mutant(
        bounds_of_policies_are_gone, app.test_malformed_what_if_request_does_not_reach_the_throttler, LONG
    ),
    # History and events.
    "history records nothing": Mutant(
        always(watch, "record", None), app.test_history_events_and_policy_come_from_memory
    ),
    "rates are counts": Mutant(
        set_to(rates, "_grown", lambda before, after, seconds: after.items()),
        test_rates.test_rates_are_differences_of_byte_counts,
    ),
    "old values show through a gap": Mutant(
        always(_Ring, "forget", None), test_history.test_gap_shows_no_old_values
    ),
    "memory has no bound": Mutant(
        tracks_without_end, test_history.test_memory_is_bounded_for_many_tracks
    ),
    "events are kept for ever": Mutant(
        always(Happenings, "forget", None), test_happenings.test_events_are_forgotten_after_an_hour
    ),
    "events of all tokens are shown": Mutant(
        set_to(Wanted, "of", lambda self, events: events),
        test_happenings.test_events_are_filtered_by_each_field,
        {"name": "token"},
    ),
    "counts go with the events": Mutant(
        always(EventCounts, "between", Counted(0, 0, {})),
        test_happenings.test_counts_outlast_dropped_events,
    ),
    "missing events are not reported": Mutant(
        always(Happenings, "missing_before", None), seen.test_watch_knows_since_when_its_events_are_complete
    ),
    "the last events are shown in place of the nearest": Mutant(
        set_to(Happenings, "nearest", lambda self, wanted, time, limit: self.newest(wanted, limit)),
        test_happenings.test_nearest_events_come_in_order_with_a_hint_at_more,
    ),
    # Faults of a throttler that answers.
    "faults are not reported": Mutant(
        always(Health, "take", []), test_health.test_lasting_fault_is_reported_until_it_ends
    ),
    # Connections without a request.
    "idle connections stay": Mutant(
        always(http_bounds.BoundedHttp, "_update_deadline", None),
        test_connections.test_connection_without_a_request_is_ended,
    ),
    "connections have no limit": Mutant(
        always(http_bounds.BoundedHttp, "_make_room", None),
        test_connections.test_oldest_idle_connection_is_ended_and_a_served_one_kept,
    ),
}  # fmt: skip


async def soon(done: Callable[[], bool]) -> None:
    """Wait like the tests' own ``until``, but counted in turns of the event loop instead of seconds."""
    for _ in range(5000):
        if done():
            return
        await asyncio.sleep(0)
    raise TimeoutError


@pytest.fixture
def fixtures(tmp_path: Path) -> Iterator[Callable[[Callable[..., None]], dict[str, Any]]]:
    """Yield a function that makes the fixtures of a test of another module."""
    with ExitStack() as stack:

        def made(test: Callable[..., None]) -> dict[str, Any]:
            wanted = inspect.signature(test).parameters
            found: dict[str, Any] = {"tmp_path": tmp_path}
            if test.__module__ in ("test_watch", "test_live"):
                found["site"] = watched_site.Site()
            if test.__module__ == "test_application":
                found["site"] = test_application.Site(tmp_path)
                found["guarded"] = test_application.Site(tmp_path, token=test_application.TOKEN)
            if "client" in wanted:
                found["client"] = stack.enter_context(found["site"].client())
            if test.__module__ == "test_rates":
                found["clock"] = test_rates.Clock()
                found["world"] = World(clock=found["clock"])
            return {name: value for name, value in found.items() if name in wanted}

        yield made


TESTS = {f"{mutant.test.__name__}-{sorted(mutant.given)}": mutant for mutant in MUTANTS.values()}


@pytest.mark.nightly(besides=("security_headers", "rates_are"))
@pytest.mark.parametrize("name", TESTS)
def test_test_passes_on_the_unbroken_console(name: str, fixtures: Callable[..., dict[str, Any]]) -> None:
    mutant = TESTS[name]
    mutant.test(**fixtures(mutant.test), **mutant.given)


OF_EACH_KIND = (
    "no policy", "every name is", "no token is needed", "the stream ends", "asked too rarely",
    "every connection is pushed", "another policy is tried", "rates are counts", "faults are not reported",
    "idle connections stay",
)  # fmt: skip


@pytest.mark.nightly(besides=OF_EACH_KIND)
@pytest.mark.parametrize("name", MUTANTS)
def test_test_fails_on_the_mutant(
    name: str, fixtures: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = MUTANTS[name]
    for module in (test_application, test_watch):
        monkeypatch.setattr(module, "until", soon)
    mutant.break_it(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):
        mutant.test(**fixtures(mutant.test), **mutant.given)
