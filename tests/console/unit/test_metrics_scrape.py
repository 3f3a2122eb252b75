# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for scrapes of the metrics, with a fake throttler and a fake Squid that listen on real sockets."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sample_answers import ANSWERS, Samples, page_with_parts, sample_key, samples, squid_page_texts, summary_answer

from mptcp_common import library_counters
from mptcp_console.metrics import Scraper, Sources, asgi, cache_manager
from mptcp_console.metrics.cache_manager import read_pages

UP, SQUID_UP = ("mptcp_throttler_up", ()), ("squid_up", ())
DEADLINE = 60.0
LIMITS = (asgi.THROTTLER_SECONDS, asgi.SQUID_SECONDS)


@dataclass
class Site:
    """A fake throttler and a fake Squid that record their requests."""

    directory: Path
    summary: dict[str, Any] = field(default_factory=summary_answer)
    throttler_hangs: bool = False
    squid_hangs: bool = False
    squid_status: str = "200 OK"
    processes: dict[int, int] = field(default_factory=dict)
    """Request counters of Squid's processes by number; empty if Squid has only one process."""
    queries: list[Any] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    now: float = 100.0
    throttler_queried: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the throttler gets a query."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the end of the test, to release handlers that hang."""
    scraper: Scraper = field(init=False)
    port: int = 0
    """Port of the fake Squid."""

    async def serve_throttler(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.queries.append(json.loads(await reader.readline()))
        self.throttler_queried.set()
        if self.throttler_hangs:
            await self.released.wait()
        writer.write(json.dumps(self.summary).encode())
        writer.close()

    async def serve_squid(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.readline():
            while (await reader.readline()).strip():
                pass
            page = request.decode().split()[1].rpartition("/")[2]
            self.pages.append(page)
            if self.squid_hangs:
                await self.released.wait()
            text = self.page(page)
            body, status = (text or "").encode(), self.squid_status if text is not None else "404 Not Found"
            # Squid sends its pages chunked.
            head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n"
            writer.write(head.encode() + body + b"\r\n0\r\n\r\n")
            await writer.drain()
        writer.close()

    def page(self, path: str) -> str | None:
        """Return a page as Squid 5.7 has it: of all processes, or of the requested ones. None: Squid's 404."""
        name, _, query = path.partition("?")
        text = squid_page_texts()[name]
        if not self.processes:
            return text
        numbers = (
            [int(number) for number in query.removeprefix("processes=").split(",")] if query else [*self.processes]
        )
        chosen = {number: requests for number, requests in self.processes.items() if number in numbers}
        if not chosen:
            return None
        if name == "refresh":
            return page_with_parts(dict.fromkeys(chosen, text))
        return re.sub(r"(client_http.requests) = \d+", rf"\1 = {sum(chosen.values())}", text)

    async def scrape(self) -> Samples:
        status, _, body = await self.get()
        assert status == 200
        return samples(body.decode())

    async def get(self, method: str = "GET", **headers: str) -> tuple[int, dict[bytes, bytes], bytes]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        raw_headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": "/", "query_string": b"", "headers": raw_headers}
        await self.scraper(scope, receive, send)
        body = b"".join(each.get("body", b"") for each in sent[1:])
        return sent[0]["status"], dict(sent[0]["headers"]), body


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    test_site = Site(directory)
    throttler = await asyncio.start_unix_server(test_site.serve_throttler, directory / "status.sock")
    squid = await asyncio.start_server(test_site.serve_squid, "127.0.0.1", 0)
    test_site.port = squid.sockets[0].getsockname()[1]
    address = f"http://127.0.0.1:{test_site.port}"
    counted = {"mptcpproxy": directory / "counters", "mptcprelay": directory / "none"}
    sources = Sources(directory / "status.sock", address, ANSWERS / "netstat.txt", counted)
    test_site.scraper = Scraper(sources, lambda: test_site.now)
    try:
        yield test_site
    finally:
        test_site.released.set()
        throttler.close()
        squid.close()


@pytest.fixture(autouse=True)
def long_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use long limits, because the test itself may be slow on a busy machine."""
    for name in ("THROTTLER_SECONDS", "SQUID_SECONDS"):
        monkeypatch.setattr(asgi, name, DEADLINE)


def run_at_site(directory: Path, test: Callable[[Site], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE), site(directory) as test_site:
            await test(test_site)

    asyncio.run(run())


def test_scrape_queries_throttler_and_squid_once(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        found = await site.scrape()
        assert (found[UP], found[SQUID_UP]) == (1, 1)
        assert ("mptcp_ext_mp_curr_estab", ()) in found
        assert site.queries == [{"query": "summary"}]
        assert site.pages == ["info", "refresh", "counters?processes=1"]

    run_at_site(tmp_path, test)


def test_library_counters_are_read_at_each_scrape(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        turns = sample_key("mptcp_proxy_library_turns_total", service="mptcpproxy")
        assert turns not in await site.scrape()
        for number in (1, 2):
            (tmp_path / "counters").write_bytes(struct.pack("=Q", number) + library_counters.NONE[8:])
            site.now += 2 * asgi.CACHE_SECONDS
            assert (await site.scrape())[turns] == number

    run_at_site(tmp_path, test)


def requests_of(process: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    return sample_key("squid_client_requests_total", process=str(process))


def test_restarted_squid_process_lowers_no_other_counter(tmp_path: Path) -> None:
    """Defect: all workers had one summed counter, which fell by the count of a worker that was replaced. Prometheus
    interpreted this as a restart, and counted the other workers' bytes of months within one interval."""

    async def test(site: Site) -> None:
        site.processes = {1: 1_000_000, 2: 500}
        before = await site.scrape()
        site.processes = {1: 1_000_010, 2: 3}
        site.now += 1
        after = await site.scrape()
        assert before.keys() == after.keys()
        decreased = {key: after[key] for key in before if key[0].endswith("_total") and after[key] < before[key]}
        assert decreased == {requests_of(2): 3}
        assert after[requests_of(1)] == 1_000_010
        assert after[SQUID_UP] == 1

    run_at_site(tmp_path, test)


def test_scrape_follows_changes_of_squids_processes(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        for site.processes in ({2: 7}, {1: 1, 2: 7, 3: 2}, {}):
            site.pages.clear()
            found = await site.scrape()
            shown = {key: value for key, value in found.items() if key[0] == requests_of(1)[0]}
            # A missing process must not be queried: Squid would answer 404 and count a client error.
            assert shown == {requests_of(number): value for number, value in (site.processes or {1: 5}).items()}
            assert len(site.pages) == 2 + len(shown)
            site.now += 1

    run_at_site(tmp_path, test)


def test_reading_of_squid_pages_stops_at_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page arrives in time, but all pages together take too long. The thread must then stop and use the pages that
    it has read; otherwise it would still run when the next scrape begins."""
    monkeypatch.setattr(cache_manager, "time", SimpleNamespace(monotonic=itertools.count(100).__next__))

    async def test(site: Site) -> None:
        site.processes = dict.fromkeys(range(1, 101), 1)
        pages = await asyncio.to_thread(read_pages, f"http://127.0.0.1:{site.port}", 60)
        # The fake clock advances by one second for each page.
        assert len(site.pages) == 59
        assert pages.counters.keys() == set(range(1, 58))
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(read_pages, f"http://127.0.0.1:{site.port}", 3)

    run_at_site(tmp_path, test)


def test_ended_squid_process_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(site: Site) -> None:
        site.processes = {1: 7, 2: 9}
        real_page = site.page
        monkeypatch.setattr(site, "page", lambda path: None if "processes=2" in path else real_page(path))
        found = await site.scrape()
        assert found[SQUID_UP] == 1
        assert [labels for name, labels in found if name == "squid_client_requests_total"] == [(("process", "1"),)]

    run_at_site(tmp_path, test)


def test_concurrent_scrapes_share_one_query(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        found = await asyncio.gather(*(site.scrape() for _ in range(50)))
        assert all(each == found[0] for each in found)
        assert (len(site.queries), len(site.pages)) == (1, 3)

    run_at_site(tmp_path, test)


def test_answer_is_reused_for_half_a_second(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        await site.scrape()
        site.summary["connections"] = 77
        site.now += 0.49
        assert (await site.scrape())["mptcp_throttler_connections", ()] == 3
        site.now += 0.02
        assert (await site.scrape())["mptcp_throttler_connections", ()] == 77
        assert len(site.queries) == 2

    run_at_site(tmp_path, test)


def test_cancelled_scrape_does_not_cancel_a_concurrent_one(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        site.throttler_hangs = True
        first, second = asyncio.create_task(site.scrape()), asyncio.create_task(site.scrape())
        await site.throttler_queried.wait()
        first.cancel()
        site.released.set()
        assert (await second)[UP] == 1
        assert len(site.queries) == 1

    run_at_site(tmp_path, test)


def test_hung_throttler_and_squid_count_as_down_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max(LIMITS) < 2
    monkeypatch.setattr(asgi, "THROTTLER_SECONDS", 0.05)
    monkeypatch.setattr(asgi, "SQUID_SECONDS", 0.05)

    async def test(site: Site) -> None:
        site.throttler_hangs = site.squid_hangs = True
        found = await site.scrape()
        assert {name: value for (name, _), value in found.items() if not name.startswith("mptcp_ext")} == {
            "mptcp_throttler_up": 0,
            "squid_up": 0,
        }

    run_at_site(tmp_path, test)


def test_unreachable_source_has_no_old_metrics(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        before = await site.scrape()
        (tmp_path / "status.sock").unlink()
        site.squid_status = "403 Forbidden"
        site.now += 1
        after = await site.scrape()
        assert (before[UP], after[UP], before[SQUID_UP], after[SQUID_UP]) == (1, 0, 1, 0)
        assert {name for name, _ in after if not name.startswith("mptcp_ext")} == {UP[0], SQUID_UP[0]}

    run_at_site(tmp_path, test)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"version": "0.1.0", "connections": []}, "schema None, not 2"),
        ({"schema": 3}, "schema 3, not 2"),
        ({"schema": 2, "error": "summary is not known"}, "summary is not known"),
    ],
)
def test_answer_of_another_schema_counts_as_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: dict[str, Any], expected: str
) -> None:
    async def test(site: Site) -> None:
        site.summary = answer
        found = await site.scrape()
        assert found[UP] == 0
        assert "mptcp_throttler_connections" not in {name for name, _ in found}

    run_at_site(tmp_path, test)
    assert expected in capsys.readouterr().err


def test_malformed_throttler_answer_leaves_squids_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: the whole scrape failed, as if the console were down, so that Squid's metrics were missing, too."""

    async def test(site: Site) -> None:
        summary = site.summary
        for site.summary in ({"schema": 2, "version": "0.1.0"}, summary | {"paths": None}, summary):
            found = await site.scrape()
            assert found[UP] == (site.summary is summary)
            assert found[SQUID_UP] == 1
            site.now += 1

    run_at_site(tmp_path, test)
    printed = [line for line in capsys.readouterr().err.splitlines() if "throttler" in line]
    assert [line.rpartition(": ")[2] for line in printed[:2]] == [
        "KeyError 'policy'",
        "TypeError 'NoneType' object is not iterable",
    ]
    assert printed[2:] == ["mptcp-console: metrics: throttler answers again"]


def test_problem_is_logged_at_its_start_and_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def test(site: Site) -> None:
        for status in ("200 OK", "403 Forbidden", "403 Forbidden", "200 OK", "200 OK"):
            site.squid_status = status
            await site.scrape()
            site.now += 1

    run_at_site(tmp_path, test)
    first, last = [line for line in capsys.readouterr().err.splitlines() if "Squid" in line]
    assert first.endswith("info: 403 Forbidden")
    assert last == "mptcp-console: metrics: Squid answers again"


def test_post_is_refused(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        status, headers, _ = await site.get("POST")
        assert (status, headers[b"allow"]) == (405, b"GET, HEAD")
        assert site.queries == []

    run_at_site(tmp_path, test)


def test_openmetrics_and_gzip_are_served_on_request(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        media_type = "application/openmetrics-text; version=1.0.0"
        _, headers, body = await site.get(accept=media_type, accept_encoding="gzip")
        assert headers[b"Content-Encoding"] == b"gzip"
        assert headers[b"Content-Type"].startswith(b"application/openmetrics-text")
        parse: Callable[[str], Iterable[Any]] = text_string_to_metric_families
        found = {each.name for each in parse(gzip.decompress(body).decode())}
        assert "mptcp_throttler_cap_bytes" in found

    run_at_site(tmp_path, test)
