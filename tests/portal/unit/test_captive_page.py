"""The captive portal API: RFC 8908's answer, with what is left of the client's own volume."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from answering_socket import answering
from portal_throttler import MONTH, of_clients
from starlette.testclient import TestClient

from mptcp_portal.asking import Asker
from mptcp_portal.captive_page import captive_app, client_address
from mptcp_portal.settings import load_settings

OWN = [MONTH, MONTH | {"name": "day", "used": 93, "volume": 50, "left": 0, "step": 50, "next_step": 100}]
TEXT = "captive_portal: {listen: 10.0.0.1:3182, behind: [127.0.0.1/32], user_portal_url: https://proxy.example.net/}"


@pytest.fixture
def throttler(tmp_path: Path) -> Iterator[Path]:
    with answering(tmp_path / "s", of_clients({}, {"10.0.0.7": OWN})):
        yield tmp_path / "s"


def ask(path: Path, peer: str, text: str = TEXT, **headers: str) -> Any:
    captive = load_settings(text, "portal.yaml").captive
    assert captive is not None
    return TestClient(captive_app(captive, Asker(path, pause=0)), client=(peer, 1)).get(
        "/captive-portal", headers=headers
    )


def test_who_has_a_volume_is_told_what_is_left(throttler: Path) -> None:
    answer = ask(throttler, "127.0.0.1", **{"X-Forwarded-For": "10.9.9.9, 10.0.0.7"})
    assert answer.headers["content-type"] == "application/captive+json"
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.json() == {"captive": False, "user-portal-url": "https://proxy.example.net/", "bytes-remaining": 7}


@pytest.mark.parametrize("client", ["10.0.0.8", "10.0.0.9"])
def test_who_has_none_is_told_nothing_of_it(throttler: Path, client: str) -> None:
    answer = ask(throttler, "127.0.0.1", **{"X-Forwarded-For": client})
    assert answer.json() == {"captive": False, "user-portal-url": "https://proxy.example.net/"}


def test_without_a_throttler_there_is_an_answer(tmp_path: Path) -> None:
    assert ask(tmp_path / "none", "127.0.0.1", **{"X-Forwarded-For": "10.0.0.7"}).json()["captive"] is False


def test_by_its_own_certificate_the_address_is_the_connections(throttler: Path) -> None:
    text = "captive_portal: {listen: 10.0.0.1:3182, certificate: /c, key: /k}"
    assert ask(throttler, "10.0.0.7", text).json() == {"captive": False, "bytes-remaining": 7}
    # Who claims to be another is not believed.
    assert ask(throttler, "10.0.0.9", text, **{"X-Forwarded-For": "10.0.0.7"}).json() == {"captive": False}


def test_who_stands_in_front_must_be_the_one(throttler: Path) -> None:
    assert ask(throttler, "10.0.0.9", **{"X-Forwarded-For": "10.0.0.7"}).status_code == 403
    assert ask(throttler, "127.0.0.1").status_code == 403


def test_addresses_of_clients() -> None:
    front = (ip_network("127.0.0.1/32"),)
    assert client_address("::ffff:10.0.0.7", [], ()) == ip_address("10.0.0.7")
    assert client_address("127.0.0.1", ["10.1.1.1", "10.2.2.2"], front) == ip_address("10.2.2.2")
    for peer, forwarded in (("127.0.0.1", ["x"]), ("127.0.0.1", []), ("unknown", ["10.0.0.7"])):
        assert client_address(peer, forwarded, front) is None
