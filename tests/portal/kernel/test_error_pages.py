# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the error pages of the real Squid: for each kind of error it shows this project's page."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from persistent_connection import Connection

from mptcp_lab.testbed import RELAY, Testbed
from mptcp_lab.testbed.services import PROXY_PORT, RELAY_CONFIG, start_proxy, start_relay

pytestmark = pytest.mark.kernel
ORIGIN = "10.77.9.2"
DEAD = "10.77.9.66"
"""An address that never answers."""
CLOSING_SERVER = "import socket; s = socket.create_server(('', 2001))\nwhile True: s.accept()[0].close()"


def error_page(client: Connection, url: str) -> tuple[int, str]:
    """Return the status of the answer, and the kind of this project's page."""
    status, _, body = client.get(url)
    page = body.decode()
    # Squid has replaced all codes of the template.
    assert not re.search(r"%[A-Za-z]\b|\[", page), page
    found = re.search(r'data-proxy-page="([a-z-]+)"', page)
    return status, found[1] if found else page


def test_squid_shows_the_error_page_of_each_kind(make_testbed: Callable[..., Testbed], require: Any) -> None:
    require("squid", "gcc")
    testbed = make_testbed()
    proxy = start_proxy(testbed["proxy"])
    testbed["origin"].popen(["python3", "-c", CLOSING_SERVER])
    host = testbed["proxy"].service_address()
    cases = {
        f"http://{host}:{PROXY_PORT}/": (403, "refused"),
        f"http://{ORIGIN}:22/": (403, "refused"),
        "http://no-such-name.invalid/": (503, "no-address"),
        f"http://{ORIGIN}:2999/": (503, "no-answer"),
        f"http://{DEAD}/": (503, "no-answer"),
        f"http://{ORIGIN}:2001/": (502, "broken-answer"),
        "http://check.mptcp.internal/": (503, "no-portal"),
        "http://check.mptcp.internal:8080/": (403, "refused"),
    }
    results = {}
    for url in cases:
        with Connection(testbed["client"], host) as client:
            results[url] = error_page(client, url)
    assert results == cases
    log = (proxy.logs / "cache.log").read_text()
    assert "error-pages" not in log, log


def test_relay_shows_an_error_page_if_its_proxy_is_silent(make_testbed: Callable[..., Testbed], require: Any) -> None:
    require("squid", "gcc")
    testbed = make_testbed(RELAY)
    relay = testbed["relay"]
    parent = f"cache_peer {testbed['proxy'].service_address()} parent {PROXY_PORT} 0 no-query no-digest"
    text = re.sub(r"^#cache_peer .*$", parent, RELAY_CONFIG.read_text(), flags=re.MULTILINE)
    start_relay(relay, relay.write("relay.conf", text))
    with Connection(testbed["client"], relay.service_address(), socket.IPPROTO_TCP) as client:
        status, kind = error_page(client, f"http://{ORIGIN}/")
    assert status in (502, 503)
    assert kind == "no-proxy"
