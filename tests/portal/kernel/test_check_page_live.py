# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check page through real Squid: it is correct, and shows each client only its own connection."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from persistent_connection import CHECK, Connection
from portal_site import CAPTIVE_PORT, CHECK_PORT, CONNECTIONS, LTE_CAPPED, PATHS, VOLUME, PortalSite

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Origin, start_origin, wait_until
from mptcp_lab.testbed.topologies import TWO_PATHS, with_second_client

pytestmark = pytest.mark.kernel
FIRST, SECOND = "10.77.1.2", "10.77.2.2"


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> PortalSite:
    require("htb", "bpf-pacing")
    return PortalSite.create(make_module_testbed(with_second_client(TWO_PATHS, "neighbour")))


@pytest.fixture(scope="module")
def origin(site: PortalSite) -> Origin:
    return start_origin(site.testbed["origin"], {"page": 1000, "big": 3_000_000})


@pytest.fixture(scope="module")
def portal(site: PortalSite) -> PortalSite:
    site.start_portal()
    site.wait_for_all_workers()
    return site


def connection(
    site: PortalSite, family: int = 4, node: str = "client", protocol: int = socket.IPPROTO_MPTCP
) -> Connection:
    return Connection(site.testbed[node], site.node.service_address(family), protocol)


def test_squid_serves_an_error_page_while_the_portal_is_down(site: PortalSite, origin: Origin) -> None:
    """This is the first test of the module, so the portal does not run yet. It may start at any time."""
    with connection(site) as client:
        for _ in range(12):  # after ten failures, Squid considers a peer dead
            status, headers, body = client.get(CHECK)
            assert status == 503
            assert "The check page does not answer" in body.decode()
            assert "html" in headers["content-type"]
        status, _, body = client.get(origin.url("page"))
        assert (status, len(body)) == (200, 1000)
    site.start_portal()
    # Defect: the first request to each of Squid's workers got 503, because the worker probed the portal only then.
    for _ in range(CONNECTIONS):
        with connection(site) as client:
            assert client.get(CHECK)[0] == 200
    assert site.portal is not None
    site.portal.stop()


@pytest.mark.parametrize("family", [4, 6])
def test_page_without_a_throttler_uses_the_kernel(portal: PortalSite, family: int) -> None:
    with connection(portal, family) as client:
        found = client.until(lambda answer: "2 subflows" in answer["headline"], "the page shows the second path")
        assert found["transport"] == "multipath"
        assert found["throttler"] == "absent"
    with connection(portal, family, protocol=socket.IPPROTO_TCP) as client:
        assert client.report()["transport"] == "tcp"


def test_page_is_not_cached(portal: PortalSite) -> None:
    with connection(portal) as client:
        for path in ("", "check.json", "check.js", "portal.css"):
            status, headers, _ = client.get(CHECK + path)
            assert status == (503 if path == "check.json" else 200)  # the throttler does not run
            assert headers["cache-control"] == "no-store"
            assert headers["x-cache"].startswith("MISS")
            assert "default-src 'none'" in headers["content-security-policy"]
        assert client.get(CHECK, method="HEAD")[0] == 200


@pytest.mark.nightly(except_for=("[6]",))
@pytest.mark.parametrize("family", [4, 6])
def test_page_shows_a_removed_and_an_added_path(portal: PortalSite, family: int) -> None:
    client, address = portal.client, {4: SECOND, 6: "fd77:2::2"}[family]
    endpoints = portal.testbed.topology.node("client").endpoints
    number = next(str(each.id) for each in endpoints if each.address == address)
    with portal.run_throttler():
        client.run(["ip", "mptcp", "endpoint", "delete", "id", number])
        try:
            with connection(portal, family) as page_client:
                page_client.get(CHECK)
                found = page_client.until(lambda answer: len(answer["subflows"]) == 1, "the page shows one path")
                # "so far" is shown only for a young connection; on a busy machine this one may be old by now.
                assert found["headline"].replace(" so far", "") == "Multipath TCP with 1 subflow: Wi-Fi"
                client.run(["ip", "mptcp", "endpoint", "add", address, "dev", "wlan0", "id", number, "subflow"])
                found = page_client.until(lambda answer: len(answer["subflows"]) == 2, "the page shows both paths")
                assert found["headline"].replace(" so far", "") == "Multipath TCP with 2 subflows: Wi-Fi and LTE"
                # While the throttler does not answer, the page has only the kernel's data, which lists no subflows.
                found = page_client.until(
                    lambda answer: len(answer["subflows"]) == 2 and " so far" not in answer["headline"],
                    "the page no longer says 'so far'",
                )
                assert [each["address"] for each in found["subflows"]][1] == address
                assert found["lines"] == ["No path is limited now."]
                client.run(["ip", "mptcp", "endpoint", "delete", "id", number])
                page_client.until(lambda answer: len(answer["subflows"]) == 1, "the page shows one remaining path")
        finally:
            command = ["ip", "mptcp", "endpoint", "add", address, "dev", "wlan0", "id", number, "subflow"]
            client.run(command, check=False)


