# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the states of parents: Squid's page about parents, reports of changes, and the address of the page."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mptcp_proxy.configuration.listeners import listeners
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.parents_alive import (
    ParentsWatch,
    QueryAddress,
    RefusedError,
    current_states,
    fetch_page,
    query_address,
    read_parents,
    summary,
)

PAGE = """\

Parent     : by-dsl
Host       : 192.0.2.1/3128/0
Flags      : no-query no-digest connect-timeout=3 connect-fail-limit=2
Address[0] : 192.0.2.1
Status     : Up
FETCHES    : 3
OPEN CONNS : 0
AVG RTT    : 0 msec
IGNORED    :        0   0%
keep-alive ratio: 0%

Parent     : by-lte
Host       : 192.0.2.1/3128/0
Flags      : no-query no-digest connect-timeout=3 connect-fail-limit=2
Address[0] : 192.0.2.1
Status     : Down
FETCHES    : 0
Last failed connect() at: 24/Nov/2026:06:00:00 +0000
keep-alive ratio: 0%
"""
"""The page of Squid 5.7."""
PAGE_ALL_UP = PAGE.replace("Down", "Up")
ALL_UP, LTE_DOWN = {"by-dsl": True, "by-lte": True}, {"by-dsl": True, "by-lte": False}


def test_page_with_the_parents_is_read() -> None:
    assert read_parents(PAGE) == LTE_DOWN
    assert read_parents(PAGE_ALL_UP) == ALL_UP
    assert read_parents("There are no neighbors installed.\n") == {}


def test_parent_is_up_if_all_workers_report_it_up() -> None:
    page = f"by kid1 {{\n{PAGE}}} by kid1\n\nby kid2 {{\n{PAGE_ALL_UP}}} by kid2\n"
    assert read_parents(page) == LTE_DOWN


def test_summary_names_the_parents_that_do_not_answer() -> None:
    assert summary({}) == ""
    assert summary({"one": True}) == "the parent answers"
    assert summary({"one": False}) == "DOES NOT ANSWER: one"
    assert summary(ALL_UP) == "all parents answer"
    assert summary(LTE_DOWN) == "DOES NOT ANSWER: by-lte (of 2 parents)"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["http_port 3128"], QueryAddress("127.0.0.1", 3128)),
        (["http_port 0.0.0.0:3128 tcpkeepalive=60,15,60"], QueryAddress("127.0.0.1", 3128)),
        (["http_port [::]:3128"], QueryAddress("::1", 3128)),
        (["http_port 192.168.1.2:3128", "http_port [::1]:3129"], QueryAddress("::1", 3129)),
        (["http_port 192.168.1.2:3128"], QueryAddress("192.168.1.2", 3128)),
        (["http_port 3129 intercept", "http_port localhost:3128"], QueryAddress("localhost", 3128)),
        (["https_port 3129 tls-cert=x", "http_port 3130 tproxy", "http_port 3131 accel"], None),
    ],
)
def test_address_for_the_query_is_chosen_from_the_listeners(texts: list[str], expected: QueryAddress | None) -> None:
    configured = tuple(PhysicalLine("relay.conf", number, text) for number, text in enumerate(texts, 1))
    assert query_address(listeners(statements(configured, "mptcprelay"))) == expected


@contextmanager
def fake_squid(status: int, page: str) -> Iterator[tuple[QueryAddress, list[str]]]:
    requested: list[str] = []

    class Manager(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Manager) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield QueryAddress("127.0.0.1", server.server_port), requested
        server.shutdown()


def test_cache_manager_is_queried_for_the_parents() -> None:
    with fake_squid(200, PAGE) as (address, requested):
        assert fetch_page(address) == PAGE
    assert requested == ["/squid-internal-mgr/server_list"]
    with fake_squid(403, "no") as (address, _), pytest.raises(RefusedError, match="403 Forbidden"):
        fetch_page(address)
    with pytest.raises(ConnectionRefusedError):
        fetch_page(address)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nParent"])
