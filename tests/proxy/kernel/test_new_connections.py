# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the table in conf/nftables that limits the new connections of a client per second."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import (
    REPOSITORY,
    Proxy,
    mptcp_command,
    python_command,
    start_origin,
    start_proxy,
    wait_until,
)

pytestmark = pytest.mark.kernel
TABLE = REPOSITORY / "conf/nftables/limit-new-connections.nft"
PER_SECOND, BURST = 50, 500
"""Values in the table: connections per second, and size of a burst."""
OPEN_COUNT = 1500
OPEN_CONNECTIONS = """
import json, socket, sys, time
address, proxy, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
start_time, accepted, refused = time.monotonic(), 0, 0
for number in range(count):
    try:
        socket.create_connection((proxy, 3128), 30, (address, 0)).close()
        accepted += 1
    except ConnectionRefusedError:
        refused += 1
print(json.dumps([accepted, refused, time.monotonic() - start_time]))
"""
JOIN_PASSES = "tcp option mptcp subtype 1 goto joined"
JOIN_BURST, JOINS_PER_SECOND = 8 * BURST, 8 * PER_SECOND
JOIN_COUNT = 5000
SEND_JOINS = """
import socket, struct, sys, time
source, proxy, count = socket.inet_aton(sys.argv[1]), socket.inet_aton(sys.argv[2]), int(sys.argv[3])
join = struct.pack("!BBBBII", 30, 12, 0x10, 1, 1, 1)
capable = struct.pack("!BBBB", 30, 4, 0x01, 0x01)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
raw.bind((sys.argv[1], 0))
for number in range(count):
    def segment(checksum):
        fixed = struct.pack("!HHIIBBHHH", 20000 + number, 3128, number, 0, 9 << 4, 0x02, 65535, checksum, 0)
        return fixed + join + capable
    summed = source + proxy + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(segment(0))) + segment(0)
    total = sum(struct.unpack(f"!{len(summed) // 2}H", summed))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    raw.sendto(segment(~total & 0xFFFF), (sys.argv[2], 0))
    if number % 50 == 0:
        time.sleep(0.01)
"""
"""Sends SYNs with both MP_JOIN and MP_CAPABLE, to which the kernel replies in plain TCP."""
JOIN_COUNTER = "MPTcpExtMPJoinAckRx"
CAPABLE_COUNTER = "MPTcpExtMPCapableSYNRX"


@pytest.fixture
def proxy(testbed: Testbed, require: Callable[..., None]) -> Proxy:
    require("squid", "apache2", "gcc", "nftables", "curl", "mptcpize")
    start_origin(testbed["origin"], {"file": 100_000, "large": 3_000_000})
    return start_proxy(testbed["proxy"])


def load_table(
    testbed: Testbed, tmp_path: Path, removed: str = "", rate: str = f"{PER_SECOND}/second", replacement: str = ""
) -> None:
    """Load the table; replace the line *removed* with *replacement*, and the rate of new connections with *rate*."""
    text = TABLE.read_text()
    assert removed in text
    text = text.replace(removed, replacement).replace(f" {PER_SECOND}/second", f" {rate}")
    (tmp_path / "limit.nft").write_text(text)
    testbed["proxy"].run(["nft", "-f", str(tmp_path / "limit.nft")])


def open_connections(testbed: Testbed, address: str, proxy: str) -> tuple[int, int, float]:
    """Let a client open connections as fast as it can. Return the numbers of accepted and refused connections, and the
    duration in seconds."""
    accepted, refused, seconds = json.loads(
        testbed["client"].run(python_command(OPEN_CONNECTIONS, address, proxy, str(OPEN_COUNT)), timeout=300).stdout
    )
    return accepted, refused, seconds