def test_page_shows_a_connection_without_its_first_path(portal: PortalSite) -> None:
    with portal.run_throttler(), connection(portal) as client:
        client.until(lambda answer: len(answer["subflows"]) == 2, "the page shows both paths")
        with portal.client.link_down("eth0"):
            # The kernel closes a dead subflow when it sends data on it; until then, the other subflow carries answers.
            portal.node.run(["ss", "-K", "dst", FIRST, "sport", "=", ":3128"], check=False)
            found = client.until(lambda answer: len(answer["subflows"]) == 1, "the page shows only the other path")
            assert found["subflows"][0]["path"] == "LTE"
            assert found["transport"] == "multipath"


def test_page_shows_a_cap_until_it_is_lifted(portal: PortalSite) -> None:
    with portal.run_throttler() as throttler, connection(portal) as client:
        found = client.until(lambda answer: len(answer["subflows"]) == 2, "the page shows both paths")
        assert found["lines"] == ["No path is limited now."]
        portal.reload(throttler, LTE_CAPPED)
        found = client.until(
            lambda answer: any(each["capped"] for each in answer["subflows"]), "the page shows the cap"
        )
        assert found["lines"] == ["LTE is limited to 5 Mbit/s by rule evening."]
        assert [each["limit"] for each in found["subflows"]] == ["none", "5 Mbit/s"]
        portal.reload(throttler, PATHS + "rules: []\n")
        client.until(lambda answer: not any(each["capped"] for each in answer["subflows"]), "the cap is lifted")


@pytest.mark.nightly(except_for=("[4]",))
@pytest.mark.parametrize("family", [4, 6])
def test_page_shows_plain_tcp_without_caps_of_other_connections(portal: PortalSite, family: int) -> None:
    """The same client also has a Multipath TCP connection with a cap."""
    with portal.run_throttler(LTE_CAPPED), connection(portal, family) as other:
        other.until(lambda answer: any(each["capped"] for each in answer["subflows"]), "the page shows the cap")
        with connection(portal, family, protocol=socket.IPPROTO_TCP) as client:
            for _ in range(2):
                answer = client.until(lambda answer: answer["throttler"] == "answered", "the throttler has answered")
                assert answer["transport"] == "tcp"
                assert answer["subflows"] == []
                assert "held" not in " ".join(answer["lines"])


def test_page_shows_a_volume_until_it_is_used_up(portal: PortalSite, origin: Origin) -> None:
    with portal.run_throttler(PATHS + VOLUME % "5 MB"), connection(portal) as client:
        found = client.until(lambda answer: bool(answer["budgets"]), "the page shows the volume")
        assert found["budgets"][0]["volume"] == 5_000_000
        first = found["budgets"][0]["left"]
        assert 4_000_000 < first <= 5_000_000

        def is_used_up(answer: dict[str, Any]) -> bool:
            """Return whether the volume of one of the client's addresses is used up; the paths' shares vary."""
            if min((each["left"] for each in answer["budgets"]), default=1) <= 0:
                return True
            assert len(client.get(origin.url("big"))[2]) == 3_000_000
            return False

        found = client.until(is_used_up, "the page shows that the volume is used up")
        assert any("all of 5 MB used up" in line for line in found["lines"])
        found = client.until(lambda answer: any(each["capped"] for each in answer["subflows"]), "the rule takes effect")
        assert any("is limited to 8 Mbit/s by rule month" in line for line in found["lines"])


