# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for uploads that the origin does not read. docs/operator.md describes the settings.

The sysctl tcp_rmem limits the kernel memory of these uploads, and write_timeout of Squid limits their duration.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from proxying import write_configuration

from mptcp_lab.testbed import LiveNode, Process, Testbed
from mptcp_lab.testbed.services import PROXY_PORT, python_command, start_proxy, wait_until
from mptcp_lab.testbed.topologies import UNSHAPED

pytestmark = pytest.mark.kernel
UPLOAD_COUNT, PORT = 60, 8081
SMALL_BUFFER, RECOMMENDED_BUFFER = 512 << 10, 2 << 20
"""Maximum receive buffers in bytes: a small buffer to show the effect, and the recommendation of docs/operator.md."""
MAX_WITH_SMALL, MAX_WITH_RECOMMENDED = 800_000, 2_500_000
"""Maximum bytes per upload with each buffer: the buffer, and the data in flight until the client learns the window."""
MAX_SETTLING_SECONDS = 180.0
"""Maximum seconds until the received bytes stop growing."""
MAX_CLOSING_SECONDS = 120.0
"""Maximum seconds until the kernels of both ends have dropped the remaining data.

Without a reset, this includes the minute for a vanished client (docs/operator.md) and retransmissions.
"""
# A server that accepts connections but reads nothing.
SILENT_SERVER = """
import socket, sys, time
listener = socket.create_server(("", int(sys.argv[1])), backlog=200)
time.sleep(3600)
"""
# A client that uploads as much as the proxy accepts.
UPLOAD = """
import selectors, socket, sys
proxy, port, origin, count = sys.argv[1:]
selector, chunk = selectors.DefaultSelector(), bytes(65536)
for number in range(int(count)):
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    client.connect((proxy, int(port)))
    head = f"PUT http://{origin}/{number} HTTP/1.1", "Host: x", "Content-Length: 999999999", "", ""
    client.sendall("\\r\\n".join(head).encode())
    client.setblocking(False)
    selector.register(client, selectors.EVENT_WRITE)
print("all", flush=True)
while True:
    for key, _ in selector.select():
        try:
            key.fileobj.send(chunk)
        except BlockingIOError:
            pass
"""


def received_bytes(node: LiveNode) -> int:
    """Return the bytes of kernel memory that received data occupies on the proxy's client connections."""
    listing = (
        node.run(["ss", kind, "state", "connected", "sport", "=", f":{PROXY_PORT}"]).stdout
        for kind in ("-Htnm", "-HMnm")
    )
    return sum(int(size) for text in listing for size in re.findall(r"skmem:\(r(\d+)", text))


def wait_until_settled(node: LiveNode, seconds: float) -> int:
    """Return the result of :func:`received_bytes` when it has not grown for this many *seconds*."""
    largest_size, grown_at, deadline = 0, time.monotonic(), time.monotonic() + MAX_SETTLING_SECONDS
    while time.monotonic() < min(grown_at + seconds, deadline):
        if (size := received_bytes(node)) > 1.01 * largest_size:
            largest_size, grown_at = size, time.monotonic()
        time.sleep(0.3)
    assert time.monotonic() < deadline, "the received data still grow"
    return largest_size


@pytest.fixture
def hosts(make_testbed: Callable[..., Testbed], require: Callable[..., None]) -> tuple[LiveNode, ...]:
    """Return client, proxy, and an origin that reads nothing."""
    require("squid", "gcc")
    testbed = make_testbed(UNSHAPED)
    client, proxy, origin = (testbed[name] for name in ("client", "proxy", "origin"))
    silent = origin.popen(python_command(SILENT_SERVER, str(PORT)), name="silent")
    wait_until(
        lambda: bool(origin.run(["ss", "-Htln", "sport", "=", f":{PORT}"]).stdout), "the origin listens", process=silent
    )
    return client, proxy, origin


@pytest.mark.nightly
def test_largest_receive_buffer_bounds_the_memory_of_unread_uploads(hosts: Sequence[LiveNode]) -> None:
    client, proxy, origin = hosts
    arguments = (proxy.service_address(), str(PROXY_PORT), f"{origin.service_address()}:{PORT}", str(UPLOAD_COUNT))
    sizes = {}
    for buffer in (SMALL_BUFFER, RECOMMENDED_BUFFER):
        with uploading(client, proxy, buffer, arguments):
            # On a busy machine the sender may pause.
            sizes[buffer] = wait_until_settled(proxy, 15.0)
    print({buffer: f"{size / UPLOAD_COUNT / 1e6:.2f} MB each" for buffer, size in sizes.items()})
    assert sizes[SMALL_BUFFER] < UPLOAD_COUNT * MAX_WITH_SMALL
    assert sizes[RECOMMENDED_BUFFER] < UPLOAD_COUNT * MAX_WITH_RECOMMENDED
    # The buffer size is the limit: with a larger buffer, the proxy accepts more data.
    assert sizes[RECOMMENDED_BUFFER] > 1.15 * sizes[SMALL_BUFFER]


def test_write_timeout_ends_uploads_of_vanished_clients(hosts: Sequence[LiveNode]) -> None:
    """The shipped value is 5 minutes. No other timeout ends these uploads earlier."""
    client, proxy, origin = hosts
    arguments = (proxy.service_address(), str(PROXY_PORT), f"{origin.service_address()}:{PORT}", "5")
    with uploading(client, proxy, RECOMMENDED_BUFFER, arguments, "write_timeout 5 seconds") as uploads:
        wait_until_settled(proxy, 3.0)
        uploads.stop(60)
        wait_until(
            lambda: connections_to_origin(proxy) == 0,
            "the connection to the origin is closed",
            timeout=MAX_SETTLING_SECONDS,
        )


def connections_to_origin(proxy: LiveNode) -> int:
    return len(proxy.run(["ss", "-Htn", "state", "established", "dport", "=", f":{PORT}"]).stdout.splitlines())


@contextmanager
def uploading(
    client: LiveNode, proxy: LiveNode, buffer: int, arguments: Sequence[str], *statements: str
) -> Iterator[Process]:
    """Run uploads through a proxy with *statements*, whose receive buffers grow to *buffer* bytes."""
    with proxy.sysctl("net.ipv4.tcp_rmem", f"4096 131072 {buffer}"):
        started = start_proxy(proxy, write_configuration(proxy, *statements))
        uploads = client.popen(python_command(UPLOAD, *arguments), name=f"uploads-{buffer}")
        try:
            wait_until(lambda: "all" in uploads.output(), "all uploads run", process=uploads)
            yield uploads
        finally:
            uploads.stop(60)
            # Squid no longer reads, so it would not detect that the clients have disconnected.
            started.process.stop(60)
        wait_until(lambda: received_bytes(proxy) == 0, "the kernel has dropped all data", timeout=MAX_CLOSING_SECONDS)