def test_incomplete_answer_is_not_a_refusal(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: at a restart of Squid, the relay reported that squid.conf refuses the query, and forgot dead parents."""

    class IncompleteServer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    watch = ParentsWatch()
    watch._states = LTE_DOWN
    with http.server.HTTPServer(("127.0.0.1", 0), IncompleteServer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        watch.set_listeners(listeners(statements(port_statement(server.server_port), "x")))
        watch.query_once()
    assert capsys.readouterr().err == ""
    assert watch._states == LTE_DOWN


def test_answer_before_the_workers_registered_is_not_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: during the start of Squid, the relay reported that squid.conf refuses the query."""
    watch = ParentsWatch()
    watch._states = LTE_DOWN
    with fake_squid(404, "ERR_INVALID_URL") as (address, _):
        watch.set_listeners(listeners(statements(port_statement(address.port), "x")))
        watch.query_once()
    assert capsys.readouterr().err == ""
    assert watch._states == LTE_DOWN


def port_statement(port: int) -> tuple[PhysicalLine, ...]:
    return (PhysicalLine("relay.conf", 1, f"http_port 127.0.0.1:{port}"),)


def test_states_of_the_parents_are_queried_once_for_a_command() -> None:
    with fake_squid(200, PAGE) as (address, _):
        assert current_states(listeners(statements(port_statement(address.port), "x"))) == (LTE_DOWN, "")
    with fake_squid(403, "no") as (address, _):
        assert current_states(listeners(statements(port_statement(address.port), "x"))) == ({}, "403 Forbidden")
    assert current_states(listeners(statements(port_statement(address.port), "x"))) == ({}, "Connection refused")
    assert current_states([]) == ({}, "none of its ports accepts the query")


def test_change_is_reported_once_and_is_in_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[dict[str, bool] | Exception] = [
        ALL_UP, ALL_UP, LTE_DOWN, LTE_DOWN, OSError("Squid reconfigures"), LTE_DOWN, ALL_UP,
        *[RefusedError("403 Forbidden")] * 2,
    ]  # fmt: skip
    reports = []

    def query(_: QueryAddress) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return "".join(f"Parent     : {name}\nStatus     : {'Up' if up else 'Down'}\n" for name, up in answer.items())

    watch = ParentsWatch(query)
    watch.set_listeners(listeners(statements(port_statement(3128), "x")))
    while answers:
        watch.query_once()
        found = capsys.readouterr()
        reports.append((watch.summary, found.out + found.err))
    summaries = [each for each, _ in reports]
    assert summaries[:2] == ["all parents answer"] * 2
    assert summaries[2:6] == ["DOES NOT ANSWER: by-lte (of 2 parents)"] * 4
    assert summaries[6:] == ["all parents answer", "", ""]
    printed = [text for _, text in reports]
    assert "parent by-lte does not answer; it is tried every 5 s" in printed[2]
    assert "parent by-lte answers again" in printed[6]
    assert "403 Forbidden" in printed[7]
    assert "http_access allow localhost manager" in printed[7]
    assert [bool(text) for text in printed] == [False, False, True, False, False, False, True, True, False]


def test_long_dead_parent_is_queried_less_often() -> None:
    now, page = 1000.0, PAGE
    watch = ParentsWatch(lambda _: page, lambda: now)
    watch.set_listeners(listeners(statements(port_statement(3128), "x")))
    pauses = []
    for seconds, new_page in ((0, PAGE), (299, PAGE), (1, PAGE), (5, PAGE.replace("Up", "Down")), (400, PAGE_ALL_UP)):
        now, page = now + seconds, new_page
        watch.query_once()
        pauses.append(watch.pause)
    assert pauses == [5.0, 5.0, 30.0, 5.0, 5.0]
    now += 400
    assert watch.pause == 5.0, "the pause grew although no parent is dead"


def test_lack_of_a_port_for_the_query_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    watch = ParentsWatch(lambda _: pytest.fail("no query can be sent"))
    watch.query_once()
    watch.query_once()
    found = capsys.readouterr()
    assert (found.out + found.err).count("Squid does not report which parents answer") == 1
