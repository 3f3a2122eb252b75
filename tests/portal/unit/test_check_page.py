# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check page: access, the shown connection, headers for browsers, and the limits on requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from answering_socket import answering
from portal_settings import onboarding
from portal_throttler import LTE, MONTH, WIFI, answers_for
from starlette.testclient import TestClient

from mptcp_portal import own_connection
from mptcp_portal.check_page import check_app
from mptcp_portal.check_report import KernelView, ThrottlerOutcome
from mptcp_portal.netlink import Ends
from mptcp_portal.onboarding_page import onboarding_app
from mptcp_portal.own_connection import KernelLookup, SingleRequestConnections
from mptcp_portal.throttler_client import MAX_ADDRESSES, MAX_PAGES, ThrottlerClient

WITH_PROFILE = "profile: {wifi: Home}"
SQUID = ("127.0.0.1", 50000)
OWN_ENDS, OTHER_ENDS = "10.77.1.2 40000 10.77.8.2 3128", "10.77.3.2 40001 10.77.8.2 3128"
PROXY = "10.77.8.2:3128"
ANSWERS: dict[str, dict[str, Any]] = {
    "10.77.1.2:40000": {"multipath": True, "subflows": [WIFI, LTE], "budgets": [MONTH]},
    "10.77.3.2:40001": {"multipath": True, "subflows": [WIFI | {"path": "secret"}], "budgets": []},
}


def kernel(ends: Ends) -> KernelView:
    return KernelView(ends.client[0] != ip_address("10.77.9.9"), 2, None)


def ends_of(port: int) -> Ends:
    return Ends((ip_address("10.77.1.2"), port), (ip_address("10.77.8.2"), 3128))


@contextmanager
def page_client(path: Path, peer: tuple[str, int] = SQUID, look_up: KernelLookup = kernel) -> Iterator[TestClient]:
    app = check_app(
        ThrottlerClient(path, pause=0),
        lambda _, theirs: theirs == SQUID,
        onboarding_app(onboarding(WITH_PROFILE)),
        look_up,
    )
    yield TestClient(app, client=peer)


@pytest.fixture
def throttler(tmp_path: Path) -> Iterator[Path]:
    with answering(tmp_path / "status.sock", answers_for(ANSWERS)):
        yield tmp_path / "status.sock"


def test_page_shows_the_clients_own_connection(throttler: Path) -> None:
    with page_client(throttler) as client:
        page = client.get("/", headers={"MPTCP-Client": OWN_ENDS})
        assert page.status_code == 200
        assert "Multipath TCP with 2 subflows: Wi-Fi and LTE" in page.text
        assert "LTE is limited to 5 Mbit/s by rule evening." in page.text
        assert "month: 1.2 of 5 GB left." in page.text
        assert "secret" not in page.text
        found = client.get("/check.json", headers={"MPTCP-Client": OTHER_ENDS}).json()
        assert [each["path"] for each in found["subflows"]] == ["secret"]


def test_clients_behind_one_nat_see_only_their_own_connection(tmp_path: Path) -> None:
    """Defect: a client with the same address and port, connected to another proxy address, saw the other client's
    connection."""
    answers_by_end = {"10.77.1.2:40000": ANSWERS["10.77.1.2:40000"] | {"local": PROXY}}
    for look_up in (lambda _: None, lambda ends: KernelView(ends == ends_of(40000), 2)):
        with (
            answering(tmp_path / "s", answers_for(answers_by_end)),
            page_client(tmp_path / "s", look_up=look_up) as client,
        ):
            for _ in range(2):  # the second request is sent within the second for which an answer is cached
                assert "LTE" in client.get("/", headers={"MPTCP-Client": OWN_ENDS}).text
                for proxy in ("10.77.8.3 3128", "10.77.8.2 8080"):
                    headers = {"MPTCP-Client": f"10.77.1.2 40000 {proxy}"}
                    page = client.get("/", headers=headers).text
                    assert "Plain TCP over one path" in page
                    assert not re.search("LTE|Wi-Fi|month", page)
                    answer = client.get("/check.json", headers=headers).json()
                    assert (answer["transport"], answer["subflows"], answer["budgets"]) == ("tcp", [], [])
        (tmp_path / "s").unlink(missing_ok=True)


