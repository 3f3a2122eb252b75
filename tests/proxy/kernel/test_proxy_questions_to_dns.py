# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the proxy looks up only the addresses of requested names in the DNS, never the names of addresses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from proxying import fetch, write_configuration

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import python_command, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
A, PTR, AAAA = 1, 12, 28
NAME = "www.origin.example"
# A DNS server that records type and name of each query. All names have the given address; all addresses have the same
# name.
SERVER = """
import json, socket, struct, sys
record, address = open(sys.argv[1], "a", buffering=1), socket.inet_aton(sys.argv[2])
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 53))
while True:
    query, client = server.recvfrom(2048)
    labels, offset = [], 12
    while query[offset]:
        labels.append(query[offset + 1 : offset + 1 + query[offset]].decode("latin-1"))
        offset += query[offset] + 1
    kind = struct.unpack("!H", query[offset + 1 : offset + 3])[0]
    record.write(json.dumps([kind, ".".join(labels)]) + "\\n")
    data = {1: address, 12: b"\\4host\\7example\\0"}.get(kind)
    answer = b"" if data is None else b"\\xc0\\x0c" + struct.pack("!HHIH", kind, 1, 60, len(data)) + data
    header = struct.pack("!HHHHH", 0x8180, 1, data is not None, 0, 0)
    server.sendto(query[:2] + header + query[12 : offset + 5] + answer, client)
"""


def record_queries(testbed: Testbed, *statements: str) -> Sequence[tuple[int, str]]:
    """Return the DNS queries of a proxy with *statements* that gets requests of all kinds."""
    client, node, origin = testbed["client"], testbed["proxy"], testbed["origin"]
    address, record = origin.service_address(), testbed.directory / "queries"
    server = origin.popen(python_command(SERVER, str(record), address), name="dns")
    wait_until(lambda: ":53 " in origin.run(["ss", "-Huln"]).stdout, "the name server listens", process=server)
    web = start_origin(origin, {"file": 1000})
    proxy = start_proxy(node, write_configuration(node, f"dns_nameservers {address}", *statements)).url()
    for url, tunnel, status in (
        (web.url("file"), False, 200),
        (f"http://{NAME}/file", False, 200),
        (web.url("file", port=443), True, 200),
        (f"http://{NAME}:443/file", True, 200),
        (f"http://{NAME}:25/", False, 403),
        (f"http://{node.service_address()}/", False, 403),
        (f"http://{NAME}/none", False, 404),
    ):
        assert fetch(client, url, proxy, mptcp=True, tunnel=tunnel).status == status, url
    return [tuple(json.loads(line)) for line in record.read_text().splitlines()]


@pytest.fixture(autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("squid", "apache2", "curl", "mptcpize", "gcc")


def test_proxy_queries_only_addresses(testbed: Testbed) -> None:
    """A query for each client's name would reveal the client to the name server, and double the number of queries."""
    found = record_queries(testbed)
    assert {kind for kind, _ in found} == {A, AAAA}, found
    assert {name for _, name in found} == {NAME}


def test_log_with_client_names_queries_names_of_addresses(testbed: Testbed) -> None:
    client = testbed["client"]
    found = record_queries(testbed, "logformat named %>A", "access_log stdio:/var/log/${service_name}/named.log named")
    reverse = ".".join(reversed(client.address("eth0").split("."))) + ".in-addr.arpa"
    assert (PTR, reverse) in found
