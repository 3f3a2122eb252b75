# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the throttler's policy on a tunnel: the packets of one path pass through the class of its cap."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import test_tunnel_live as live

from mptcp_common.status_client import ask
from mptcp_lab.testbed import LiveNode
from mptcp_lab.testbed.services import (
    ANSWER_TIMEOUT,
    Throttler,
    start_throttler,
    throttler_mounts,
    wait_until,
    write_throttler_config,
)
from mptcp_lab.testbed.system_state import differences, kernel_state

pytestmark = pytest.mark.kernel
site = live.site
CAP_BITS_PER_SECOND = 2_000_000
UDP_SERVER = f"""\
import socket, threading, time
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", {live.PORT}))

def flood(address):
    next_time = time.monotonic()
    while True:
        next_time += 0.001
        time.sleep(max(0.0, next_time - time.monotonic()))
        server.sendto(bytes(972), address)

while True:
    data, address = server.recvfrom(2048)
    server.sendto(data, address)
    if data == b"flood":
        threading.Thread(target=flood, args=(address,), daemon=True).start()
"""
"""Returns each packet to its sender. After a packet "flood", it also sends 8 Mbit/s to this sender."""
POLICY = """\
version: 1
paths:
  cheap: {interfaces: [u0]}
  dear: {remote_ids: [1]}
rules:
  - name: less
    paths: [cheap]
    throttle: {rate: 5 Mbit/s}
  - name: spare-dear
    paths: [dear]
    throttle: {rate: 2 Mbit/s}
  - name: volume
    budget: {period: month, per: path, steps: [{after: 5 GB, throttle: {rate: 1 Mbit/s}}]}
"""


def write_config(node: LiveNode, tunnels: Path, backend: str) -> Path:
    policy = node.write("policy.yaml", POLICY)
    settings = {"netfilter": backend, "tunnel_ports": [live.PORT], "tunnel_socket": str(tunnels), "verify_interval": 2}
    return write_throttler_config(node, policy, interfaces=("u0", "u1"), settings=settings)


def class_bytes(node: LiveNode, interface: str) -> dict[str, int]:
    """Return for each class of an interface the bytes that have passed through it."""
    shown = node.run(["tc", "-s", "class", "show", "dev", interface]).stdout
    return {each: int(octets) for each, octets in re.findall(r"class htb (\S+).*\n Sent (\d+)", shown)}


def measure_rate(counter: Callable[[], int], minimum: int) -> float:
    """Return the rate of a byte counter in bit/s, measured over at least *minimum* bytes."""
    began, first = time.monotonic(), counter()
    wait_until(lambda: counter() - first >= minimum, f"{minimum} bytes pass", timeout=60)
    return 8 * (counter() - first) / (time.monotonic() - began)


@contextmanager
def flooding(tunnel: live.Site) -> Iterator[None]:
    """Make the program at the proxy send data until the block ends."""
    with tunnel.relay.entered():
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with client:
        client.bind(("0.0.0.0", live.PORT))
        client.sendto(b"flood", (live.PEER, live.PORT))
        yield


def connections(throttler: Throttler) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(throttler.socket, {"query": "connections"}, ANSWER_TIMEOUT)["connections"]
    return found


@pytest.mark.parametrize("backend", ["iptables", "nftables"])
def test_cap_holds_on_one_path_and_ends_with_the_throttler(
    site: live.Site, backend: str, require: Callable[..., None]
) -> None:
    require("htb", *(["ipset", "iptables-legacy"] if backend == "iptables" else ["nftables"]))
    proxy, tunnels = site.proxy, site.sockets[site.proxy.name]

    def classes() -> list[int]:
        return [each["class"] for each in site.paths(proxy)]

    with proxy.running([sys.executable, "-I", "-c", UDP_SERVER]), live.connected_daemons(site), flooding(site):
        before = kernel_state(proxy)
        throttler = start_throttler(proxy, write_config(proxy, tunnels, backend))
        wait_until(lambda: all(classes()), "the paths are in classes", process=throttler.process)
        other_class, capped_class = (f"4d50:{each & 0xFFFF:x}" for each in classes())
        other_before, capped_before = class_bytes(proxy, "u0"), class_bytes(proxy, "u1")
        assert (
            measure_rate(lambda: class_bytes(proxy, "u1").get(capped_class, 0), 1_000_000) <= 1.15 * CAP_BITS_PER_SECOND
        )
        growth = {key: value - capped_before.get(key, 0) for key, value in class_bytes(proxy, "u1").items()}
        assert growth["4d50:ffff"] < 0.05 * growth[capped_class], "packets of the path bypassed the class"
        assert class_bytes(proxy, "u0")[other_class] - other_before.get(other_class, 0) > 2 * growth[capped_class], (
            "the other path did not carry more"
        )
        throttler.process.kill()
        throttler = start_throttler(proxy, write_config(proxy, tunnels, backend))
        assert [f"4d50:{each & 0xFFFF:x}" for each in classes()] == [other_class, capped_class], (
            "the new daemon does not use the objects of the killed daemon"
        )
        (shown,) = connections(throttler)
        assert [each["path"] for each in shown["subflows"]] == ["cheap", "dear"]
        wait_until(lambda: connections(throttler)[0]["bytes_sent"] > 0, "bytes are counted")
        throttler.process.stop()
        assert throttler.process.wait(30) == 0, throttler.process.output()
        assert "Traceback" not in throttler.process.output()
        wait_until(lambda: classes() == [0, 0], "no path is in a class")
        assert differences(before, kernel_state(proxy)) == []
        throttler = start_throttler(proxy, throttler.config)
        wait_until(lambda: all(classes()), "the paths are in classes again", process=throttler.process)
        throttler.process.kill()
        command = [proxy.program("mptcp-throttler"), "cleanup", "--config", str(throttler.config)]
        assert proxy.popen(command, name="cleanup", mounts=throttler_mounts(proxy)).wait(60) == 0
        wait_until(lambda: classes() == [0, 0], "the objects of a killed daemon are removed")
        assert differences(before, kernel_state(proxy)) == []
        with proxy.link_down("u0"):
            wait_until(lambda: site.alive(proxy) == [False, True], "the other path is silent")
            assert (
                measure_rate(lambda: int(site.paths(proxy)[1]["bytes_sent"]), 1_000_000) > 1.15 * CAP_BITS_PER_SECOND
            ), "the path is still capped"
