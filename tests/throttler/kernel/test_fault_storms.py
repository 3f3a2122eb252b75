# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in which bursts of connections overflow the throttler's buffers: its state is corrected within seconds.

The buffers have the kernel's minimum size, and the throttler is stopped (SIGSTOP) while connections open and close, so
events are lost. No periodic comparison repairs the state.
"""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from faults import LONG_TIMEOUT, RARE_INTERVAL, measure_time, traffic
from throttler_site import IPPROTO_MPTCP, POLICY, PORT, Site, make_site, read_status

from mptcp_lab.testbed import Process, Testbed
from mptcp_lab.testbed.services import Throttler, python_command, throttler_mounts, wait_until, write_throttler_config

pytestmark = pytest.mark.kernel

CONNECTIONS = 150
"""Connections per burst. Each has two subflows."""
ROUNDS = 3
# The daemon itself, with buffers that hold only a few messages.
DAEMON = """
import sys
from mptcp_throttler.kernel import capture, notices
from mptcp_throttler.kernel.mptcp_pm import family
capture.BUFFER_BYTES = notices._BUFFER_BYTES = family._BUFFER_BYTES = 2304
from mptcp_throttler.cli import main
sys.exit(main(sys.argv[1:]))
"""
SERVER = """
import socket, sys, threading
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("", int(sys.argv[1])))
listener.listen(1000)
def serve(connection):
    while got := connection.recv(100):
        connection.sendall(got)
    connection.close()
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
"""
# Each input line is a number: the program opens that many connections, and then closes the previous ones.
CLIENT = """
import socket, sys
proxy, port, pipe = sys.argv[1:]
open_sockets = []
for line in open(pipe):
    new_sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) for _ in range(int(line))]
    for each in new_sockets:
        each.connect((proxy, int(port)))
        each.sendall(b"?")
        each.recv(1)
    for each in open_sockets:
        each.close()
    open_sockets = new_sockets
    print("done", flush=True)
"""


class Burst:
    """Connections that open at the same time, and close at the same time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._pipe = site.testbed.directory / "burst"
        self._pipe.write_text("")
        server = site.proxy.popen(python_command(SERVER, str(PORT)), name="server")
        wait_until(lambda: f":{PORT} " in site.proxy.run(["ss", "-HMtln"]).stdout, "the server listens", process=server)
        command = ["sh", "-c", f'tail -f {self._pipe} | "$@"', "sh", *python_command(CLIENT, site.proxy.service_address(), str(PORT), "/dev/stdin")]  # fmt: skip  # noqa: E501
        self._client: Process = site.client.popen(command, name="client")
        self._rounds = 0

    def open_connections(self, count: int) -> None:
        """Open *count* connections, and then close the previous ones."""
        self._rounds += 1
        with self._pipe.open("a") as pipe:
            pipe.write(f"{count}\n")
        wait_until(
            lambda: self._client.output().count("done") == self._rounds,
            "the client has opened its connections",
            timeout=90,
            process=self._client,
        )


def kernel_subflows(site: Site) -> set[str]:
    """Return the client's end of every subflow that the kernel has."""
    listing = site.proxy.run(["ss", "-Htn", "state", "established", "sport", "=", f":{PORT}"]).stdout
    return {line.split()[3].replace("[::ffff:", "").replace("]", "") for line in listing.splitlines()}


def status_subflows(throttler: Throttler) -> set[str]:
    connections = read_status(throttler.socket)["connections"]
    return {each["remote"] for connection in connections for each in connection["subflows"]}


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    return make_site("nftables", make_module_testbed, require)


@pytest.fixture
def throttler(site: Site) -> Iterator[Throttler]:
    settings = {"netfilter": "nftables", "verify_interval": RARE_INTERVAL}
    config = write_throttler_config(site.proxy, site.policy, settings=settings)
    site.policy.write_text(POLICY)
    mounts = throttler_mounts(site.proxy)
    process = site.proxy.popen(python_command(DAEMON, "run", "--config", str(config)), name="throttler", mounts=mounts)
    wait_until(
        lambda: "throttling on" in process.output(), "the throttler works", timeout=LONG_TIMEOUT, process=process
    )
    run_directory = next(path for target, path in mounts.items() if target == "/run/mptcp-throttler")
    yield Throttler(site.proxy, process, type(site.policy)(run_directory), config)
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.output()
    assert "Traceback" not in process.output()


@contextmanager
def traffic_during_the_burst(site: Site) -> Iterator[None]:
    """Exchange data with the burst's server over a separate connection with two subflows."""
    with site.client.entered():
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    with client:
        client.settimeout(LONG_TIMEOUT)
        client.connect((site.proxy.service_address(), PORT))
        with traffic((client, None)):
            wait_until(
                lambda: len(kernel_subflows(site)) == 2, "the connection has both subflows", timeout=LONG_TIMEOUT
            )
            yield


def test_state_is_corrected_after_lost_events(site: Site, throttler: Throttler) -> None:
    burst = Burst(site)
    with traffic_during_the_burst(site):
        check_recovery(burst, site, throttler)


def check_recovery(burst: Burst, site: Site, throttler: Throttler) -> None:
    process = throttler.process
    corrections = []

    def kernel_has(subflows: int) -> bool:
        return len(kernel_subflows(site)) == subflows

    for number in range(ROUNDS):
        # The last burst only closes the many connections of the previous one.
        count = CONNECTIONS if number < ROUNDS - 1 else 3
        process.signal(signal.SIGSTOP)
        try:
            burst.open_connections(count)
            # The joins follow the connections.
            wait_until(partial(kernel_has, 2 + 2 * count), "all connections have both subflows", timeout=LONG_TIMEOUT)
            site.proxy.run(["tc", "qdisc", "del", "dev", "wan0", "root"])
        finally:
            process.signal(signal.SIGCONT)
        expected = kernel_subflows(site)
        capped = {end.replace(":", " ") for end in expected if end.startswith("10.77.1.")}

        def is_correct(expected: set[str] = expected, capped: set[str] = capped) -> bool:
            # Entries of ended subflows are kept for some time, because data may be in flight.
            return status_subflows(throttler) == expected and site.entries().keys() >= capped and is_shaped(site)

        corrections.append(measure_time(is_correct))
        print(f"{len(expected)} subflows: corrected after {corrections[-1].seconds:.2f} s")
    assert any(each.is_in_time for each in corrections), corrections
    counters = read_status(throttler.socket)["counters"]["observers"]
    output = process.output()
    # Check that events really were lost.
    assert counters["kernel_events_lost"] >= ROUNDS - 1
    assert counters["segments_dropped"] > CONNECTIONS
    assert "path-manager events were lost" in output
    assert re.search(r"\d+ segments were dropped by the capture buffer", output)
    assert kernel_subflows(site) == status_subflows(throttler)


def is_shaped(site: Site) -> bool:
    return "class htb 4d50:10 " in site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout
