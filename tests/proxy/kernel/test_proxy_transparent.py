# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for transparent proxying: Squid's workers need a capability for listeners with the option tproxy."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from proxying import fetch, has_libraries, mptcp_listeners, worker_pids, write_configuration

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    SQUID_CONFIG,
    mptcp_command,
    program,
    start_origin,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)

pytestmark = pytest.mark.kernel
SITE_ADDRESS = "203.0.113.9"
FILES = {"large.bin": 20_000_000}
INTERCEPT_TABLE = """
table ip intercept {
  chain pre {
    type filter hook prerouting priority mangle;
    meta l4proto tcp socket transparent 1 meta mark set 1 accept
    ip daddr 203.0.113.9 tcp dport 80 tproxy to :80 meta mark set 1 accept
    ip daddr 203.0.113.9 tcp dport 443 tproxy to :443 meta mark set 1 accept
  }
}
"""
CAP_BITS_PER_SECOND = 5_000_000
POLICY = """
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
rules:
  - {name: cap, paths: [ethernet], throttle: {rate: 5 Mbit/s}}
"""
NET_BIND_SERVICE, NET_ADMIN = 1 << 10, 1 << 12
"""Capability masks of linux/capability.h."""
TRANSPARENT_PORT = 3129


def capabilities(pid: int) -> int:
    """Return the effective capabilities of the process."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("CapEff:"))
    return int(line.split()[1], 16)


@pytest.mark.nightly(except_for=("[2]",))
@pytest.mark.parametrize("worker_count", [1, 2])
def test_workers_have_the_same_capabilities_as_without_the_library(
    testbed: Testbed, require: Callable[..., None], worker_count: int
) -> None:
    require("squid", "apache2", "curl", "mptcpize", "gcc")
    node, origin = testbed["proxy"], start_origin(testbed["origin"], {"file.bin": 100_000})
    proxy = start_proxy(node, write_configuration(node, f"workers {worker_count}"))
    process_count = worker_count + (worker_count > 1)  # several workers have a coordinator
    wait_until(lambda: len(worker_pids(proxy.process)) == process_count, "all workers run")

    def all_capabilities() -> set[int]:
        return {capabilities(pid) for pid in worker_pids(proxy.process)}

    wait_until(lambda: all_capabilities() == {NET_BIND_SERVICE}, "the workers have dropped other capabilities")
    before = set(worker_pids(proxy.process))
    write_configuration(node, f"workers {worker_count}", f"http_port {TRANSPARENT_PORT} tproxy")
    proxy.process.signal(signal.SIGHUP)
    wait_until(lambda: f"*:{TRANSPARENT_PORT}" in mptcp_listeners(node), "the transparent listener is open")
    wait_until(
        lambda: all_capabilities() == {NET_BIND_SERVICE | NET_ADMIN}, "the workers have the listener's capability"
    )
    assert set(worker_pids(proxy.process)) == before, "a worker ended"
    assert all(has_libraries(pid) for pid in before)
    assert proxy.process.stop(60) == 0

    proxy = start_proxy(
        node, write_configuration(node, f"workers {worker_count}", f"http_port {TRANSPARENT_PORT} tproxy")
    )
    wait_until(
        lambda: all_capabilities() == {NET_BIND_SERVICE | NET_ADMIN}, "the workers have the capability from the start"
    )
    wait_until(lambda: mptcp_listeners(node) == {f"*:{PROXY_PORT}", f"*:{TRANSPARENT_PORT}"}, "both listeners are open")
    download = fetch(testbed["client"], origin.url("file.bin"), proxy.url(), mptcp=True)
    assert (download.status, download.sha256) == (200, origin.digests["file.bin"])


def intercept(testbed: Testbed) -> None:
    """Route packets between client and site through the proxy, in both directions, and redirect ports 80 and
    443 to the proxy."""
    core, proxy, origin = testbed["core"], testbed["proxy"], testbed["origin"]
    origin.run(["ip", "addr", "add", f"{SITE_ADDRESS}/32", "dev", "lo"])
    core.run(["ip", "route", "add", f"{SITE_ADDRESS}/32", "via", origin.service_address()])
    core.run(["ip", "route", "add", "default", "via", proxy.service_address(), "table", "300"])
    routed = [
        ("to-eth0", SITE_ADDRESS),
        ("to-wlan0", SITE_ADDRESS),
        ("to-origin", "10.77.1.0/24"),
        ("to-origin", "10.77.2.0/24"),
    ]
    for device, target in routed:
        core.run(["ip", "rule", "add", "iif", device, "to", target, "lookup", "300"])
    for key in ("ip_forward=1", "conf.all.rp_filter=0", "conf.wan0.rp_filter=0"):
        proxy.run(["sysctl", "-qw", f"net.ipv4.{key}"])
    proxy.run(["ip", "rule", "add", "fwmark", "1", "lookup", "100"])
    proxy.run(["ip", "route", "add", "local", "default", "dev", "lo", "table", "100"])
    proxy.run(["nft", INTERCEPT_TABLE])


def transparent_configuration(node: LiveNode) -> Path:
    """Write the configuration of docs/transparent.md."""
    text = SQUID_CONFIG.read_text()
    for rule in ("!web_ports", "CONNECT !tunnel_ports", "!CONNECT !web_protocols"):
        assert text.count(f"http_access deny {rule}\n") == 1
        text = text.replace(f"http_access deny {rule}\n", f"http_access deny {rule} !transparent_tls\n")
    text = text.replace("http_access deny manager\n", "http_access deny manager\nacl transparent_tls myportname tls\n")
    ports = "http_port 80 tproxy name=web\nhttp_port 443 tproxy name=tls\non_unsupported_protocol tunnel all\n"
    return node.write("transparent.conf", f"{text}{ports}shutdown_lifetime 0 seconds\n")


def test_clients_without_proxy_settings_use_both_paths(testbed: Testbed, require: Callable[..., None]) -> None:
    require("squid", "apache2", "curl", "mptcpize", "gcc", "nftables")
    node, client = testbed["proxy"], testbed["client"]
    start_origin(testbed["origin"], FILES, ports=(80,), tls_port=443)
    intercept(testbed)
    config = transparent_configuration(node)
    start_proxy(node, config)

    def received_bytes(scheme: str) -> dict[str, int]:
        before = client.counters()
        output_options = ["-w", "%{http_code} %{size_download}", "-o", "/dev/null"]
        command = mptcp_command(["curl", "-sSk", "-m", "50", *output_options, f"{scheme}://{SITE_ADDRESS}/large.bin"])
        assert client.run(command, timeout=60).stdout == f"200 {FILES['large.bin']}"
        after = client.counters()
        return {device: after[device].received - before[device].received for device in ("eth0", "wlan0")}

    def uses_both_paths(scheme: str) -> bool:
        return min(received_bytes(scheme).values()) > FILES["large.bin"] / 10

    for scheme in ("http", "https"):
        wait_until(partial(uses_both_paths, scheme), "the connection uses both paths")
    settings = write_throttler_config(node, node.write("policy.yaml", POLICY), settings={"listen_ports": [80, 443]})
    throttler = start_throttler(node, settings)
    for scheme in ("http", "https"):
        start_time = time.monotonic()
        received = received_bytes(scheme)
        assert received["eth0"] * 8 < 1.2 * CAP_BITS_PER_SECOND * (time.monotonic() - start_time), "the cap is exceeded"
        assert received["wlan0"] > received["eth0"]
    throttler.process.stop()
    answer = node.run([program("mptcp-proxy"), "doctor", "--json", "--config", str(config)], check=False, timeout=120)
    found = {each["check"]: each["status"] for each in json.loads(answer.stdout)}
    assert (found["transparent port 80"], found["transparent port 443"]) == ("ok", "ok")
    node.run(["nft", "delete table ip intercept"])
    answer = node.run([program("mptcp-proxy"), "doctor", "--json", "--config", str(config)], check=False, timeout=120)
    found = {each["check"]: each["status"] for each in json.loads(answer.stdout)}
    assert found["transparent port 80"] == "fail"