def request_status(testbed: Testbed, address: str, url: str, *options: str, file: str = "file") -> str:
    """Return the status of a request from *address*, or 000 if its connection is refused."""
    target = ["http://10.77.9.2/" + file, "-x", url, "--interface", address]
    command = ["curl", "-s", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", *options, *target]
    return str(testbed["client"].run(mptcp_command(command), check=False, timeout=90).stdout)


@pytest.mark.parametrize(
    ("address", "server"), [("10.77.1.2", "10.77.8.2"), ("fd77:1::2", "fd77:8::2")], ids=["IPv4", "IPv6"]
)
def test_new_connections_of_one_client_are_limited(
    testbed: Testbed, proxy: Proxy, tmp_path: Path, address: str, server: str
) -> None:
    load_table(testbed, tmp_path)
    accepted, refused, seconds = open_connections(testbed, address, server)
    assert BURST <= accepted <= BURST + PER_SECOND * seconds + 1
    assert refused == OPEN_COUNT - accepted
    # Each connection takes 0.2 ms. A machine that needs twenty seconds for all of them may stay below the limit.
    assert refused or seconds > (OPEN_COUNT - BURST) / PER_SECOND
    assert request_status(testbed, "10.77.2.2", proxy.url()) == "200", "another client is limited"


CONCURRENT_LIMIT = "ct count over 2000"
HOLD_CONNECTIONS = """
import json, socket, sys
proxy, count, addresses = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
held, refused = [], 0
for number in range(count):
    try:
        held.append(socket.create_connection((proxy, 3128), 30, (addresses[number % len(addresses)], 0)))
    except ConnectionRefusedError:
        refused += 1
print(json.dumps([len(held), refused]), flush=True)
sys.stdin.read()
"""


def hold_connections(testbed: Testbed, *addresses: str) -> tuple[int, int]:
    """Let a client open 60 connections and keep them open. Return how many were accepted and refused."""
    accepted, refused = json.loads(
        testbed["client"].run(python_command(HOLD_CONNECTIONS, "fd77:8::2", "60", *addresses)).stdout
    )
    return accepted, refused


@pytest.mark.nightly(except_for=("4000",))
@pytest.mark.parametrize("replacement", ["ct count over 40", "ct count over 4000"])
def test_open_connections_of_an_ipv6_network_are_limited(
    testbed: Testbed, proxy: Proxy, tmp_path: Path, replacement: str
) -> None:
    """Squid counts each address as a separate client."""
    addresses = [f"fd77:1::{number}" for number in range(100, 106)]
    for address in addresses:
        testbed["client"].run(["ip", "address", "add", f"{address}/64", "dev", "eth0", "nodad"])
    load_table(testbed, tmp_path, CONCURRENT_LIMIT, replacement=replacement)
    expected = (60, 0) if "4000" in replacement else (40, 20)
    assert hold_connections(testbed, *addresses) == expected
    assert hold_connections(testbed, "fd77:2::2") == expected, "another client is limited"
    wait_until(lambda: hold_connections(testbed, *addresses) == expected, "closed connections no longer count")


def test_all_connections_are_accepted_without_the_table(testbed: Testbed, proxy: Proxy) -> None:
    assert open_connections(testbed, "10.77.1.2", "10.77.8.2")[0] == OPEN_COUNT


@pytest.mark.nightly(except_for=("as shipped",))
@pytest.mark.parametrize("removed", ["", JOIN_PASSES], ids=["as shipped", "joins count"])
def test_join_does_not_count_as_a_new_connection(testbed: Testbed, proxy: Proxy, tmp_path: Path, removed: str) -> None:
    # With this rate, an address that has used up its burst can open no further connection during the test.
    load_table(testbed, tmp_path, removed, rate="1/hour")
    before = testbed["proxy"].mib().get(JOIN_COUNTER, 0)
    assert open_connections(testbed, "10.77.2.2", "10.77.8.2")[0] == BURST
    # The download takes ten seconds, because the second subflow joins late on a busy machine.
    assert request_status(testbed, "10.77.1.2", proxy.url(), "--limit-rate", "300K", file="large") == "200"
    joined = testbed["proxy"].mib().get(JOIN_COUNTER, 0) - before
    assert joined == (0 if removed else 1)


def refused_count(testbed: Testbed) -> int:
    """Return the number of SYNs that the table has refused."""
    listed = json.loads(testbed["proxy"].run(["nft", "-j", "list", "ruleset"]).stdout)["nftables"]
    rules = [expression for each in listed for expression in each.get("rule", {}).get("expr", ())]
    return sum(each["counter"]["packets"] for each in rules if "counter" in each)


@pytest.mark.nightly(except_for=("joins pass",))
@pytest.mark.parametrize(
    "replacement", [JOIN_PASSES, "tcp option mptcp subtype 1 return"], ids=["as shipped", "joins pass"]
)
def test_syn_with_mp_join_and_mp_capable_is_limited(
    testbed: Testbed, proxy: Proxy, tmp_path: Path, replacement: str
) -> None:
    """Defect: a SYN with MP_JOIN and MP_CAPABLE opens a plain TCP connection, but the table did not count it."""
    load_table(testbed, tmp_path, JOIN_PASSES, replacement=replacement)
    before, start_time = testbed["proxy"].mib()[CAPABLE_COUNTER], time.monotonic()
    testbed["client"].run(python_command(SEND_JOINS, "10.77.2.2", "10.77.8.2", str(JOIN_COUNT)), timeout=300)
    duration = time.monotonic() - start_time
    if replacement != JOIN_PASSES:
        assert refused_count(testbed) == 0
        assert testbed["proxy"].mib()[CAPABLE_COUNTER] - before == JOIN_COUNT
        return
    assert (
        JOIN_COUNT - JOIN_BURST - JOINS_PER_SECOND * duration - 1 <= refused_count(testbed) <= JOIN_COUNT - JOIN_BURST
    )
    assert refused_count(testbed) + testbed["proxy"].mib()[CAPABLE_COUNTER] - before == JOIN_COUNT
    assert refused_count(testbed) or duration > (JOIN_COUNT - JOIN_BURST) / JOINS_PER_SECOND


def test_table_can_be_loaded_twice_and_removed_as_documented(testbed: Testbed) -> None:
    node = testbed["proxy"]
    before = node.run(["nft", "list", "ruleset"]).stdout
    node.run(["nft", "-f", str(TABLE)])
    once = node.run(["nft", "list", "ruleset"]).stdout
    node.run(["nft", "-f", str(TABLE)])
    assert node.run(["nft", "list", "ruleset"]).stdout == once != before
    (remove,) = (each for each in TABLE.read_text().splitlines() if "nft delete table" in each)
    node.run(remove.strip("# ").partition("  ")[0].split()[1:])
    assert node.run(["nft", "list", "ruleset"]).stdout == before
