# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the captive portal API: the answer of RFC 8908, with the client's own remaining volume."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from answering_socket import answering
from portal_throttler import MONTH, answers_for
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from mptcp_portal.captive_page import captive_app, client_address
from mptcp_portal.settings import load_settings
from mptcp_portal.throttler_client import MAX_ADDRESSES, ThrottlerClient

OWN_BUDGETS = [MONTH, MONTH | {"name": "day", "used": 93, "volume": 50, "left": 0, "step": 50, "next_step": 100}]
TEXT = "captive_portal: {listen: 10.0.0.1:3182, behind: [127.0.0.1/32], user_portal_url: https://proxy.example.net/}"


@pytest.fixture
def throttler(tmp_path: Path) -> Iterator[Path]:
    with answering(tmp_path / "s", answers_for({}, {"10.0.0.7": OWN_BUDGETS})):
        yield tmp_path / "s"


def request_as(path: Path, peer: str, text: str = TEXT, **headers: str) -> Any:
    captive = load_settings(text, "portal.yaml").captive
    assert captive is not None
    return TestClient(captive_app(captive, ThrottlerClient(path, pause=0)), client=(peer, 1)).get(
        "/captive-portal", headers=headers
    )


def test_client_with_a_volume_gets_its_remaining_bytes(throttler: Path) -> None:
    answer = request_as(throttler, "127.0.0.1", **{"X-Forwarded-For": "10.9.9.9, 10.0.0.7"})
    assert answer.headers["content-type"] == "application/captive+json"
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.json() == {"captive": False, "user-portal-url": "https://proxy.example.net/", "bytes-remaining": 7}


@pytest.mark.parametrize("client", ["10.0.0.8", "10.0.0.9"])
def test_client_without_a_volume_gets_no_remaining_bytes(throttler: Path, client: str) -> None:
    answer = request_as(throttler, "127.0.0.1", **{"X-Forwarded-For": client})
    assert answer.json() == {"captive": False, "user-portal-url": "https://proxy.example.net/"}


def test_api_answers_without_a_throttler(tmp_path: Path) -> None:
    assert request_as(tmp_path / "none", "127.0.0.1", **{"X-Forwarded-For": "10.0.0.7"}).json()["captive"] is False


def test_hung_throttler_causes_status_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: systems that joined at that time got an answer without a volume, and systems send only one request."""
    monkeypatch.setattr("mptcp_portal.throttler_client._TIMEOUT", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        answer = request_as(tmp_path / "s", "127.0.0.1", **{"X-Forwarded-For": "10.0.0.7"})
    assert (answer.status_code, answer.json()) == (503, {"error": "the volume is unknown at the moment"})
    assert 10 <= int(answer.headers["retry-after"]) < 20


def test_own_tls_listener_uses_the_address_of_the_connection(throttler: Path) -> None:
    text = "captive_portal: {listen: 10.0.0.1:3182, certificate: /c, key: /k}"
    assert request_as(throttler, "10.0.0.7", text).json() == {"captive": False, "bytes-remaining": 7}
    # The address that a client claims to have is ignored.
    assert request_as(throttler, "10.0.0.9", text, **{"X-Forwarded-For": "10.0.0.7"}).json() == {"captive": False}


def test_only_the_configured_web_server_is_answered(throttler: Path) -> None:
    assert request_as(throttler, "10.0.0.9", **{"X-Forwarded-For": "10.0.0.7"}).status_code == 403
    assert request_as(throttler, "127.0.0.1").status_code == 403


def test_extra_slash_causes_no_redirect(tmp_path: Path) -> None:
    """Defect: a slash after the path caused a redirect over HTTP to the host that the Host header named."""
    captive = load_settings(TEXT, "portal.yaml").captive
    assert captive is not None
    client = TestClient(captive_app(captive, ThrottlerClient(tmp_path / "s", pause=0)), base_url="http://evil.example")
    found = client.get("/captive-portal/", follow_redirects=False)
    assert found.status_code == 404
    assert "location" not in found.headers


async def request_within_loop(app: ASGIApp, client: str) -> tuple[int, dict[str, str], Any]:
    """Send a request to *app* within the running event loop; return status, headers and document."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/captive-portal", "query_string": b"", "headers": [],
        "client": (client, 1), "server": ("10.0.0.1", 3182), "scheme": "https", "http_version": "1.1", "root_path": "",
    }  # fmt: skip
    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, json.loads(b"".join(each.get("body", b"") for each in sent[1:]))


def test_clients_above_the_limit_get_503_with_a_retry_time(tmp_path: Path) -> None:
    """Defect: if twenty phones joined at once, some got an answer without a volume, as if they had no volume."""
    clients = [f"10.0.1.{number}" for number in range(MAX_ADDRESSES + 40)]
    captive = load_settings("captive_portal: {listen: 10.0.0.1:3182, certificate: /c, key: /k}", "portal.yaml").captive
    assert captive is not None

    async def send_concurrently() -> list[tuple[int, dict[str, str], Any]]:
        app = captive_app(captive, ThrottlerClient(tmp_path / "s", pause=0.001))
        return await asyncio.gather(*(request_within_loop(app, each) for each in clients))

    with answering(tmp_path / "s", answers_for({}, dict.fromkeys(clients, OWN_BUDGETS))):
        answers = asyncio.run(send_concurrently())
    retry_times = []
    for status, headers, found in answers:
        if status == 200:
            assert found == {"captive": False, "bytes-remaining": 7}
        else:
            assert status == 503
            retry_times.append(int(headers["retry-after"]))
    assert [status for status, _, _ in answers].count(200) == MAX_ADDRESSES
    # The retry times differ, so that the clients do not all return at the same moment.
    assert 10 <= min(retry_times) < max(retry_times) < 20


def test_client_address_is_from_the_connection_or_the_web_server() -> None:
    web_server = (ip_network("127.0.0.1/32"),)
    assert client_address("::ffff:10.0.0.7", [], ()) == ip_address("10.0.0.7")
    assert client_address("127.0.0.1", ["10.1.1.1", "10.2.2.2"], web_server) == ip_address("10.2.2.2")
    for peer, forwarded in (("127.0.0.1", ["x"]), ("127.0.0.1", []), ("unknown", ["10.0.0.7"])):
        assert client_address(peer, forwarded, web_server) is None
