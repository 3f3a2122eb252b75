# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the rules of docs/firewall.md, loaded on the proxy's host."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from proxying import fetch

from mptcp_lab.testbed import TWO_PATHS_TWO_INTERFACES, Testbed
from mptcp_lab.testbed.services import REPOSITORY, start_origin, start_proxy

pytestmark = pytest.mark.kernel
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


@pytest.mark.nightly
def test_rules_accept_both_paths_and_block_other_ports(
    make_testbed: Callable[..., Testbed], require: Callable[..., None]
) -> None:
    require("squid", "apache2", "curl", "mptcpize", "gcc", "nftables")
    testbed = make_testbed(TWO_PATHS_TWO_INTERFACES)
    node, client = testbed["proxy"], testbed["client"]
    origin = start_origin(testbed["origin"], {"file.bin": 20_000_000})
    (rules,) = re.findall(r"^```nft\n(.*?)^```$", (REPOSITORY / "docs/firewall.md").read_text(), re.M | re.S)
    node.run(["nft", "-f", str(node.write("firewall.nft", rules))])
    proxy = start_proxy(node)
    joins_before, bytes_before = node.mib()["MPTcpExtMPJoinAckRx"], client.counters()
    download = fetch(client, origin.url("file.bin"), proxy.url(), mptcp=True)
    assert (download.status, download.sha256) == (200, origin.digests["file.bin"])
    assert node.mib()["MPTcpExtMPJoinAckRx"] > joins_before
    for device in ("eth0", "wlan0"):
        assert client.counters()[device].received - bytes_before[device].received > 1_000_000
    node.popen(["python3", "-m", "http.server", "8610"])
    answer = client.run(["python3", "-I", "-c", CONNECT, node.service_address(), "8610"], check=False)
    assert "timed out" in answer.stderr
