# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a relay whose uplinks ``mptcp-gateway`` watches: the first uplink fails silently, and returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from proxying import fetch
from relaying import FILES, UPLINKS, Chain, start_chain

from mptcp_lab.testbed import RELAY, Testbed
from mptcp_lab.testbed.home import silent_link
from mptcp_lab.testbed.services import program, wait_until

pytestmark = pytest.mark.kernel


@contextmanager
def gateway(chain: Chain) -> Iterator[Callable[[], dict[str, str]]]:
    """Run ``mptcp-gateway``. Yield a function that returns its IPv4 verdict on each uplink."""
    node, directory = chain.node, chain.node.directory / "gateway"
    parent = chain.testbed["proxy"].service_address()
    devices = ", ".join(f"{device}: {device}" for device in UPLINKS)
    settings = node.write("gateway.yaml", f"uplinks: {{{devices}}}\nparents: ['{parent}:3128']\n")
    command = [program("mptcp-gateway"), "run", "--config", str(settings), "--directory", str(directory)]

    def verdicts() -> dict[str, str]:
        status = directory / "status.json"
        ways = json.loads(status.read_text())["ways"] if status.exists() else []
        return {each["uplink"]: each["verdict"] for each in ways if each["version"] == 4}

    with node.running(command) as process:
        wait_until(lambda: verdicts() == dict.fromkeys(UPLINKS, "good"), "both uplinks are good", process=process)
        yield verdicts
        process.stop()


def test_requests_succeed_while_the_first_uplink_is_silent(make_testbed: Callable[..., Testbed]) -> None:
    """Defect: with one parent, each request failed until the end of the outage."""
    chain = start_chain(make_testbed(RELAY))

    def succeeds() -> bool:
        url, proxy = chain.origin.url("small.bin"), chain.relay.url()
        return fetch(chain.client, url, proxy).sha256 == chain.origin.digests["small.bin"]

    with gateway(chain) as verdicts:
        with silent_link(chain.testbed["core"], "eth0"):
            wait_until(succeeds, "requests use the other uplink")
            wait_until(
                lambda: verdicts() == {"eth0": "no answer", "wlan0": "good"}, "the gateway detects the silent uplink"
            )
        wait_until(lambda: verdicts() == dict.fromkeys(UPLINKS, "good"), "the uplink is good again")
        assert succeeds()
        with chain.count_uplink_bytes() as sizes:
            assert succeeds()
        assert sizes["eth0"] > FILES["small.bin"] / 2, "connections do not begin on the first uplink"
