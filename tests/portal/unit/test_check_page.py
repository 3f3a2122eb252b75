# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check page: access, the shown connection, headers for browsers, and the limits on questions."""

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
from portal_throttler import LTE, MONTH, WIFI, of_clients
from starlette.testclient import TestClient

from mptcp_portal import asking, own_connection
from mptcp_portal.asking import MAX_PAGES, MAX_SYSTEMS, Asker
from mptcp_portal.check_page import check_app
from mptcp_portal.check_report import KernelView, Throttler
from mptcp_portal.netlink import Ends
from mptcp_portal.onboarding_page import onboarding_app
from mptcp_portal.own_connection import KernelQuestion, NewConnections

WITH_PROFILE = "profile: {wifi: Home}"
SQUID = ("127.0.0.1", 50000)
MINE, OTHER = "10.77.1.2 40000 10.77.8.2 3128", "10.77.3.2 40001 10.77.8.2 3128"
PROXY = "10.77.8.2:3128"
KNOWN: dict[str, dict[str, Any]] = {
    "10.77.1.2:40000": {"multipath": True, "subflows": [WIFI, LTE], "budgets": [MONTH]},
    "10.77.3.2:40001": {"multipath": True, "subflows": [WIFI | {"path": "secret"}], "budgets": []},
}


def kernel(ends: Ends) -> KernelView:
    return KernelView(ends.client[0] != ip_address("10.77.9.9"), 2, None)


def ends_of(port: int) -> Ends:
    return Ends((ip_address("10.77.1.2"), port), (ip_address("10.77.8.2"), 3128))


@contextmanager
def served(path: Path, peer: tuple[str, int] = SQUID, look: KernelQuestion = kernel) -> Iterator[TestClient]:
    app = check_app(
        Asker(path, pause=0), lambda _, theirs: theirs == SQUID, onboarding_app(onboarding(WITH_PROFILE)), look
    )
    yield TestClient(app, client=peer)


@pytest.fixture
def throttler(tmp_path: Path) -> Iterator[Path]:
    with answering(tmp_path / "status.sock", of_clients(KNOWN)):
        yield tmp_path / "status.sock"


def test_page_shows_the_clients_own_connection(throttler: Path) -> None:
    with served(throttler) as client:
        page = client.get("/", headers={"MPTCP-Client": MINE})
        assert page.status_code == 200
        assert "Multipath TCP with 2 subflows: Wi-Fi and LTE" in page.text
        assert "LTE is limited to 5 Mbit/s by rule evening." in page.text
        assert "month: 1.2 of 5 GB left." in page.text
        assert "secret" not in page.text
        found = client.get("/check.json", headers={"MPTCP-Client": OTHER}).json()
        assert [each["path"] for each in found["subflows"]] == ["secret"]


def test_clients_behind_one_nat_see_only_their_own_connection(tmp_path: Path) -> None:
    """Defect: a client with the same address and port towards another proxy address saw the other's connection."""
    known = {"10.77.1.2:40000": KNOWN["10.77.1.2:40000"] | {"local": PROXY}}
    for look in (lambda _: None, lambda ends: KernelView(ends == ends_of(40000), 2)):
        with answering(tmp_path / "s", of_clients(known)), served(tmp_path / "s", look=look) as client:
            for _ in range(2):  # the second request comes within the second for which an answer is cached
                assert "LTE" in client.get("/", headers={"MPTCP-Client": MINE}).text
                for proxy in ("10.77.8.3 3128", "10.77.8.2 8080"):
                    headers = {"MPTCP-Client": f"10.77.1.2 40000 {proxy}"}
                    page = client.get("/", headers=headers).text
                    assert "Plain TCP over one path" in page
                    assert not re.search("LTE|Wi-Fi|month", page)
                    answer = client.get("/check.json", headers=headers).json()
                    assert (answer["transport"], answer["subflows"], answer["budgets"]) == ("tcp", [], [])
        (tmp_path / "s").unlink(missing_ok=True)


def test_connection_with_reused_ends_gets_no_cached_answer(tmp_path: Path) -> None:
    """The new connection asks within the second for which the other's answer is cached."""
    views = [KernelView(True, 2, 0xABCD), KernelView(False)]
    known = {"10.77.1.2:40000": KNOWN["10.77.1.2:40000"] | {"token": "0000abcd"}}
    with answering(tmp_path / "s", of_clients(known)), served(tmp_path / "s", look=lambda _: views.pop(0)) as client:
        assert "LTE" in client.get("/", headers={"MPTCP-Client": MINE}).text
        page = client.get("/", headers={"MPTCP-Client": MINE}).text
    assert "Plain TCP over one path" in page
    assert not re.search("LTE|Wi-Fi|month", page)


