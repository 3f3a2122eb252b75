# SPDX-License-Identifier: GPL-2.0-or-later
"""Uploads that nobody reads: net.ipv4.tcp_rmem bounds the kernel memory that they hold, write_timeout for how long.

docs/operator.md says both.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from proxying import configuration

from mptcp_lab.testbed import LiveNode, Process, Testbed
from mptcp_lab.testbed.services import PROXY_PORT, python_command, start_proxy, wait_until
from mptcp_lab.testbed.topologies import UNSHAPED

pytestmark = pytest.mark.kernel
UPLOADS, PORT = 60, 8081
RECOMMENDED, SMALLER = 2 << 20, 512 << 10
"""Bytes: the greatest receive buffer that docs/operator.md recommends, and one that has its effect as well."""
MOST, MOST_WITH_SMALLER = 2_500_000, 800_000
"""Bytes of an upload with either: the buffer, and what comes until the client is told."""
PATIENCE = 180.0
"""Seconds for nothing more to come."""
GIVEN_UP = 120.0
"""Seconds until the kernels have given up what both ends have left: without a reset it is the minute of a client
that is gone (docs/operator.md), and what is sent again."""
# Takes connections, and nothing that comes on them.
SILENT = """
import socket, sys, time
listener = socket.create_server(("", int(sys.argv[1])), backlog=200)
time.sleep(3600)
"""
# Uploads as much as is taken.
UPLOAD = """
import selectors, socket, sys
proxy, port, origin, count = sys.argv[1:]
chosen, piece = selectors.DefaultSelector(), bytes(65536)
for number in range(int(count)):
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    client.connect((proxy, int(port)))
    head = f"PUT http://{origin}/{number} HTTP/1.1", "Host: x", "Content-Length: 999999999", "", ""
    client.sendall("\\r\\n".join(head).encode())
    client.setblocking(False)
    chosen.register(client, selectors.EVENT_WRITE)
print("all", flush=True)
while True:
    for key, _ in chosen.select():
        try:
            key.fileobj.send(piece)
        except BlockingIOError:
            pass
"""


def held(node: LiveNode) -> int:
    """Return the bytes of kernel memory that the proxy's connections of clients hold for what came in."""
    listing = (
        node.run(["ss", kind, "state", "connected", "sport", "=", f":{PROXY_PORT}"]).stdout
        for kind in ("-Htnm", "-HMnm")
    )
    return sum(int(size) for text in listing for size in re.findall(r"skmem:\(r(\d+)", text))


def settled(node: LiveNode, unchanged: float) -> int:
    """Return the same when nothing more has come for *unchanged* seconds."""
    most, since, deadline = 0, time.monotonic(), time.monotonic() + PATIENCE
    while time.monotonic() < min(since + unchanged, deadline):
        if (now := held(node)) > 1.01 * most:
            most, since = now, time.monotonic()
        time.sleep(0.3)
    assert time.monotonic() < deadline, "more still comes"
    return most


@pytest.fixture
def hosts(make_testbed: Callable[..., Testbed], require: Callable[..., None]) -> tuple[LiveNode, ...]:
    """Return client, proxy, and an origin that takes nothing."""
    require("squid", "gcc")
    testbed = make_testbed(UNSHAPED)
    client, proxy, origin = (testbed[name] for name in ("client", "proxy", "origin"))
    silent = origin.popen(python_command(SILENT, str(PORT)), name="silent")
    wait_until(lambda: bool(origin.run(["ss", "-Htln", "sport", "=", f":{PORT}"]).stdout), "it listens", process=silent)
    return client, proxy, origin


@pytest.mark.nightly
def test_the_receive_buffers_maximum_bounds_what_unread_uploads_hold(hosts: Sequence[LiveNode]) -> None:
    client, proxy, origin = hosts
    where = (proxy.service_address(), str(PROXY_PORT), f"{origin.service_address()}:{PORT}", str(UPLOADS))
    found = {}
    for largest in (SMALLER, RECOMMENDED):
        with uploading(client, proxy, largest, where):
            # Who sends may stand still on a busy machine.
            found[largest] = settled(proxy, 15.0)
    print({largest: f"{size / UPLOADS / 1e6:.2f} MB each" for largest, size in found.items()})
    assert found[SMALLER] < UPLOADS * MOST_WITH_SMALLER
    assert found[RECOMMENDED] < UPLOADS * MOST
    # It is this that bounds it: more is taken where there is more room.
    assert found[RECOMMENDED] > 1.15 * found[SMALLER]


def test_uploads_of_clients_that_are_gone_end_by_write_timeout(hosts: Sequence[LiveNode]) -> None:
    """As shipped it is 5 minutes, and nothing else ends them before."""
    client, proxy, origin = hosts
    where = (proxy.service_address(), str(PROXY_PORT), f"{origin.service_address()}:{PORT}", "5")
    with uploading(client, proxy, RECOMMENDED, where, "write_timeout 5 seconds") as uploads:
        settled(proxy, 3.0)
        uploads.stop(60)
        wait_until(lambda: towards_origin(proxy) == 0, "the origin is left", timeout=PATIENCE)


def towards_origin(proxy: LiveNode) -> int:
    return len(proxy.run(["ss", "-Htn", "state", "established", "dport", "=", f":{PORT}"]).stdout.splitlines())


@contextmanager
def uploading(
    client: LiveNode, proxy: LiveNode, largest: int, where: Sequence[str], *statements: str
) -> Iterator[Process]:
    """Have the uploads, and a proxy with *statements* whose receive buffers grow to *largest* bytes."""
    with proxy.sysctl("net.ipv4.tcp_rmem", f"4096 131072 {largest}"):
        serving = start_proxy(proxy, configuration(proxy, *statements))
        uploads = client.popen(python_command(UPLOAD, *where), name=f"uploads-{largest}")
        try:
            wait_until(lambda: "all" in uploads.output(), "all upload", process=uploads)
            yield uploads
        finally:
            uploads.stop(60)
            # Squid, which reads no more, would not learn that they are gone.
            serving.process.stop(60)
        wait_until(lambda: held(proxy) == 0, "all is given up", timeout=GIVEN_UP)