def test_connection_with_reused_ends_gets_no_cached_answer(tmp_path: Path) -> None:
    """The new connection sends a request within the second for which the old connection's answer is cached."""
    views = [KernelView(True, 2, 0xABCD), KernelView(False)]
    answers_by_end = {"10.77.1.2:40000": ANSWERS["10.77.1.2:40000"] | {"token": "0000abcd"}}
    with (
        answering(tmp_path / "s", answers_for(answers_by_end)),
        page_client(tmp_path / "s", look_up=lambda _: views.pop(0)) as client,
    ):
        assert "LTE" in client.get("/", headers={"MPTCP-Client": OWN_ENDS}).text
        page = client.get("/", headers={"MPTCP-Client": OWN_ENDS}).text
    assert "Plain TCP over one path" in page
    assert not re.search("LTE|Wi-Fi|month", page)


def test_header_of_an_older_squid_conf_shows_no_connection(throttler: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An upgrade keeps an operator's own squid.conf, whose header names only the client's end of the connection."""
    lookups: list[Ends] = []
    with page_client(throttler, look_up=lookups.append) as client:
        for _ in range(3):
            page = client.get("/", headers={"MPTCP-Client": "10.77.1.2 40000"})
            assert page.status_code == 200
            assert "squid.conf) are from an earlier version" in page.text
            assert not re.search("LTE|Wi-Fi|month", page.text)
        answer = client.get("/check.json", headers={"MPTCP-Client": "10.77.1.2 40000"}).json()
    assert (answer["transport"], answer["subflows"], answer["budgets"]) == ("unknown", [], [])
    assert not lookups
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mptcp-portal: the check page cannot show clients their connection")
    assert line.endswith('request_header_add MPTCP-Client "%>a %>p %>la %>lp" check_page')


@pytest.mark.parametrize("path", ["/", "/check.json", "/portal.css", "/nothing"])
def test_request_that_is_not_squids_is_refused(throttler: Path, path: str) -> None:
    with page_client(throttler, ("127.0.0.1", 50001)) as client:
        answer = client.get(path, headers={"MPTCP-Client": OWN_ENDS, "X-Forwarded-For": "127.0.0.1"})
    assert answer.status_code == 403
    assert "LTE" not in answer.text


@pytest.mark.parametrize("path", ["/", "/check.json"])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("MPTCP-Client", OWN_ENDS), ("MPTCP-Client", OTHER_ENDS)],
        [("MPTCP_Client", OWN_ENDS)],
        [("X-Forwarded-For", "10.77.1.2")],
    ],
    ids=["none", "two", "underscore", "forwarded-for"],
)
def test_request_without_exactly_one_client_header_is_refused(
    throttler: Path, path: str, headers: list[tuple[str, str]]
) -> None:
    with page_client(throttler) as client:
        answer = client.get(path, headers=headers)
    assert answer.status_code == 403
    assert "LTE" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [{"Content-Length": "5"}, {"Content-Length": "00"}, {"Transfer-Encoding": "chunked"}, {"Transfer-Encoding": ""}],
    ids=["length", "length-00", "chunked", "empty-encoding"],
)
def test_request_with_a_body_ends_the_connection(throttler: Path, headers: dict[str, str]) -> None:
    """The connection is Squid's, and the next request on it may be another client's."""
    with page_client(throttler) as client:
        answer = client.get("/check.json", headers={"MPTCP-Client": OWN_ENDS, **headers})
        assert client.get("/check.json", headers={"MPTCP-Client": OWN_ENDS, "Content-Length": "0"}).status_code == 200
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
    assert "LTE" not in answer.text


@pytest.mark.parametrize(
    ("via", "relayed"),
    [
        ([], False),
        (["1.1 mptcpproxy"], False),
        (["1.1 mptcpproxy, "], False),
        (["1.1 mptcprelay, 1.1 mptcpproxy"], True),
        (["1.1 mptcprelay", "1.1 mptcpproxy"], True),
    ],
)
def test_page_detects_another_proxy_by_via(throttler: Path, via: list[str], relayed: bool) -> None:
    with page_client(throttler) as client:
        page = client.get("/", headers=[("MPTCP-Client", OWN_ENDS), *(("Via", each) for each in via)]).text
    assert ("Another proxy" in page) == relayed
    assert "Multipath TCP with 2 subflows" in page


def test_page_behind_a_relay_waits_briefly_for_a_second_subflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of a relay uses a new connection, whose second subflow joins only after the request."""
    monkeypatch.setattr(own_connection, "LOOKUP_INTERVAL", 0.0)
    subflows: list[KernelView | None] = []
    lookups = 0

    def look_up(_: Ends) -> KernelView | None:
        nonlocal lookups
        lookups += 1
        return subflows.pop(0) if len(subflows) > 1 else subflows[0]

    def view_after(*found: KernelView | None) -> tuple[KernelView | None, int]:
        nonlocal lookups
        subflows[:], lookups = found, 0
        return asyncio.run(SingleRequestConnections(look_up).view(ends_of(1))), lookups

    single, double, plain = KernelView(True, 1, 5), KernelView(True, 2, 5), KernelView(False)
    assert view_after(single, single, double) == (double, 3)
    assert view_after(double) == (double, 1)
    assert view_after(single) == (single, own_connection.MAX_LOOKUPS)
    assert view_after(single, plain) == (plain, 2)
    assert view_after(plain) == (plain, 1)
    assert view_after(None) == (None, 1)

    async def many_requests() -> None:
        await asyncio.gather(*(connections.view(ends_of(each)) for each in range(50)))

    connections, subflows[:], lookups = SingleRequestConnections(look_up), [single], 0
    asyncio.run(many_requests())
    assert lookups == own_connection.MAX_WAITING * own_connection.MAX_LOOKUPS + 50 - own_connection.MAX_WAITING


def test_page_without_a_throttler_shows_the_kernels_data(tmp_path: Path) -> None:
    with page_client(tmp_path / "nobody.sock") as client:
        assert "Multipath TCP with 2 subflows" in client.get("/", headers={"MPTCP-Client": OWN_ENDS}).text
        page = client.get("/", headers={"MPTCP-Client": "10.77.9.9 4 10.77.8.2 3128"}).text
        assert "Plain TCP over one path" in page
        assert "Which systems support Multipath TCP" in page


def test_json_has_status_503_without_a_throttler(tmp_path: Path) -> None:
    with page_client(tmp_path / "nobody.sock") as client:
        found = client.get("/check.json", headers={"MPTCP-Client": OWN_ENDS})
        assert (found.status_code, found.json()["transport"]) == (503, "multipath")
        assert found.headers["content-type"] == "application/json"  # squid.conf recognizes the answer by this type
        assert int(found.headers["retry-after"]) > 0
        assert client.get("/", headers={"MPTCP-Client": OWN_ENDS}).status_code == 200


AGENTS = {
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Safari/604.1": "apple",
    "Mozilla/5.0 (Linux; Android 15; Pixel 8) AppleWebKit/537.36 Chrome/130.0 Mobile Safari": "android",
    "Mozilla/5.0 (Android 15; Mobile; rv:132.0) Gecko/132.0 Firefox/132.0": "android",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:132.0) Gecko/20100101 Firefox/132.0": "systems",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 Safari/605.1.15": "systems",
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0": "firefox",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36": "chromium",
    "curl/7.88.1": "linux",
    "": "systems",
}


