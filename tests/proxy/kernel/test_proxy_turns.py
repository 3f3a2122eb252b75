# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for fair turns (fair_turns.c): a client with hundreds of busy connections does not delay another client.

The experiment ``crowds`` measures the times, which depend on the machine. This test compares them in one run with the
times when Squid serves events in the kernel's order.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from proxying import worker_pids, write_configuration

from mptcp_lab.testbed import LiveNode, Testbed, paths
from mptcp_lab.testbed.crowds import timed_requests
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.services import PROXY_PORT, Origin, Proxy, python_command, start_origin, start_proxy, wait_until
from mptcp_lab.testbed.topologies import with_second_client

pytestmark = pytest.mark.kernel
BUSY_CONNECTIONS = 400
"""Number of the busy client's connections. Squid serves at most 800 connections of an address."""
REQUEST_COUNT = 15
MAX_SHARE = 0.25
"""Maximum of the median time with fair turns, divided by the median in the kernel's order. A measurement gave 0.06."""
# A client that repeats its request on each connection after each answer, and prints each completed round.
CLIENT = """
import selectors, socket, sys
proxy, port, origin, count = sys.argv[1:]
request = f"GET http://{origin}/file HTTP/1.1\\r\\nHost: {origin}\\r\\n\\r\\n".encode()
selector, received, answers, failed = selectors.DefaultSelector(), {}, {}, 0
for number in range(int(count)):
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    client.connect((proxy, int(port)))
    client.sendall(request)
    selector.register(client, selectors.EVENT_READ)
    received[client], answers[client] = b"", 0
printed = 0
while True:
    for key, _ in selector.select():
        client = key.fileobj
        received[client] += client.recv(65536)
        head, _, body = received[client].partition(b"\\r\\n\\r\\n")
        if len(body) == 1000:
            assert head.startswith(b"HTTP/1.1 200 "), head
            received[client] = b""
            answers[client] += 1
            client.sendall(request)
    while printed < min(answers.values()):
        printed += 1
        print(printed, flush=True)
"""
WAITING_CONNECTIONS = 300
"""Number of a client's connections that Squid has not accepted yet."""
# A client that sends one request on each connection, and prints the times of the answers.
SINGLE_REQUESTS = """
import json, selectors, socket, sys, time
proxy, port, origin, count = sys.argv[1:]
request = f"GET http://{origin}/file HTTP/1.1\\r\\nHost: {origin}\\r\\n\\r\\n".encode()
selector, received, answered = selectors.DefaultSelector(), {}, []
for number in range(int(count)):
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    client.connect((proxy, int(port)))
    client.sendall(request)
    selector.register(client, selectors.EVENT_READ)
    received[client] = b""
print("sent", flush=True)
while len(answered) < len(received):
    for key, _ in selector.select():
        client = key.fileobj
        received[client] += client.recv(65536)
        head, _, body = received[client].partition(b"\\r\\n\\r\\n")
        if len(body) == 1000:
            assert head.startswith(b"HTTP/1.1 200 "), head
            answered.append(time.monotonic())
            selector.unregister(client)
print(json.dumps(answered))
"""


@pytest.fixture
def hosts(make_testbed: Callable[..., Testbed], require: Callable[..., None]) -> Testbed:
    require("squid", "apache2", "mptcp", "mptcpize")
    return make_testbed(with_second_client(paths((None, None), name="turns"), "others"))


@contextmanager
def running_proxy(host: LiveNode, turns: str) -> Iterator[Proxy]:
    proxy = start_proxy(host, write_configuration(host, "workers 1"), arguments=("--turns", turns))
    try:
        yield proxy
    finally:
        proxy.process.signal(signal.SIGINT)
        proxy.process.wait(60)


def time_with_busy_client(hosts: Testbed, proxy: Proxy, origin: Origin) -> float:
    """Return the median duration of the other client's requests, in seconds, while Squid repeatedly serves all busy
    connections."""
    addresses = proxy.host.service_address(), str(PROXY_PORT), origin.host.service_address(), str(BUSY_CONNECTIONS)
    busy = hosts["others"].popen(python_command(CLIENT, *addresses), name="busy")

    def wait_for_answers(times: int) -> None:
        wait_until(
            lambda: f"{times}\n" in busy.output(), f"each connection gets {times} answers", timeout=120, process=busy
        )

    try:
        wait_for_answers(1)
        timed = timed_requests(hosts["client"], proxy, origin, REQUEST_COUNT)
        assert (len(timed.seconds), timed.failed) == (REQUEST_COUNT, 0)
        wait_for_answers(3)
        return statistics.median(timed.seconds)
    finally:
        busy.kill()


def count_earlier_answers(hosts: Testbed, proxy: Proxy, origin: Origin) -> int:
    """Return how many waiting requests of a client Squid answers before another client's later request.

    The requests wait on connections that the stopped worker has not accepted yet.
    """
    addresses = proxy.host.service_address(), str(PROXY_PORT), origin.host.service_address()
    [worker] = worker_pids(proxy.process)
    processes = []
    os.kill(worker, signal.SIGSTOP)
    try:
        for name, count in (("others", WAITING_CONNECTIONS), ("client", 1)):
            process = hosts[name].popen(python_command(SINGLE_REQUESTS, *addresses, str(count)), name="once")
            processes.append(process)
            wait_until(partial(has_output, process, "sent"), f"{name} sends requests", timeout=60, process=process)
    finally:
        os.kill(worker, signal.SIGCONT)
    times = []
    for process in processes:
        process.wait(120)
        times.append(json.loads(process.output().splitlines()[-1]))
    others, [own_time] = times
    return sum(each < own_time for each in others)


def has_output(process: Process, text: str) -> bool:
    return text in process.output()


def in_both_orders(hosts: Testbed, measure: Callable[[Testbed, Proxy, Origin], float]) -> tuple[float, float]:
    """Return the result of *measure* with fair turns, and in the kernel's order."""
    origin = start_origin(hosts["origin"], {"file": 1000})
    results = []
    for turns in ("fair", "kernel"):
        with running_proxy(hosts["proxy"], turns) as proxy:
            results.append(measure(hosts, proxy, origin))
    fair, kernel = results
    return fair, kernel


def test_new_client_does_not_wait_for_all_earlier_connections(hosts: Testbed) -> None:
    """Defect: the library accepted one connection per turn, so all earlier connections were served before a new
    client."""
    fair, kernel = in_both_orders(hosts, count_earlier_answers)
    print(f"of {WAITING_CONNECTIONS} requests, {fair} are answered first; in the kernel's order {kernel}")
    assert fair < 0.75 * kernel


@pytest.mark.nightly
def test_busy_client_does_not_delay_another(hosts: Testbed) -> None:
    fair, kernel = in_both_orders(hosts, time_with_busy_client)
    print(f"median {1e3 * fair:.1f} ms, in the kernel's order {1e3 * kernel:.1f} ms")
    assert fair < MAX_SHARE * kernel
