# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the links of a testbed: traffic uses the declared paths, fills them, and never exceeds their rates."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from listening_socket import serving

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import start_origin

pytestmark = pytest.mark.kernel
MIB = 1 << 20


@contextmanager
def mptcp_server(testbed: Testbed, payload: bytes) -> Iterator[int]:
    """Send *payload* to each client that connects to the proxy node by MPTCP; yield the port."""
    with testbed["proxy"].entered():
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
        listener.listen()

    with serving(listener, lambda connection: connection.sendall(payload)):
        yield listener.getsockname()[1]


def receive(testbed: Testbed, address: str, port: int) -> tuple[str, float]:
    """Read all data from *address* with an MPTCP socket on the client. Return their SHA-256 and the time in seconds."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with testbed["client"].entered():
        client = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
    digest = hashlib.sha256()
    started = time.monotonic()
    with client:
        client.settimeout(60)
        client.connect((address, port))
        while data := client.recv(1 << 16):
            digest.update(data)
    return digest.hexdigest(), time.monotonic() - started


def test_mptcp_uses_both_links_within_their_rates(testbed: Testbed) -> None:
    payload = os.urandom(MIB) * 24
    with mptcp_server(testbed, payload) as port:
        digest, seconds = receive(testbed, testbed["proxy"].address("wan0", 6), port)
    assert digest == hashlib.sha256(payload).hexdigest()
    received = {d: c.received * 8 for d, c in testbed["client"].counters().items()}
    # The experiments measure how far the links are filled. A busy machine fills them less.
    assert min(received["eth0"], received["wlan0"]) > 8 * MIB
    assert received["eth0"] / seconds <= 1.03 * 100e6
    assert received["wlan0"] / seconds <= 1.03 * 30e6


def test_plain_tcp_uses_the_path_of_its_source_address(testbed: Testbed) -> None:
    client, size = testbed["client"], 2 * MIB
    origin = start_origin(testbed["origin"], {"file": size})
    for device, other in (("eth0", "wlan0"), ("wlan0", "eth0")):
        for family in (4, 6):
            before = client.counters()
            target = testbed.directory / "got"
            source = ["--bind-address", client.address(device, family)]
            client.run(["wget", "-q", "-O", str(target), *source, origin.url("file", family=family)])
            assert hashlib.sha256(target.read_bytes()).hexdigest() == origin.digests["file"]
            after = client.counters()
            assert after[device].received - before[device].received > size
            assert after[other].received - before[other].received < 0.01 * size