def test_header_of_an_older_squid_conf_shows_no_connection(throttler: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An upgrade keeps an operator's own squid.conf, whose header names only the client's end of the connection."""
    looks: list[Ends] = []
    with served(throttler, look=looks.append) as client:
        for _ in range(3):
            page = client.get("/", headers={"MPTCP-Client": "10.77.1.2 40000"})
            assert page.status_code == 200
            assert "squid.conf) are from an earlier version" in page.text
            assert not re.search("LTE|Wi-Fi|month", page.text)
        answer = client.get("/check.json", headers={"MPTCP-Client": "10.77.1.2 40000"}).json()
    assert (answer["transport"], answer["subflows"], answer["budgets"]) == ("unknown", [], [])
    assert not looks
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mptcp-portal: the check page cannot show clients their connection")
    assert line.endswith('request_header_add MPTCP-Client "%>a %>p %>la %>lp" check_page')


@pytest.mark.parametrize("path", ["/", "/check.json", "/portal.css", "/nothing"])
def test_request_that_is_not_squids_is_refused(throttler: Path, path: str) -> None:
    with served(throttler, ("127.0.0.1", 50001)) as client:
        answer = client.get(path, headers={"MPTCP-Client": MINE, "X-Forwarded-For": "127.0.0.1"})
    assert answer.status_code == 403
    assert "LTE" not in answer.text


@pytest.mark.parametrize("path", ["/", "/check.json"])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("MPTCP-Client", MINE), ("MPTCP-Client", OTHER)],
        [("MPTCP_Client", MINE)],
        [("X-Forwarded-For", "10.77.1.2")],
    ],
)
def test_request_without_exactly_one_client_header_is_refused(
    throttler: Path, path: str, headers: list[tuple[str, str]]
) -> None:
    with served(throttler) as client:
        answer = client.get(path, headers=headers)
    assert answer.status_code == 403
    assert "LTE" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [{"Content-Length": "5"}, {"Content-Length": "00"}, {"Transfer-Encoding": "chunked"}, {"Transfer-Encoding": ""}],
)
def test_request_with_a_body_ends_the_connection(throttler: Path, headers: dict[str, str]) -> None:
    """The connection is Squid's, and the next request on it may be another client's."""
    with served(throttler) as client:
        answer = client.get("/check.json", headers={"MPTCP-Client": MINE, **headers})
        assert client.get("/check.json", headers={"MPTCP-Client": MINE, "Content-Length": "0"}).status_code == 200
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
    with served(throttler) as client:
        page = client.get("/", headers=[("MPTCP-Client", MINE), *(("Via", each) for each in via)]).text
    assert ("Another proxy" in page) == relayed
    assert "Multipath TCP with 2 subflows" in page


def test_page_behind_a_relay_waits_briefly_for_a_second_subflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of a relay uses a new connection, whose second subflow joins after the request."""
    monkeypatch.setattr(own_connection, "INTERVAL", 0.0)
    subflows: list[KernelView | None] = []
    looks = 0

    def look(_: Ends) -> KernelView | None:
        nonlocal looks
        looks += 1
        return subflows.pop(0) if len(subflows) > 1 else subflows[0]

    def seen(*found: KernelView | None) -> tuple[KernelView | None, int]:
        nonlocal looks
        subflows[:], looks = found, 0
        return asyncio.run(NewConnections(look).view(ends_of(1))), looks

    one, two, plain = KernelView(True, 1, 5), KernelView(True, 2, 5), KernelView(False)
    assert seen(one, one, two) == (two, 3)
    assert seen(two) == (two, 1)
    assert seen(one) == (one, own_connection.LOOKS)
    assert seen(one, plain) == (plain, 2)
    assert seen(plain) == (plain, 1)
    assert seen(None) == (None, 1)

    async def crowd() -> None:
        await asyncio.gather(*(connections.view(ends_of(each)) for each in range(50)))

    connections, subflows[:], looks = NewConnections(look), [one], 0
    asyncio.run(crowd())
    assert looks == own_connection.MAX_WAITING * own_connection.LOOKS + 50 - own_connection.MAX_WAITING


def test_page_without_a_throttler_shows_the_kernels_data(tmp_path: Path) -> None:
    with served(tmp_path / "nobody.sock") as client:
        assert "Multipath TCP with 2 subflows" in client.get("/", headers={"MPTCP-Client": MINE}).text
        page = client.get("/", headers={"MPTCP-Client": "10.77.9.9 4 10.77.8.2 3128"}).text
        assert "Plain TCP over one path" in page
        assert "Which systems support Multipath TCP" in page


def test_json_has_status_503_without_a_throttler(tmp_path: Path) -> None:
    with served(tmp_path / "nobody.sock") as client:
        found = client.get("/check.json", headers={"MPTCP-Client": MINE})
        assert (found.status_code, found.json()["transport"]) == (503, "multipath")
        assert found.headers["content-type"] == "application/json"  # squid.conf recognizes the answer by this type
        assert int(found.headers["retry-after"]) > 0
        assert client.get("/", headers={"MPTCP-Client": MINE}).status_code == 200


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
    with served(tmp_path / "nobody.sock") as client:
        assert f'href="use/#{AGENTS[agent]}"' in client.get("/", headers=headers).text
        assert f'id="{AGENTS[agent]}"' in client.get("/use/", headers=headers).text
        assert client.get("/check.json", headers=headers).json()["advice"]
        assert client.get("/check.json", headers=headers | {"MPTCP-Client": MINE}).json()["advice"] == []
        # With a relay in between, the page cannot know the client's device.
        assert 'href="use/#' not in client.get("/", headers=headers | {"Via": "1.1 relay, 1.1 proxy"}).text


def test_answer_of_an_old_throttler_is_not_shown(tmp_path: Path) -> None:
    """A daemon from before the request protocol answers with everything it knows."""
    everything = {
        "version": "0",
        "connections": [{"subflows": [{"path": "secret"}]}],
        "subflows": [WIFI],
        "budgets": [],
    }
    with answering(tmp_path / "s", lambda _: everything), served(tmp_path / "s") as client:
        found = client.get("/check.json", headers={"MPTCP-Client": MINE})
    assert found.json()["throttler"] == "absent"
    assert "secret" not in found.text
    assert "Wi-Fi" not in found.text


def test_answers_are_not_cached_and_load_only_own_files(throttler: Path) -> None:
    with served(throttler) as client:
        for path in ("/", "/check.json", "/check.js", "/portal.css", "/nothing"):
            answer = client.get(path, headers={"MPTCP-Client": MINE})
            assert answer.headers["cache-control"] == "no-store"
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert not re.search(r"unsafe|\*|https?:|data:", policy)
            assert "set-cookie" not in answer.headers
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in answer.headers
        page = client.get("/", headers={"MPTCP-Client": MINE}).text
    # The page loads only files beside it, without inline scripts or styles.
    assert set(re.findall(r'(?:src|href)="([^"]+)"', page)) <= {
        "portal.css",
        "icon.svg",
        "check.js",
        "use/",
    }
    assert not re.search(r"<style|style=|<script>|\\son\w+=", page)


def test_page_links_to_onboarding_below_its_own_address(throttler: Path) -> None:
    """Defect: the link led to an address of the proxy's host, which the proxy denies to clients.

    Clients that had set the proxy by hand, as the steps there say, were denied the page.
    """
    for_squid = {"MPTCP-Client": MINE}
    with served(throttler) as client:
        text = client.get("/", headers=for_squid).text
        (link,) = re.findall(r'<a href="([^"]+)">How to use the proxy</a>', text)
        assert not re.match("[a-z]+:|/", link)
        page = client.get(f"/{link}", headers=for_squid)
        assert page.status_code == 200
        assert "<h2>Set it up</h2>" in page.text
        beside = [each for each in re.findall(r'(?:src|href)="([^"]+)"', page.text) if ":" not in each]
        assert {"qr.svg", "proxy.mobileconfig", "portal.css"} <= set(beside)
        itself = TestClient(onboarding_app(onboarding(WITH_PROFILE)))
        for name in ("", "proxy.pac", "wpad.dat", *beside):
            answer, expected = client.get(f"/{link}{name}", headers=for_squid), itself.get(f"/{name}")
            assert (answer.status_code, answer.content) == (200, expected.content), name
            assert answer.headers == expected.headers, name
        # Other paths give 404; an extra slash must not redirect to the host that the Host header names.
        headers = for_squid | {"Host": "evil.example"}
        for name in ("use//", "use/proxy.pac/", "use/check.json"):
            assert client.get(f"/{name}", headers=headers, follow_redirects=False).status_code == 404, name
        answer = client.get("/use", headers=headers, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (308, "/use/")
    with served(throttler, ("127.0.0.1", 50001)) as client:
        assert client.get(f"/{link}", headers=for_squid).status_code == 403


def test_page_without_onboarding_has_no_link_to_it(throttler: Path) -> None:
    client = TestClient(check_app(Asker(throttler, pause=0), lambda *_: True, None, kernel), client=SQUID)
    assert "<a " not in client.get("/", headers={"MPTCP-Client": MINE}).text
    assert client.get("/use/", headers={"MPTCP-Client": MINE}).status_code == 404


@pytest.mark.parametrize(("via", "headline"), [("1.1 relay, 1.1 proxy", "2 subflows"), ("1.1 proxy", "1 subflow so")])
def test_page_waits_only_behind_a_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, via: str, headline: str
) -> None:
    monkeypatch.setattr(own_connection, "INTERVAL", 0.0)
    views = [KernelView(True, 1, 5), KernelView(True, 1, 5), KernelView(True, 2, 5)]
    with served(tmp_path / "nobody.sock", look=lambda _: views.pop(0)) as client:
        found = client.get("/check.json", headers={"MPTCP-Client": MINE, "Via": via}).json()
    assert headline in found["headline"]


NASTY = "<b>x</b>\"'&</script>"


def test_names_from_the_policy_are_escaped(tmp_path: Path) -> None:
    """This applies to names of paths, rules and budgets."""
    nasty = {
        "multipath": True,
        "subflows": [WIFI | {"path": NASTY}, LTE | {"rule": NASTY}],
        "budgets": [MONTH | {"name": NASTY}],
    }
    with answering(tmp_path / "s", of_clients({"10.77.1.2:40000": nasty})), served(tmp_path / "s") as client:
        page = client.get("/", headers={"MPTCP-Client": MINE}).text
    assert "<b>" not in page
    # The places are: headline, line of the cap, line of the volume, table, label of the volume.
    assert page.count("&lt;b&gt;x&lt;/b&gt;&#34;&#39;&amp;&lt;/script&gt;") == 5


def test_asker_finds_a_connection_by_its_token(tmp_path: Path) -> None:
    known = {"10.77.2.2:5": {"multipath": True, "subflows": [LTE], "budgets": [], "token": "0000abcd"}}

    async def ask(token: int | None) -> tuple[Throttler, dict[str, Any]]:
        return await Asker(tmp_path / "s", pause=0).client("10.77.1.2:40000", PROXY, token)

    with answering(tmp_path / "s", of_clients(known)):
        assert asyncio.run(ask(0xABCD))[1]["subflows"] == [LTE]
        assert asyncio.run(ask(None))[1]["subflows"] == []


def test_number_of_concurrent_page_questions_is_bounded(tmp_path: Path) -> None:
    async def crowd() -> list[Throttler]:
        asker = Asker(tmp_path / "s", pause=0.01)
        answers = await asyncio.gather(*(asker.client(f"10.0.0.{n}:1", PROXY, None) for n in range(50)))
        return [status for status, _ in answers]

    with answering(tmp_path / "s", of_clients({})) as questions:
        answers = asyncio.run(crowd())
    assert len(questions) == answers.count(Throttler.ANSWERED) == MAX_PAGES
    assert answers.count(Throttler.BUSY) == 50 - MAX_PAGES


def test_client_with_many_connections_has_one_place(tmp_path: Path) -> None:
    """Defect: a client with six connections took all places, and all others got BUSY."""

    async def both() -> tuple[list[Throttler], list[Throttler]]:
        asker = Asker(tmp_path / "s", pause=0.01)
        many = [asker.client(f"10.0.0.9:{n}", PROXY, None) for n in range(1, 30)]
        others = [asker.client(f"10.0.0.{n}:1", PROXY, None) for n in range(1, MAX_PAGES)]
        statuses = [status for status, _ in await asyncio.gather(*many, *others)]
        return statuses[: len(many)], statuses[len(many) :]

    with answering(tmp_path / "s", of_clients({})):
        many, others = asyncio.run(both())
    assert set(others) == {Throttler.ANSWERED}
    assert many.count(Throttler.ANSWERED) == 1


@pytest.mark.parametrize("address", ["[2001:db8:0:1::{:x}]", "[::ffff:10.0.0.9]"])
def test_client_with_many_ipv6_addresses_has_one_place(tmp_path: Path, address: str) -> None:
    """Defect: six privacy addresses of one /64 took all places."""

    async def both() -> list[Throttler]:
        asker = Asker(tmp_path / "s", pause=0.01)
        many = [asker.client(f"{address.format(n)}:{n}", PROXY, None) for n in range(1, 30)]
        others = [asker.client(f"[2001:db8:0:{n:x}::1]:1", PROXY, None) for n in range(2, MAX_PAGES + 1)]
        return [status for status, _ in await asyncio.gather(*many, *others)]

    with answering(tmp_path / "s", of_clients({})):
        statuses = asyncio.run(both())
    assert set(statuses[29:]) == {Throttler.ANSWERED}
    assert statuses[:29].count(Throttler.ANSWERED) == 1


def test_clients_behind_one_nat64_have_a_place_each(tmp_path: Path) -> None:
    """Defect: all clients that a translator maps into 64:ff9b::/96 counted as one client, with one place."""

    async def phones() -> list[Throttler]:
        asker = Asker(tmp_path / "s", pause=0.01)
        questions = (asker.client(f"[64:ff9b::192.0.2.{n}]:1", PROXY, None) for n in range(1, MAX_PAGES + 1))
        return [status for status, _ in await asyncio.gather(*questions)]

    with answering(tmp_path / "s", of_clients({})):
        assert set(asyncio.run(phones())) == {Throttler.ANSWERED}


def test_page_questions_do_not_wait_for_captive_portal_questions(tmp_path: Path) -> None:
    """Defect: check pages and captive-portal questions waited in one queue: 40 s instead of three."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def all_at_once() -> None:
        asker = Asker(tmp_path / "s", pause=60.0)
        await asyncio.gather(asker.client("10.77.1.2:40000", PROXY, 0xABCD), asker.budgets_of("10.77.3.2"))

    known = {"10.77.2.2:5": {"multipath": True, "subflows": [LTE], "budgets": [], "token": "0000abcd"}}
    with answering(tmp_path / "s", of_clients(known)) as questions, pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "sleep", sleep)
        asyncio.run(all_at_once())
    assert len(questions) == 2
    assert max(pauses) <= 0, "each was the first of its queue"


def test_page_questions_leave_places_for_captive_portal_questions(tmp_path: Path) -> None:
    async def both() -> list[Throttler]:
        asker = Asker(tmp_path / "s", pause=0.001)
        pages = [asker.client(f"10.0.0.{n}:1", PROXY, None) for n in range(50)]
        answers = await asyncio.gather(*pages, *(asker.budgets_of(f"10.0.0.{n}") for n in range(MAX_SYSTEMS)))
        return [status for status, _ in answers[len(pages) :]]

    with answering(tmp_path / "s", of_clients({})):
        assert asyncio.run(both()) == [Throttler.ANSWERED] * MAX_SYSTEMS


def test_repeated_question_is_asked_once(tmp_path: Path) -> None:
    async def twice() -> list[Throttler]:
        asker = Asker(tmp_path / "s", pause=0)
        together = await asyncio.gather(*(asker.client("10.0.0.1:1", PROXY, None) for _ in range(2)))
        return [status for status, _ in (*together, await asker.client("10.0.0.1:1", PROXY, None))]

    with answering(tmp_path / "s", of_clients({})) as questions:
        assert asyncio.run(twice()) == [Throttler.ANSWERED] * 3
    assert len(questions) == 1


def test_cancelled_question_does_not_cancel_an_equal_one(tmp_path: Path) -> None:
    async def one_goes() -> Throttler:
        asker = Asker(tmp_path / "s", pause=0)
        first = asyncio.ensure_future(asker.client("10.0.0.1:1", PROXY, None))
        second = asyncio.ensure_future(asker.client("10.0.0.1:1", PROXY, None))
        await asyncio.sleep(0)
        first.cancel()
        return (await second)[0]

    with answering(tmp_path / "s", of_clients({})):
        assert asyncio.run(one_goes()) is Throttler.ANSWERED


def test_volume_meter_has_levels(throttler: Path) -> None:
    """Defect: the bar was green until nothing was left."""
    with served(throttler) as client:
        page = client.get("/", headers={"MPTCP-Client": MINE}).text
        (found,) = client.get("/check.json", headers={"MPTCP-Client": MINE}).json()["budgets"]
    levels = 'low="500000000" high="1250000000" optimum="5000000000" value="1200000000"'
    assert f'<meter min="0" max="5000000000" {levels}>' in page
    assert (found["low"], found["getting_low"], found["volume"]) == (5 * 10**8, 125 * 10**7, 5 * 10**9)


def test_only_the_headline_is_a_live_region(throttler: Path) -> None:
    """Defect: screen readers read all lines, so during a download the remaining volume every three seconds."""
    with served(throttler) as client:
        page = client.get("/", headers={"MPTCP-Client": MINE}).text
    assert re.findall(r"<(\w+)[^>]*aria-live", page) == ["h1"]