def test_forged_headers_show_no_other_clients_data(portal: PortalSite) -> None:
    with (
        portal.run_throttler(LTE_CAPPED),
        connection(portal) as victim,
        connection(portal, node="neighbour") as attacker,
    ):
        victims_answer = victim.until(lambda answer: len(answer["subflows"]) == 2, "the page shows both paths")
        address, port = victim.end
        end = portal.ends(victim)
        claims = [
            f"MPTCP-Client: {end}",
            f"mptcp-client: {end}",
            f"MPTCP_Client: {end}",
            f"X-Forwarded-For: {address}",
            f"Forwarded: for={address}:{port}",
            f"MPTCP-Client: {end}\r\nMPTCP-Client: {end}",
            f"MPTCP-Client: {end}\r\n\t",
            # Squid removes the headers that Connection names before it adds its own.
            f"Connection: MPTCP-Client, keep-alive\r\nMPTCP-Client: {end}",
            f"Connection: Upgrade\r\nUpgrade: websocket\r\nMPTCP-Client: {end}",
        ]
        own_addresses = {attacker.end[0], "10.77.4.2"}
        for claim in claims:
            found = attacker.report(claim)
            assert {each["address"] for each in found["subflows"]} <= own_addresses, claim
            assert found["transport"] == "multipath"
        assert {each["address"] for each in attacker.report(*claims)["subflows"]} <= own_addresses
        # Squid rejects a header with a blank before its colon.
        status, _, body = attacker.get(CHECK + "check.json", f"MPTCP-Client : {end}")
        assert (status, address.encode() in body) == (400, False)
        assert {each["address"] for each in victims_answer["subflows"]} == {FIRST, SECOND}


MALFORMED = {
    "HTTP/1.0": "GET http://check.mptcp.internal/check.json HTTP/1.0\r\nConnection: keep-alive\r\n{claim}\r\n\r\n",
    "another Host": "GET http://check.mptcp.internal/check.json HTTP/1.1\r\nHost: x.example\r\n{claim}\r\n\r\n",
    "capitals": "GET http://CHECK.Mptcp.Internal/check.json HTTP/1.1\r\nHost: x\r\n{claim}\r\n\r\n",
    "a user": "GET http://a:b@check.mptcp.internal/check.json HTTP/1.1\r\nHost: x\r\n{claim}\r\n\r\n",
    "HEAD": "HEAD http://check.mptcp.internal/check.json HTTP/1.1\r\nHost: x\r\n{claim}\r\n\r\n",
    "a tunnel to port 80": "CONNECT check.mptcp.internal:80 HTTP/1.1\r\nHost: x\r\n\r\n{hidden}",
    "a tunnel to port 443": "CONNECT check.mptcp.internal:443 HTTP/1.1\r\nHost: x\r\n\r\n{hidden}",
    "a tunnel to the portal": "CONNECT 127.0.0.1:3180 HTTP/1.1\r\nHost: x\r\n\r\n{hidden}",
    "only the Host header": "GET /check.json HTTP/1.1\r\nHost: check.mptcp.internal\r\n{claim}\r\n\r\n",
    "line feeds": "GET http://check.mptcp.internal/check.json HTTP/1.1\nHost: x\n{claim}\n\n",
    "a lone carriage return": "{get}X: y\r{claim}\r\n\r\n",
    "a folded line": "{get}X: y\r\n {claim}\r\n\r\n",
    "a NUL": "{get}MPTCP-Client\0: {end}\r\n\r\n",
    "a tab": "{get}MPTCP-Client\t: {end}\r\n\r\n",
    "no name": "{get}: x\r\n{claim}\r\n\r\n",
    "a body": "{get}Content-Length: {size}\r\n\r\n{hidden}",
    "a body of chunks": "{get}Transfer-Encoding: chunked\r\n\r\n{hexadecimal}\r\n{hidden}\r\n0\r\n\r\n",
    "a trailer": "{get}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n{claim}\r\n\r\n",
    "a body with two lengths": "{get}Content-Length: 0\r\nContent-Length: {size}\r\n\r\n{hidden}",
    "length and chunks": "{get}Content-Length: {size}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
    "no coding": "{get}Transfer-Encoding: identity\r\nContent-Length: {size}\r\n\r\n{hidden}",
    "an invalid coding": "{get}Transfer-Encoding: xchunked\r\nContent-Length: {size}\r\n\r\n{hidden}",
    "two codings": "{get}Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n{hidden}",
    "a body that is expected": "{get}Expect: 100-continue\r\nContent-Length: {size}\r\n\r\n{hidden}",
    "a POST": "POST http://check.mptcp.internal/ HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n{hidden}",
    "a large header": "{get}X: {large}\r\n{claim}\r\n\r\n",
}


