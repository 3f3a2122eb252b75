"""Uploads for the experiment ``guard``: a client that sends over both paths, and one that sends less by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.recorder import Recorder
from mptcp_lab.testbed.services import (
    Sink,
    mptcp_command,
    python_command,
    start_proxy,
    start_sink,
    start_throttler,
    wait_until,
    write_throttler_config,
)

from .two_paths import FILE_SIZE, TransferScene, hop_shaper
from .upload_recorder import UploadRecorder

CLIENTS = {"eth0": ip_address("10.77.1.2").packed, "wlan0": ip_address("10.77.2.2").packed}
SLOWING = """
import socket, sys, time
host, port, url, full, rate = sys.argv[1], *sys.argv[2:4], *map(float, sys.argv[4:])
connection = socket.create_connection((host, int(port)))
connection.sendall(f"PUT {url} HTTP/1.1\\r\\nHost: sink\\r\\nContent-Length: 1000000000\\r\\n\\r\\n".encode())
began, piece = time.monotonic(), bytes(65536)
while time.monotonic() < began + full:
    connection.sendall(piece)
began, sent = time.monotonic(), 0
while True:
    due = int((time.monotonic() - began) * rate / 8)
    if due > sent:
        connection.sendall(bytes(due - sent))
        sent = due
    time.sleep(0.005)
"""
"""Sends as fast as it can for so many seconds, then at so many bits/s: HOST PORT URL SECONDS RATE."""


@dataclass(frozen=True, slots=True)
class UploadScene(TransferScene):
    """A testbed with all services, for one upload after another, each under a policy of its own."""

    proxy_url: str
    sink: Sink
    body: Path

    @classmethod
    def built(cls, testbed: Testbed, policy_text: str) -> Self:
        policy, body = testbed.directory / "policy.yaml", testbed.directory / "body"
        policy.write_text(policy_text)
        with open(body, "wb") as file:
            file.truncate(FILE_SIZE)
        throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], policy))
        proxy = start_proxy(testbed["proxy"])
        return cls(testbed, throttler, policy, proxy.url(), start_sink(testbed["origin"]), body)

    @contextmanager
    def sending(self, cap: float, command: Sequence[str] = ()) -> Iterator[tuple[Process, Recorder]]:
        """An upload whose *cap*, Mbit/s, is in force, and what it brings over each path."""
        process = self.client.popen(command or self.upload())
        try:
            wait_until(lambda: self._in_force(cap), "the cap is in force", timeout=30)
            with UploadRecorder(self.testbed["proxy"], CLIENTS) as recorder:
                yield process, recorder
        finally:
            process.kill()

    def _in_force(self, cap: float) -> bool:
        status = self.throttler.status()
        rates = [each["rate"] for each in status["classes"] if each["direction"] == "up"]
        return bool(status["counters"]["upload_entries"]) and rates == [cap * 1_000_000]

    def upload(self) -> list[str]:
        """Return the command of a client that sends as fast as it can."""
        fixed = ["curl", "-s", "-m", "120", "-o", "/dev/null", "-H", "Expect:"]
        return mptcp_command([*fixed, "-x", self.proxy_url, "-T", str(self.body), self.sink.url()])

    def slowing(self, full: float, rate: float) -> list[str]:
        """Return the command of one that sends *rate* bits/s after *full* seconds."""
        host, port = self.proxy_url.removeprefix("http://").rstrip("/").rsplit(":", 1)
        return mptcp_command(python_command(SLOWING, host, port, self.sink.url(), str(full), str(rate)))


@contextmanager
def slow_wifi(testbed: Testbed, slow: float, fast: float) -> Iterator[None]:
    """Let Wi-Fi take *slow* Mbit/s in place of *fast*."""
    with testbed["hop2"].changed(hop_shaper(slow, "wan"), hop_shaper(fast, "wan")):
        yield
