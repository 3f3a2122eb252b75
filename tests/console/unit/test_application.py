# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the pages and their requests with a fake throttler: access control, and headers for browsers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_throttler import POLICY_TEXT, FakeThrottler, World, run_until
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from mptcp_console.access import COOKIE, COOKIE_SECONDS
from mptcp_console.application import MAX_BODY, Console
from mptcp_console.event_log import EventFilter
from mptcp_console.overviews import MAX_BUDGETS, policy_page
from mptcp_console.parameters import MAX_POLICY_BYTES
from mptcp_console.query_queue import QueryQueue
from mptcp_console.settings import Settings
from mptcp_console.watch import Watch, make_query

TOKEN = "3f0c1d2e4b5a69788796a5b4c3d2e1f0"
HTML = {"accept": "text/html,*/*"}
BASE = "http://127.0.0.1:8610"


class Site:
    """A console, its fake throttler, and a client for it."""

    def __init__(self, directory: Path, timeout: float = 20.0, **settings: Any) -> None:
        self.world = World()
        self.throttler = FakeThrottler(directory / "status.sock", self.world)
        self.settings = Settings(status_socket=self.throttler.path, **settings)
        self.now: float | None = None
        query = make_query(self.throttler.path, timeout=timeout)
        query_queue = QueryQueue(query)
        self.watch = Watch(query, self.throttler.path, on_change=query_queue.invalidate)
        console = Console(self.watch, query_queue, self.settings, self.clock)
        self.app = console.application(
            Mount("/more", routes=[Route("/", lambda request: PlainTextResponse("mounted"))])
        )

    def clock(self) -> float:
        return self.world.clock() if self.now is None else self.now

    @contextmanager
    def client(self) -> Iterator[TestClient]:
        with self.throttler, TestClient(self.app, base_url=BASE, follow_redirects=False) as client:
            yield client


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with site.client() as client:
        yield client


@pytest.fixture
def site_with_token(tmp_path: Path) -> Site:
    return Site(tmp_path, token=TOKEN)


def test_page_and_its_static_files_are_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    files = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
    assert len(files) >= 5
    for file in files:
        assert client.get(file).status_code == 200, file


@pytest.mark.parametrize("path", ["/", "/api/history", "/api/nothing", "/static/console.css", "/static/none", "/more/"])
def test_answers_have_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
    assert rules.pop("default-src") == "'none'"
    assert set(rules) >= {"script-src", "style-src", "connect-src", "base-uri", "frame-ancestors", "form-action"}
    assert "require-trusted-types-for" in rules
    assert set(rules.values()) <= {"'self'", "'none'", "'script'"}
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