def test_malformed_requests_show_no_other_clients_data(portal: PortalSite) -> None:
    """A client never gets another client's data, whatever it sends or hides in a request."""
    with portal.run_throttler(LTE_CAPPED), connection(portal) as victim:
        victim.until(lambda answer: len(answer["subflows"]) == 2, "the page shows both paths")
        end = portal.ends(victim)
        claim = f"MPTCP-Client: {end}"
        hidden = f"GET /check.json HTTP/1.1\r\nHost: check.mptcp.internal\r\n{claim}\r\n\r\n"
        values = {
            "get": "GET http://check.mptcp.internal/check.json HTTP/1.1\r\nHost: x\r\n",
            "end": end,
            "claim": claim,
            "hidden": hidden,
            "size": len(hidden),
            "hexadecimal": f"{len(hidden):x}",
            "large": "x" * 20_000,
        }
        for name, text in MALFORMED.items():
            with connection(portal, node="neighbour") as attacker:
                answer = attacker.send_raw(text.format(**values).encode())
            assert answer.startswith(b"HTTP/1.1 "), (name, answer)
            # An error page may quote the request, which contains the victim's first address.
            for secret in (SECOND, f'"address":"{FIRST}"'):
                assert secret.encode() not in answer, (name, answer)
            # Squid uses the same connections to the portal for all clients, so no part of the request may stay in them.
            found = victim.report()
            assert {each["address"] for each in found["subflows"]} <= {FIRST, SECOND}, name
            assert found["transport"] == "multipath", name


def test_portal_answers_only_squid(portal: PortalSite) -> None:
    with portal.run_throttler(), connection(portal) as client:
        client.until(lambda answer: len(answer["subflows"]) == 2, "the page shows both paths")
        address, _ = client.end
        url = f"http://127.0.0.1:{CHECK_PORT}/check.json"
        curl = ["curl", "-s", "-w", "%{http_code}", "-H", f"MPTCP-Client: {portal.ends(client)}", url]
        for user in ("root", "nobody"):
            answer = portal.node.run(["setpriv", f"--reuid={user}", "--clear-groups", *curl]).stdout
            assert answer.endswith("403"), user
            assert address not in answer
        # Squid's own user gets an answer, so the check depends on the owner of the socket.
        as_squid = ["setpriv", "--reuid=proxy", "--clear-groups", *curl]
        wait_until(lambda: address in portal.node.run(as_squid).stdout, "Squid's user is answered")
    host = portal.node.service_address()
    for target in (
        f"http://127.0.0.1:{CHECK_PORT}/",
        f"http://{host}:{CHECK_PORT}/",
        f"http://localhost:{CHECK_PORT}/",
    ):
        with connection(portal) as client:
            assert client.get(target)[0] == 403
    with connection(portal) as client:
        assert client.get(CHECK, "Content-Length: 0", method="POST")[0] == 403
    with connection(portal) as client:
        assert client.get("http://check.mptcp.internal:3128/")[0] == 403


def test_captive_portal_api_returns_the_remaining_bytes(portal: PortalSite) -> None:
    host = portal.node.service_address()
    curl = ["curl", "-s", "-H", f"X-Forwarded-For: {FIRST}", f"http://{host}:{CAPTIVE_PORT}/captive-portal"]

    def remaining() -> int:
        answer = portal.node.run(curl).stdout
        assert '"captive":false' in answer
        # The field is missing if the throttler did not answer in time.
        return int(answer.partition('"bytes-remaining":')[2].rstrip("}") or 0)

    def wait_for_remaining() -> int:
        found: list[int] = []

        def is_known() -> bool:
            found[:] = [remaining()]
            return found[0] > 0

        wait_until(is_known, "the remaining volume is known")
        return found[0]

    with portal.run_throttler(PATHS + VOLUME % "5 GB"):
        # An operating system sends its request before it opens a connection.
        before = wait_for_remaining()
        with connection(portal) as client:
            found = client.until(lambda answer: bool(answer["budgets"]), "the page shows the volume")
            (budget,) = [each for each in found["budgets"] if each["client"] == FIRST]
            assert budget["left"] <= before
            # The portal caches an answer for one second.
            wait_until(lambda: 0 < remaining() <= budget["left"], "the remaining volume has shrunk")
    # Only the web server in front of the portal gets an answer.
    assert "captive" not in portal.client.run(curl).stdout