@pytest.mark.parametrize("agent", AGENTS)
def test_plain_tcp_client_gets_a_link_for_its_device(tmp_path: Path, agent: str) -> None:
    headers = {"MPTCP-Client": "10.77.9.9 4 10.77.8.2 3128", "User-Agent": agent}
    with page_client(tmp_path / "nobody.sock") as client:
        assert f'href="use/#{AGENTS[agent]}"' in client.get("/", headers=headers).text
        assert f'id="{AGENTS[agent]}"' in client.get("/use/", headers=headers).text
        assert client.get("/check.json", headers=headers).json()["advice"]
        assert client.get("/check.json", headers=headers | {"MPTCP-Client": OWN_ENDS}).json()["advice"] == []
        # With a relay in between, the page cannot know the client's device.
        assert 'href="use/#' not in client.get("/", headers=headers | {"Via": "1.1 relay, 1.1 proxy"}).text


def test_answer_of_an_old_throttler_is_not_shown(tmp_path: Path) -> None:
    """A daemon that is older than the request protocol answers with its whole status."""
    whole_status = {
        "version": "0",
        "connections": [{"subflows": [{"path": "secret"}]}],
        "subflows": [WIFI],
        "budgets": [],
    }
    with answering(tmp_path / "s", lambda _: whole_status), page_client(tmp_path / "s") as client:
        found = client.get("/check.json", headers={"MPTCP-Client": OWN_ENDS})
    assert found.json()["throttler"] == "absent"
    assert "secret" not in found.text
    assert "Wi-Fi" not in found.text


