# SPDX-License-Identifier: GPL-2.0-or-later
"""A continuous download to the client, and the rate that arrives on one of its paths."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from faults import LONG_TIMEOUT
from throttler_site import Site, connected, until

CHUNK, PAUSE_SECONDS = 1 << 16, 0.01
"""Bytes per chunk, and seconds between chunks: about 50 Mbit/s, ten times the cap of the tests."""
MAX_BACKLOG = 50 * CHUNK
"""Maximum backlog in bytes, after a busy machine or a full buffer has prevented sending for a while."""


class Flood:
    """Sends data from the proxy to the client until it is stopped."""

    def __init__(self, client: socket.socket, proxy: socket.socket) -> None:
        self.received = 0
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(proxy,), daemon=True),
            threading.Thread(target=self._receive, args=(client,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, proxy: socket.socket) -> None:
        began, sent = time.monotonic(), 0
        while not self._stopped.wait(PAUSE_SECONDS):
            due = int((time.monotonic() - began) / PAUSE_SECONDS) * CHUNK
            sent = max(sent, due - MAX_BACKLOG)
            # A path that is down for a while accepts no data.
            with suppress(TimeoutError):
                sent += proxy.send(bytes(due - sent))

    def _receive(self, client: socket.socket) -> None:
        client.settimeout(1)
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                self.received += len(client.recv(1 << 20))

    def wait_for_data(self) -> None:
        before = self.received
        until(lambda: self.received > before + CHUNK, timeout=LONG_TIMEOUT)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def flood(site: Site, listener: socket.socket) -> Iterator[Flood]:
    """Send data continuously over a separate connection."""
    with connected(site, listener) as ends:
        data = Flood(*ends)
        try:
            yield data
        finally:
            data.stop()


def incoming_rate(site: Site, network: str, seconds: float) -> float:
    """Return the client's mean receive rate on its interface in *network* during *seconds*, in bit/s."""

    def read_counter() -> tuple[float, int]:
        links = json.loads(site.client.run(["ip", "-j", "-s", "addr", "show", "to", network]).stdout)
        return time.monotonic(), links[0]["stats64"]["rx"]["bytes"]

    began, before = read_counter()
    time.sleep(seconds)
    ended, after = read_counter()
    return 8 * (after - before) / (ended - began)
