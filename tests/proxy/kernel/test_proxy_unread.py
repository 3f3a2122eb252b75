# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for uploads that the origin does not read: tcp_rmem bounds the kernel memory that they hold, write_timeout
their duration.

docs/operator.md describes both settings.
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
"""Bytes: the largest receive buffer that docs/operator.md recommends, and a smaller one, to show its effect."""
MAX_RECEIVED, MAX_WITH_SMALLER = 2_500_000, 800_000
"""Largest bytes per upload with each: the buffer, and the data in flight until the client learns the window."""
PATIENCE = 180.0
"""Seconds within which the received bytes must stop growing."""
GIVEN_UP = 120.0
"""Seconds until the kernels have given up the remaining data of both ends.

Without a reset this includes the minute for a vanished client (docs/operator.md) and retransmissions.
"""
# A server that accepts connections but reads nothing.
SILENT = """
import socket, sys, time
listener = socket.create_server(("", int(sys.argv[1])), backlog=200)
time.sleep(3600)
"""
# A client that uploads as much as the proxy accepts.
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
    """Return the bytes of kernel memory that received data occupies on the proxy's client connections."""
    listing = (
        node.run(["ss", kind, "state", "connected", "sport", "=", f":{PROXY_PORT}"]).stdout
        for kind in ("-Htnm", "-HMnm")
    )
    return sum(int(size) for text in listing for size in re.findall(r"skmem:\(r(\d+)", text))


def settled(node: LiveNode, unchanged: float) -> int:
    """Return these bytes when they have not grown for *unchanged* seconds."""
    most, since, deadline = 0, time.monotonic(), time.monotonic() + PATIENCE
    while time.monotonic() < min(since + unchanged, deadline):
        if (now := held(node)) > 1.01 * most:
            most, since = now, time.monotonic()
        time.sleep(0.3)
    assert time.monotonic() < deadline, "the received data still grow"
    return most


@pytest.fixture
def hosts(make_testbed: Callable[..., Testbed], require: Callable[..., None]) -> tuple[LiveNode, ...]:
    """Return client, proxy, and an origin that reads nothing."""
    require("squid", "gcc")
    testbed = make_testbed(UNSHAPED)
    client, proxy, origin = (testbed[name] for name in ("client", "proxy", "origin"))
    silent = origin.popen(python_command(SILENT, str(PORT)), name="silent")
    wait_until(lambda: bool(origin.run(["ss", "-Htln", "sport", "=", f":{PORT}"]).stdout), "it listens", process=silent)
    return client, proxy, origin


@pytest.mark.nightly
def test_largest_receive_buffer_bounds_the_memory_of_unread_uploads(hosts: Sequence[LiveNode]) -> None:
    client, proxy, origin = hosts
    where = (proxy.service_address(), str(PROXY_PORT), f"{origin.service_address()}:{PORT}", str(UPLOADS))
    found = {}
    for largest in (SMALLER, RECOMMENDED):
        with uploading(client, proxy, largest, where):
            # On a busy machine the sender may pause.
            found[largest] = settled(proxy, 15.0)
    print({largest: f"{size / UPLOADS / 1e6:.2f} MB each" for largest, size in found.items()})
    assert found[SMALLER] < UPLOADS * MAX_WITH_SMALLER
    assert found[RECOMMENDED] < UPLOADS * MAX_RECEIVED
    # The buffer size is the limit: with a larger buffer, more data is accepted.
    assert found[RECOMMENDED] > 1.15 * found[SMALLER]


def test_write_timeout_ends_uploads_of_vanished_clients(hosts: Sequence[LiveNode]) -> None:
    """The shipped value is 5 minutes, and nothing else ends these uploads earlier."""
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
    """Run uploads through a proxy with *statements* whose receive buffers grow to *largest* bytes."""
    with proxy.sysctl("net.ipv4.tcp_rmem", f"4096 131072 {largest}"):
        serving = start_proxy(proxy, configuration(proxy, *statements))
        uploads = client.popen(python_command(UPLOAD, *where), name=f"uploads-{largest}")
        try:
            wait_until(lambda: "all" in uploads.output(), "all upload", process=uploads)
            yield uploads
        finally:
            uploads.stop(60)
            # Squid no longer reads and would not notice that the clients have left.
            serving.process.stop(60)
        wait_until(lambda: held(proxy) == 0, "the kernel has given up all data", timeout=GIVEN_UP)