def test_answers_are_not_cached_and_load_only_own_files(throttler: Path) -> None:
    with page_client(throttler) as client:
        for path in ("/", "/check.json", "/check.js", "/portal.css", "/nothing"):
            answer = client.get(path, headers={"MPTCP-Client": OWN_ENDS})
            assert answer.headers["cache-control"] == "no-store"
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert not re.search(r"unsafe|\*|https?:|data:", policy)
            assert "set-cookie" not in answer.headers
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in answer.headers
        page = client.get("/", headers={"MPTCP-Client": OWN_ENDS}).text
    # The page loads only the portal's own files, and has no inline scripts or styles.
    assert set(re.findall(r'(?:src|href)="([^"]+)"', page)) <= {
        "portal.css",
        "icon.svg",
        "check.js",
        "use/",
    }
    assert not re.search(r"<style|style=|<script>|\\son\w+=", page)


def test_page_links_to_onboarding_below_its_own_address(throttler: Path) -> None:
    """Defect: the link led to an address of the proxy's host, to which the proxy denies access."""
    client_header = {"MPTCP-Client": OWN_ENDS}
    with page_client(throttler) as client:
        text = client.get("/", headers=client_header).text
        (link,) = re.findall(r'<a href="([^"]+)">How to use the proxy</a>', text)
        assert not re.match("[a-z]+:|/", link)
        page = client.get(f"/{link}", headers=client_header)
        assert page.status_code == 200
        assert "<h2>Set it up</h2>" in page.text
        linked_files = [each for each in re.findall(r'(?:src|href)="([^"]+)"', page.text) if ":" not in each]
        assert {"qr.svg", "proxy.mobileconfig", "portal.css"} <= set(linked_files)
        direct = TestClient(onboarding_app(onboarding(WITH_PROFILE)))
        for name in ("", "proxy.pac", "wpad.dat", *linked_files):
            answer, expected = client.get(f"/{link}{name}", headers=client_header), direct.get(f"/{name}")
            assert (answer.status_code, answer.content) == (200, expected.content), name
            assert answer.headers == expected.headers, name
        # Other paths give 404; an extra slash must not redirect to the host that the Host header names.
        headers = client_header | {"Host": "evil.example"}
        for name in ("use//", "use/proxy.pac/", "use/check.json"):
            assert client.get(f"/{name}", headers=headers, follow_redirects=False).status_code == 404, name
        answer = client.get("/use", headers=headers, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (308, "/use/")
    with page_client(throttler, ("127.0.0.1", 50001)) as client:
        assert client.get(f"/{link}", headers=client_header).status_code == 403


def test_page_without_onboarding_has_no_link_to_it(throttler: Path) -> None:
    client = TestClient(check_app(ThrottlerClient(throttler, pause=0), lambda *_: True, None, kernel), client=SQUID)
    assert "<a " not in client.get("/", headers={"MPTCP-Client": OWN_ENDS}).text
    assert client.get("/use/", headers={"MPTCP-Client": OWN_ENDS}).status_code == 404


@pytest.mark.parametrize(("via", "headline"), [("1.1 relay, 1.1 proxy", "2 subflows"), ("1.1 proxy", "1 subflow so")])
def test_page_waits_only_behind_a_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, via: str, headline: str
) -> None:
    monkeypatch.setattr(own_connection, "LOOKUP_INTERVAL", 0.0)
    views = [KernelView(True, 1, 5), KernelView(True, 1, 5), KernelView(True, 2, 5)]
    with page_client(tmp_path / "nobody.sock", look_up=lambda _: views.pop(0)) as client:
        found = client.get("/check.json", headers={"MPTCP-Client": OWN_ENDS, "Via": via}).json()
    assert headline in found["headline"]


MARKUP = "<b>x</b>\"'&</script>"


