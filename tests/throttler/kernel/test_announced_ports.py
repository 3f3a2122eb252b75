# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a client that joins at a port announced by the proxy (ADD_ADDR with a port, RFC 8684, 3.4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from throttler_site import PORT, Site, connected, listening, read_status, running, until

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("unchanged_kernel")]

ANNOUNCED_PORT = 4000
ENDPOINT = ["ip", "mptcp", "endpoint"]


@pytest.fixture(autouse=True)
def announced_port(site: Site, unchanged_kernel: None) -> Iterator[None]:
    site.proxy.run([*ENDPOINT, "add", site.proxy.address("wan0"), "port", str(ANNOUNCED_PORT), "id", "9", "signal"])
    yield
    site.proxy.run([*ENDPOINT, "delete", "id", "9"])


def wait_for_subflows(status: Path) -> dict[int, list[dict[str, Any]]]:
    """Wait until the only connection has all three subflows. Return them by the proxy's port."""
    found: dict[int, list[dict[str, Any]]] = {}

    def complete() -> bool:
        found.clear()
        for connection in read_status(status)["connections"]:
            for each in connection["subflows"]:
                found.setdefault(int(each["local"].rpartition(":")[2]), []).append(each)
        return {port: len(each) for port, each in found.items()} == {PORT: 2, ANNOUNCED_PORT: 1}

    until(complete)
    return found


@pytest.mark.nightly(except_for=("nftables",))
def test_join_at_announced_port_is_capped(site: Site) -> None:
    """Defect: a join at an announced port that is not in listen_ports had no cap."""
    with running(site) as throttler, listening(site) as listener, connected(site, listener):

        def capped_clients() -> dict[str, str | None]:
            found = wait_for_subflows(throttler.socket)
            return {entry_key(each): each["classid"] for each in found[PORT] + found[ANNOUNCED_PORT] if each["rate"]}

        # The client joins at the announced port from its first path, which has a cap.
        until(lambda: len(site.entries()) == 2 and site.entries() == capped_clients())
        found = wait_for_subflows(throttler.socket)
        assert {each["path"]: each["rate"] for each in found[ANNOUNCED_PORT]} == {"ethernet": 5_000_000}


def entry_key(subflow: dict[str, Any]) -> str:
    """Return the key of *subflow* in the result of `Site.entries`."""
    address, _, port = subflow["remote"].rpartition(":")
    return f"{address} {port}"
