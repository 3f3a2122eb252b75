# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests how long a client waits for Squid's answer if the name server is silent."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest
from proxying import fetch, write_configuration

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import start_proxy

pytestmark = pytest.mark.kernel
SERVERS = ("127.0.0.8", "127.0.0.9")
MAX_SECONDS = 14.0
"""Maximum seconds until the answer. dns_timeout is 8, but Squid checks it only when it is about to repeat its query."""


@pytest.mark.nightly(except_for=("fair-1",))
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("turns", ["fair", "kernel"])
def test_answer_follows_soon_after_the_dns_timeout(
    testbed: Testbed, require: Callable[..., None], turns: str, servers: int
) -> None:
    """Defect: the client waited 15 to 20 seconds, with a dns_timeout of 10."""
    require("squid", "curl", "gcc")
    host, silent = testbed["proxy"], []
    with host.entered():
        for address in SERVERS[:servers]:
            silent.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            silent[-1].bind((address, 53))
    config = write_configuration(host, f"dns_nameservers {' '.join(SERVERS[:servers])}")
    proxy = start_proxy(host, config, arguments=("--turns", turns))
    start_time = time.monotonic()
    answer = fetch(testbed["client"], "http://nobody.example/", proxy.url())
    seconds = time.monotonic() - start_time
    for each in silent:
        each.close()
    print(f"{seconds:.1f} s")
    assert answer.status == 503
    assert 8 <= seconds < MAX_SECONDS