def test_names_from_the_policy_are_escaped(tmp_path: Path) -> None:
    with_markup = {
        "multipath": True,
        "subflows": [WIFI | {"path": MARKUP}, LTE | {"rule": MARKUP}],
        "budgets": [MONTH | {"name": MARKUP}],
    }
    with (
        answering(tmp_path / "s", answers_for({"10.77.1.2:40000": with_markup})),
        page_client(tmp_path / "s") as client,
    ):
        page = client.get("/", headers={"MPTCP-Client": OWN_ENDS}).text
    assert "<b>" not in page
    # The names are in the headline, the line of the cap, the line of the volume, the table, and the volume's label.
    assert page.count("&lt;b&gt;x&lt;/b&gt;&#34;&#39;&amp;&lt;/script&gt;") == 5


def test_throttler_finds_a_connection_by_its_token(tmp_path: Path) -> None:
    answers_by_end = {"10.77.2.2:5": {"multipath": True, "subflows": [LTE], "budgets": [], "token": "0000abcd"}}

    async def query(token: int | None) -> tuple[ThrottlerOutcome, dict[str, Any]]:
        return await ThrottlerClient(tmp_path / "s", pause=0).client("10.77.1.2:40000", PROXY, token)

    with answering(tmp_path / "s", answers_for(answers_by_end)):
        assert asyncio.run(query(0xABCD))[1]["subflows"] == [LTE]
        assert asyncio.run(query(None))[1]["subflows"] == []


def test_number_of_concurrent_page_requests_is_bounded(tmp_path: Path) -> None:
    async def many_requests() -> list[ThrottlerOutcome]:
        throttler_client = ThrottlerClient(tmp_path / "s", pause=0.01)
        answers = await asyncio.gather(*(throttler_client.client(f"10.0.0.{n}:1", PROXY, None) for n in range(50)))
        return [status for status, _ in answers]

    with answering(tmp_path / "s", answers_for({})) as requests:
        answers = asyncio.run(many_requests())
    assert len(requests) == answers.count(ThrottlerOutcome.ANSWERED) == MAX_PAGES
    assert answers.count(ThrottlerOutcome.BUSY) == 50 - MAX_PAGES


def test_client_with_many_connections_has_one_place(tmp_path: Path) -> None:
    """Defect: a client with six connections used all places, and all others got BUSY."""

    async def send_all() -> tuple[list[ThrottlerOutcome], list[ThrottlerOutcome]]:
        throttler_client = ThrottlerClient(tmp_path / "s", pause=0.01)
        same_client = [throttler_client.client(f"10.0.0.9:{n}", PROXY, None) for n in range(1, 30)]
        other_clients = [throttler_client.client(f"10.0.0.{n}:1", PROXY, None) for n in range(1, MAX_PAGES)]
        statuses = [status for status, _ in await asyncio.gather(*same_client, *other_clients)]
        return statuses[: len(same_client)], statuses[len(same_client) :]

    with answering(tmp_path / "s", answers_for({})):
        same_client, other_clients = asyncio.run(send_all())
    assert set(other_clients) == {ThrottlerOutcome.ANSWERED}
    assert same_client.count(ThrottlerOutcome.ANSWERED) == 1


@pytest.mark.parametrize("address", ["[2001:db8:0:1::{:x}]", "[::ffff:10.0.0.9]"])
def test_client_with_many_ipv6_addresses_has_one_place(tmp_path: Path, address: str) -> None:
    """Defect: six privacy addresses of one /64 used all places."""

    async def send_all() -> list[ThrottlerOutcome]:
        throttler_client = ThrottlerClient(tmp_path / "s", pause=0.01)
        same_client = [throttler_client.client(f"{address.format(n)}:{n}", PROXY, None) for n in range(1, 30)]
        other_clients = [
            throttler_client.client(f"[2001:db8:0:{n:x}::1]:1", PROXY, None) for n in range(2, MAX_PAGES + 1)
        ]
        return [status for status, _ in await asyncio.gather(*same_client, *other_clients)]

    with answering(tmp_path / "s", answers_for({})):
        statuses = asyncio.run(send_all())
    assert set(statuses[29:]) == {ThrottlerOutcome.ANSWERED}
    assert statuses[:29].count(ThrottlerOutcome.ANSWERED) == 1


def test_clients_behind_one_nat64_have_their_own_places(tmp_path: Path) -> None:
    """Defect: all clients that a translator maps into 64:ff9b::/96 counted as one client, with one place."""

    async def send_all() -> list[ThrottlerOutcome]:
        throttler_client = ThrottlerClient(tmp_path / "s", pause=0.01)
        requests = (throttler_client.client(f"[64:ff9b::192.0.2.{n}]:1", PROXY, None) for n in range(1, MAX_PAGES + 1))
        return [status for status, _ in await asyncio.gather(*requests)]

    with answering(tmp_path / "s", answers_for({})):
        assert set(asyncio.run(send_all())) == {ThrottlerOutcome.ANSWERED}


