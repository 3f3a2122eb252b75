# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the proxy detects vanished clients, both of an idle tunnel and of a download with unsent data."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from proxying import count_subflows, curl_command, write_configuration

from mptcp_lab.testbed import LiveNode, Process, Testbed
from mptcp_lab.testbed.services import PROXY_PORT, Origin, python_command, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
FILE, SIZE = "file.bin", 200_000_000
PORT = 3129
WRITE_TIMEOUT = 30
"""Seconds after which Squid closes the connection of a client that accepts no byte."""
PROBE_COUNTER = "TcpExtTCPKeepAlive"
"""Counter of the keepalive probes that the kernel has sent."""
SHORT_TIMEOUTS = (f"http_port {PORT} tcpkeepalive=2,1,2", f"write_timeout {WRITE_TIMEOUT} seconds")
TUNNEL = """
import socket, sys, time
proxy, port, target = sys.argv[1:]
tunnel = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
tunnel.connect((proxy, int(port)))
tunnel.sendall(f"CONNECT {target}:443 HTTP/1.1\\r\\n\\r\\n".encode())
assert b" 200 " in tunnel.recv(1000)
time.sleep(600)
"""


@contextmanager
def silent(client: LiveNode) -> Iterator[None]:
    """Drop all packets from and to the client."""
    chains = "\n".join(f"chain {hook} {{\ntype filter hook {hook} priority 0\ndrop\n}}" for hook in ("input", "output"))
    table = f"table inet silence {{\n{chains}\n}}"
    with client.changed(["nft", table], ["nft", "delete", "table", "inet", "silence"]):
        yield


@pytest.fixture(autouse=True)
def _needs_keepalive_times(require: Callable[..., None]) -> None:
    """Skip the test on older kernels, whose MPTCP sockets do not support keepalive times."""
    require("mptcp")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        except OSError as error:
            pytest.skip(f"NOT TESTED: this kernel's MPTCP sockets have no TCP_KEEPIDLE: {error.strerror}")


@pytest.fixture
def origin(testbed: Testbed, require: Callable[..., None]) -> Origin:
    require("squid", "apache2", "curl", "mptcpize", "gcc", "nftables")
    # Number of seconds for which a connection without subflows waits for a new subflow; the default is 60.
    testbed["proxy"].run(["sysctl", "-qw", "net.mptcp.close_timeout=1"])
    start_proxy(testbed["proxy"], write_configuration(testbed["proxy"], *SHORT_TIMEOUTS))
    return start_origin(testbed["origin"], {FILE: SIZE})


def socket_count(node: LiveNode, *expression: str) -> int:
    """Return the number of TCP sockets of *node* for *expression* (ss(8)), except listening and TIME-WAIT sockets."""
    listing = node.run(["ss", "-Htan", "exclude", "listening", "exclude", "time-wait", *expression]).stdout
    return len(listing.splitlines())


def start_with_two_subflows(testbed: Testbed, command: Sequence[str], port: int = PORT) -> Process:
    process = testbed["client"].popen(command)
    wait_until(lambda: count_subflows(testbed["client"], port) == 2, "the connection has two subflows", process=process)
    return process


def wait_until_download_continues(client: LiveNode, process: Process) -> None:
    """Wait until the download has received another megabyte."""
    before = client.interface_bytes("eth0").received
    wait_until(
        lambda: client.interface_bytes("eth0").received > before + 1_000_000, "the download continues", process=process
    )


def tunnel_command(testbed: Testbed, port: int = PORT) -> list[str]:
    proxy, origin = (testbed[name].service_address() for name in ("proxy", "origin"))
    return python_command(TUNNEL, proxy, str(port), origin)


def test_shipped_configuration_probes_each_subflow_after_a_minute(testbed: Testbed, origin: Origin) -> None:
    start_time = time.monotonic()
    start_with_two_subflows(testbed, tunnel_command(testbed, PROXY_PORT), PROXY_PORT)
    timers: list[int] = []

    def both_have_timers() -> bool:
        nonlocal timers
        expression = ["state", "established", "sport", "=", f":{PROXY_PORT}"]
        listing = testbed["proxy"].run(["ss", "-Htno", *expression]).stdout
        timers = [int(seconds) for seconds in re.findall(r"timer:\(keepalive,(\d+)sec", listing)]
        return len(timers) == 2

    wait_until(both_have_timers, "both subflows have the timer")
    elapsed = time.monotonic() - start_time
    assert all(60 - elapsed - 2 <= seconds <= 60 for seconds in timers), (timers, elapsed)


def download_command(testbed: Testbed, origin: Origin) -> list[str]:
    proxy = f"http://{testbed['proxy'].service_address()}:{PORT}"
    return curl_command(origin.url(FILE), proxy, mptcp=True, tunnel=False, options=["-o", "/dev/null"])


def test_idle_tunnel_is_closed_only_if_its_client_vanished(testbed: Testbed, origin: Origin) -> None:
    proxy = testbed["proxy"]
    client = start_with_two_subflows(testbed, tunnel_command(testbed))
    before = proxy.mib()[PROBE_COUNTER]
    # The kernel gives up a subflow after two unanswered probes.
    wait_until(
        lambda: proxy.mib()[PROBE_COUNTER] >= before + 8, "the kernel probes both subflows repeatedly", process=client
    )
    assert socket_count(proxy, "dport", "=", ":443") == 1, "the proxy closed the tunnel of an idle client that answers"
    assert socket_count(proxy, "sport", "=", f":{PORT}") == 2
    with silent(testbed["client"]):
        wait_until(lambda: socket_count(proxy, "dport", "=", ":443") == 0, "the connection to the origin is closed")
        wait_until(lambda: socket_count(proxy, "sport", "=", f":{PORT}") == 0, "the connection to the client is closed")


@pytest.mark.nightly
def test_download_of_a_vanished_client_is_closed(testbed: Testbed, origin: Origin) -> None:
    proxy = testbed["proxy"]
    process = start_with_two_subflows(testbed, download_command(testbed, origin))
    wait_until_download_continues(testbed["client"], process)
    assert socket_count(proxy, "dport", "=", ":80") == 1
    with silent(testbed["client"]):
        wait_until(
            lambda: socket_count(proxy, "dport", "=", ":80") == 0, "the connection to the origin is closed", timeout=180
        )


@pytest.mark.nightly
def test_download_survives_a_short_silence_of_the_client(testbed: Testbed, origin: Origin) -> None:
    client = testbed["client"]
    process = start_with_two_subflows(testbed, download_command(testbed, origin))
    wait_until_download_continues(client, process)
    with silent(client):
        time.sleep(2)
    wait_until_download_continues(client, process)