@pytest.mark.parametrize("path", ["/", "/api/history", "/static/console.css", "/more/", "/api/live"])
def test_request_for_a_foreign_host_name_is_refused(client: TestClient, path: str) -> None:
    answer = client.get(path, headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert "hosts in console.yaml" in answer.text
    assert "content-security-policy" in answer.headers


def test_request_with_two_or_no_host_headers_is_refused(site: Site) -> None:
    status, _, _ = answer_of(site, "/", [(b"host", b"127.0.0.1"), (b"host", b"127.0.0.1")])
    assert status == 421
    assert answer_of(site, "/", [])[0] == 421


def answer_of(site: Site, path: str, headers: list[tuple[bytes, bytes]]) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return status, headers and body of the answer to *path*, calling the application directly without a client."""
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 8610),
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def query() -> None:
        await site.app(scope, receive, send)

    asyncio.run(query())
    body = b"".join(each.get("body", b"") for each in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=["another-host", "null-origin", "another-port", "cross-site", "same-site"],
)
def test_request_from_another_site_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/api/what_if", json={"policy": "rules: []"}, headers=headers).status_code == 403


def test_requests_from_own_page_and_programs_are_answered(client: TestClient) -> None:
    for headers in ({}, {"origin": BASE, "sec-fetch-site": "same-origin"}):
        assert client.post("/api/what_if", json={"policy": "rules: []"}, headers=headers).status_code == 200


def test_login_does_not_exist_without_a_token(client: TestClient) -> None:
    assert client.get("/login").status_code == 404
    assert client.post("/login", data={"token": ""}).status_code == 404


@pytest.mark.parametrize(
    "path", ["/api/history", "/api/live", "/api/connections", "/api/nothing", "/more/", "/login/", "/x"]
)
def test_requests_without_the_token_are_refused(site_with_token: Site, path: str) -> None:
    with site_with_token.client() as client:
        answer = client.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert client.get(path, headers={"authorization": "Bearer " + TOKEN[:-1]}).status_code == 401
        assert client.get(path, params={"token": TOKEN}).status_code == 401
        redirect = client.get("/", headers=HTML)
        assert (redirect.status_code, redirect.headers["location"]) == (303, "/login")
    assert [each["query"] for each in site_with_token.world.queries if each["query"] != "summary"] == []


def test_token_in_a_header_gives_access(site_with_token: Site) -> None:
    with site_with_token.client() as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        assert client.get("/api/history").status_code == 200
        assert client.get("/more/").text == "mounted"


def test_browser_logs_in_by_a_form_and_logs_out(site_with_token: Site) -> None:
    with site_with_token.client() as client:
        assert client.get("/login").status_code == 200
        refused = client.post("/login", data={"token": "something else"})
        assert (refused.status_code, refused.headers["location"]) == (303, "/login?refused")
        assert "set-cookie" not in refused.headers
        # A browser sends this Origin for a form on a page with Referrer-Policy: no-referrer, over plain HTTP.
        accepted = client.post("/login", data={"token": TOKEN}, headers={"origin": "null"})
        assert (accepted.status_code, accepted.headers["location"]) == (303, "/")
        cookie = accepted.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/", f"max-age={COOKIE_SECONDS}"))
        assert "secure" not in cookie
        assert TOKEN not in cookie
        assert client.get("/api/history").status_code == 200
        assert client.get("/", headers=HTML).status_code == 200
        assert client.post("/logout").headers["location"] == "/login"
        assert client.get("/api/history").status_code == 401


def test_cookie_expires(site_with_token: Site) -> None:
    with site_with_token.client() as client:
        client.post("/login", data={"token": TOKEN})
        value = client.cookies[COOKIE]
        site_with_token.now = site_with_token.world.clock() + COOKIE_SECONDS + 1
        assert client.get("/api/history", headers={"cookie": f"{COOKIE}={value}"}).status_code == 401


def test_cookie_is_secure_if_the_console_serves_https(tmp_path: Path) -> None:
    site = Site(tmp_path, token=TOKEN, certificate=Path("c"), key=Path("k"))
    with site.client() as client:
        assert "secure" in client.post("/login", data={"token": TOKEN}).headers["set-cookie"].lower()


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 303), (b"\xff\xfe", 303), (b"token", 303), (b"token=" + b"a" * 5000, 400), (b"&" * 100, 303)],
    ids=["empty", "binary", "no-value", "too-long", "many-fields"],
)
def test_malformed_login_form_gives_no_access(site_with_token: Site, body: bytes, status: int) -> None:
    with site_with_token.client() as client:
        answer = client.post("/login", content=body, follow_redirects=False)
        assert answer.status_code == status
        assert "set-cookie" not in answer.headers


def test_connections_are_requested_in_parts(site: Site, client: TestClient) -> None:
    site.world.connection_count = 10_000
    answer = client.get("/api/connections", params={"sort": "bytes", "limit": 20, "offset": 40, "path": "wifi"})
    document = answer.json()
    assert (document["total"], len(document["connections"])) == (10_000, 20)
    assert len(answer.content) < 64_000
    assert site.world.queries[-1] == {
        "query": "connections",
        "path": "wifi",
        "sort": "bytes",
        "limit": 20,
        "offset": 40,
    }


WRONG_PARAMETERS = [
    ("connections?limit=10000", "limit: \"10000\" is not allowed; write a whole number from 1 to 200"),
    ("connections?limit=-1", "limit"),
    ("connections?offset=x", "offset"),
    ("connections?sort=name", "write rate, bytes, age, client"),
    ("connections?client=10.0.0.300", "is not an IP address"),
    ("connections?path=a/b", "path"),
    ("connections?order=1", "is not a parameter here"),
    ("connections?token=xyz", "eight hexadecimal digits"),
    ("explain", "write token=TOKEN or client=ADDRESS"),
    ("explain?token=1", "eight hexadecimal digits"),
    ("events?from=yesterday", "seconds since the epoch"),
    ("events?limit=501", "1 to 500"),
    ("history?step=7", "write 1 or 10"),
    ("history?from=1e9", "seconds since the epoch"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "expected"), WRONG_PARAMETERS, ids=[path for path, _ in WRONG_PARAMETERS])
def test_wrong_parameter_is_answered_with_the_allowed_values(
    site: Site, client: TestClient, path: str, expected: str
) -> None:
    answer = client.get(f"/api/{path}")
    assert answer.status_code == 400
    assert expected in answer.json()["error"]
    assert {each["query"] for each in site.world.queries} <= {"summary"}


def test_explain_answers_for_a_token_or_a_client(site: Site, client: TestClient) -> None:
    (found,) = client.get("/api/explain", params={"token": "4f037d87"}).json()["connections"]
    assert found["subflows"][0]["verdict"] == "capped at 5 Mbit/s"
    assert client.get("/api/explain", params={"client": "10.77.1.2"}).status_code == 200


def test_what_if_sends_the_whole_policy_to_the_throttler(site: Site, client: TestClient) -> None:
    text = "rules: []\n" + "# ä\n" * 5000
    answer = client.post("/api/what_if", json={"policy": text}).json()
    assert (answer["capped_now"], answer["capped_then"]) == (3, 6)
    assert site.world.queries[-1] == {"query": "what_if", "policy": text}


def test_policy_text_is_that_of_the_policy_in_force(site: Site, client: TestClient) -> None:
    answer = client.get("/api/policy_text").json()
    assert (answer["text"], answer["file"]) == (POLICY_TEXT, "/etc/mptcp-throttler/policy.yaml")
    assert site.world.queries[-1] == {"query": "policy"}


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"policy": 1}', b'{"policy": " "}', b"[" * 100_000,
     json.dumps({"policy": "a" * (MAX_POLICY_BYTES + 1)}).encode(),
     json.dumps({"policy": "ä" * (MAX_POLICY_BYTES // 2 + 1)}).encode(), b"a" * (MAX_BODY + 1)],
    ids=["none", "broken", "list", "number", "blank", "deep", "long", "long-in-bytes", "large"],
)  # fmt: skip
def test_malformed_what_if_request_does_not_reach_the_throttler(site: Site, client: TestClient, body: bytes) -> None:
    answer = client.post("/api/what_if", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert "what_if" not in {each["query"] for each in site.world.queries}


def test_error_of_the_throttler_is_passed_on(site: Site, client: TestClient) -> None:
    site.throttler.raw_answer = json.dumps({"schema": 2, "error": "no such client"}).encode()
    answer = client.get("/api/connections")
    assert (answer.status_code, answer.json()) == (422, {"error": "no such client"})


def test_console_without_a_throttler_serves_pages_and_an_error(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with TestClient(site.app, base_url=BASE) as client:
        assert client.get("/").status_code == 200
        answer = client.get("/api/connections")
        assert answer.status_code == 503
        assert "does not run" in answer.json()["error"]
        assert client.get("/api/history").json()["length"] == 0
        assert client.get("/api/policy").status_code == 503


def test_hung_throttler_delays_no_page(tmp_path: Path) -> None:
    site = Site(tmp_path, timeout=0.5)
    with site.client() as client:
        site.throttler.hangs = True
        answer = client.get("/api/connections")
        assert answer.status_code == 503
        assert "does not answer" in answer.json()["error"]
        assert client.get("/api/history").status_code == 200


def test_history_events_and_policy_come_from_memory(site: Site) -> None:
    site.world.add_event("applied", "a cap", token="4f037d87", rule="spare-ethernet")
    site.world.add_event("closed", "closed", token="00000001")
    with site.client() as client:
        # At its start, the watch queries first the summary, then the events.
        closed_events = EventFilter(kind="closed")
        client.portal.call(run_until, lambda: site.watch.event_log.newest(closed_events, 1)[0])  # type: ignore[union-attr]
        before = len(site.world.queries)
        assert [each["kind"] for each in client.get("/api/events").json()["events"]][-2:] == ["applied", "closed"]
        (event,) = client.get("/api/events", params={"token": "4f037d87"}).json()["events"]
        assert event["text"] == "a cap"
        history = client.get("/api/history", params={"step": 1}).json()
        assert [each["rule"] for each in history["rules"]] == ["spare-ethernet"]
        policy = client.get("/api/policy").json()
        assert policy["policy"]["rules"] == ["spare-ethernet"]
        assert [each["name"] for each in policy["budgets"]] == ["month"]
        assert [each["name"] for each in policy["budget_totals"]] == ["month"]
        # The watch itself also queries in that time.
        assert all(
            each["query"] in ("summary", "events") and "token" not in each for each in site.world.queries[before:]
        )


def test_policy_page_keeps_an_account_of_each_budget() -> None:
    accounts = [{"name": "crowded", "client": f"10.1.0.{number}"} for number in range(MAX_BUDGETS + 5)]
    calm = {"name": "calm", "client": "10.2.0.1"}
    found = policy_page({"rules": [], "budgets": [*accounts, calm]})["budgets"]
    assert found == [*accounts[: MAX_BUDGETS - 1], calm]


def test_stream_sends_events_and_ends_when_the_browser_disconnects(site: Site) -> None:
    """The test calls the ASGI application directly, because the test client would wait for the end of the stream."""
    sent: list[MutableMapping[str, Any]] = []

    async def watch() -> None:
        disconnected = asyncio.Event()
        first = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if first:
                return first.pop()
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "GET", "path": "/api/live", "query_string": b"", "root_path": "",
            "headers": [(b"host", b"localhost")], "asgi": {"version": "3.0", "spec_version": "2.3"},
        }  # fmt: skip
        async with asyncio.timeout(60):
            await site.watch.poll()
            stream = asyncio.ensure_future(site.app(scope, receive, send))
            await run_until(lambda: len(sent) == 3)
            assert site.watch.watchers == 1
            await site.watch.poll()
            await run_until(lambda: len(sent) == 4)
            disconnected.set()
            await stream
        assert site.watch.watchers == 0

    with site.throttler:
        asyncio.run(watch())
    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"cache-control"] == b"no-store"
    texts = [each["body"].decode() for each in sent[1:4]]
    assert texts[0] == "retry: 1000\n\n"
    assert all(re.fullmatch(r"id: \d+\nevent: snapshot\ndata: \{.*\}\n\n", text) for text in texts[1:])


def test_head_request_for_the_stream_does_not_count_as_a_viewer(site: Site, client: TestClient) -> None:
    """Defect: the answer did not end, and counted as a viewer for as long as its connection was open."""
    assert client.head("/api/live").headers["content-type"].startswith("text/event-stream")
    assert site.watch.watchers == 0


def test_clients_request_is_passed_to_the_throttler(site: Site, client: TestClient) -> None:
    site.world.over_budget, site.world.plain_tcp = True, {"10.77.1.9": 2}
    answer = client.get("/api/clients?sort=budget&limit=2").json()
    assert (answer["total"], len(answer["clients"]), answer["plain_tcp"]["connections"]) == (3, 2, 2)
    queries = [each for each in site.world.queries if each["query"] == "clients"]
    assert queries == [{"query": "clients", "sort": "budget", "limit": 2}]
    for parameter in ("sort=age", "limit=201", "client=10.77.1.2"):
        assert client.get(f"/api/clients?{parameter}").status_code == 400


def test_last_known_policy_is_marked_as_not_current(site: Site, client: TestClient) -> None:
    client.portal.call(run_until, lambda: site.watch.summary)  # type: ignore[union-attr]
    assert client.get("/api/policy").json()["is_current"] is True
    site.throttler.stop()
    client.portal.call(site.watch.poll)  # type: ignore[union-attr]
    answer = client.get("/api/policy").json()
    assert answer["is_current"] is False
    assert answer["policy"]["rules"] == ["spare-ethernet"]


def test_about_answers_with_names_and_links_of_the_settings(tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text("10.77.1.2 phone\n")
    with Site(tmp_path, names=names, grafana="https://grafana.lan/").client() as client:
        about = client.get("/api/about").json()
        assert (about["names"], about["grafana"], about["docs"]) == (
            {"10.77.1.2": "phone"},
            "https://grafana.lan/",
            True,
        )
        names.write_text("10.77.1.2 tablet\n")
        assert client.get("/api/about").json()["names"] == {"10.77.1.2": "tablet"}


def test_documentation_is_served_as_text_without_other_files(client: TestClient) -> None:
    page = client.get("/docs/console.md")
    assert page.headers["content-type"] == "text/plain; charset=utf-8"
    assert page.text.startswith("# The console")
    for path in ("/docs/none.md", "/docs/..%2fREADME.md", "/docs/paper%2fx.md", "/docs/console.png"):
        assert client.get(path).status_code == 404, path