def test_page_requests_do_not_wait_for_captive_portal_requests(tmp_path: Path) -> None:
    """Defect: check pages waited in the same queue as captive-portal requests: 40 s instead of 3 s."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def send_concurrently() -> None:
        throttler_client = ThrottlerClient(tmp_path / "s", pause=60.0)
        await asyncio.gather(
            throttler_client.client("10.77.1.2:40000", PROXY, 0xABCD), throttler_client.budgets_of("10.77.3.2")
        )

    answers_by_end = {"10.77.2.2:5": {"multipath": True, "subflows": [LTE], "budgets": [], "token": "0000abcd"}}
    with answering(tmp_path / "s", answers_for(answers_by_end)) as requests, pytest.MonkeyPatch.context() as patch:
        patch.setattr("mptcp_portal.throttler_client.sleep", sleep)
        asyncio.run(send_concurrently())
    assert len(requests) == 2
    assert max(pauses) <= 0, "a request waited behind the other one"


def test_page_requests_leave_places_for_captive_portal_requests(tmp_path: Path) -> None:
    async def send_all() -> list[ThrottlerOutcome]:
        throttler_client = ThrottlerClient(tmp_path / "s", pause=0.001)
        pages = [throttler_client.client(f"10.0.0.{n}:1", PROXY, None) for n in range(50)]
        answers = await asyncio.gather(
            *pages, *(throttler_client.budgets_of(f"10.0.0.{n}") for n in range(MAX_ADDRESSES))
        )
        return [status for status, _ in answers[len(pages) :]]

    with answering(tmp_path / "s", answers_for({})):
        assert asyncio.run(send_all()) == [ThrottlerOutcome.ANSWERED] * MAX_ADDRESSES


def test_repeated_request_is_sent_once(tmp_path: Path) -> None:
    async def send_repeatedly() -> list[ThrottlerOutcome]:
        throttler_client = ThrottlerClient(tmp_path / "s", pause=0)
        concurrent = await asyncio.gather(*(throttler_client.client("10.0.0.1:1", PROXY, None) for _ in range(2)))
        return [status for status, _ in (*concurrent, await throttler_client.client("10.0.0.1:1", PROXY, None))]

    with answering(tmp_path / "s", answers_for({})) as requests:
        assert asyncio.run(send_repeatedly()) == [ThrottlerOutcome.ANSWERED] * 3
    assert len(requests) == 1


def test_cancelled_request_does_not_cancel_an_equal_one(tmp_path: Path) -> None:
    async def cancel_one() -> ThrottlerOutcome:
        throttler_client = ThrottlerClient(tmp_path / "s", pause=0)
        first = asyncio.ensure_future(throttler_client.client("10.0.0.1:1", PROXY, None))
        second = asyncio.ensure_future(throttler_client.client("10.0.0.1:1", PROXY, None))
        await asyncio.sleep(0)
        first.cancel()
        return (await second)[0]

    with answering(tmp_path / "s", answers_for({})):
        assert asyncio.run(cancel_one()) is ThrottlerOutcome.ANSWERED


def test_volume_meter_has_levels(throttler: Path) -> None:
    """Defect: the bar was green until the volume was used up."""
    with page_client(throttler) as client:
        page = client.get("/", headers={"MPTCP-Client": OWN_ENDS}).text
        (found,) = client.get("/check.json", headers={"MPTCP-Client": OWN_ENDS}).json()["budgets"]
    levels = 'low="500000000" high="1250000000" optimum="5000000000" value="1200000000"'
    assert f'<meter min="0" max="5000000000" {levels}>' in page
    assert (found["low"], found["getting_low"], found["volume"]) == (5 * 10**8, 125 * 10**7, 5 * 10**9)


def test_only_the_headline_is_a_live_region(throttler: Path) -> None:
    """Defect: screen readers read out all lines, so during a download the remaining volume every three seconds."""
    with page_client(throttler) as client:
        page = client.get("/", headers={"MPTCP-Client": OWN_ENDS}).text
    assert re.findall(r"<(\w+)[^>]*aria-live", page) == ["h1"]
