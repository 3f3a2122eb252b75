"""Many connections that do nothing, beside a client that does: none takes more than its share, nobody waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from proxying import configuration, workers

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import Proxy, python_command, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
MOST, MOST_SERVED = 1000, 800
"""Connections of one client address: client_ip_max_connections and the acl too_many in conf/squid.conf."""
MOST_MEMORY = 500_000
"""Resident kB of Squid's worker with 7,500 connections; 200,000 to 260,000 were measured."""
MOST_DESCRIPTORS = 9000
"""Of that worker: 8,013 were measured, for a tunnel has two. LimitNOFILE of mptcp-proxy.service is 65,536."""
SLACK_SECONDS, MEDIAN_SLACK_SECONDS = 0.02, 0.5
"""What a crowd may add to the quickest of 40 requests, and to their median, beside twice its time alone (1 to 4 ms).

What else the machine does delays many of them, but hardly all.
"""
MANY = """
import collections, json, socket, sys, time
kind, count, *addresses = sys.argv[1:]
said = {
    "slow": b"GET http://10.77.9.2/file HTTP/1.1\\r\\nX: ",
    "idle": b"GET http://10.77.9.2/file HTTP/1.1\\r\\nHost: 10.77.9.2\\r\\n\\r\\n",
    "tunnel": b"CONNECT 10.77.9.2:443 HTTP/1.1\\r\\n\\r\\n",
}[kind]
held, got = [], collections.Counter()
for number in range(int(count)):
    # Every second one by Multipath TCP.
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262 if number % 2 else 0)
    connection.settimeout(120)
    try:
        connection.bind((addresses[number % len(addresses)], 0))
        connection.connect(("10.77.8.2", 3128))
        connection.sendall(said)
        if kind != "slow":
            got[connection.recv(10000)[9:12].decode()] += 1
        held.append(connection)
    except OSError:
        got["refused"] += 1
def is_open(connection):
    connection.setblocking(False)
    try:
        return bool(connection.recv(100))
    except BlockingIOError:
        return True
    except OSError:
        return False
if kind == "slow":
    # Until the proxy has closed those that it does not take.
    count, before = 0, -1
    while count != before:
        time.sleep(3)
        count, before = sum(map(is_open, held)), count
    got["open"] = count
print(json.dumps(got), flush=True)
time.sleep(600)
"""
NORMAL = """
import json, socket, time
found = []
for _ in range(40):
    begin = time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as connection:
        connection.settimeout(120)
        connection.bind(("10.77.2.2", 0))
        connection.connect(("10.77.8.2", 3128))
        connection.sendall(b"GET http://10.77.9.2/file HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200"), answer[:100]
    found.append(time.monotonic() - begin)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def proxy(module_testbed: Testbed, require: Callable[..., None]) -> Proxy:
    require("squid", "apache2", "gcc")
    start_origin(module_testbed["origin"], {"file": 1000})
    # Headers that are not complete yet shall not be given up while a busy machine opens the last connections.
    patient = ("request_start_timeout 10 minutes", "request_timeout 10 minutes")
    return start_proxy(module_testbed["proxy"], configuration(module_testbed["proxy"], *patient, "workers 1"))


@pytest.fixture
def two_workers(testbed: Testbed, require: Callable[..., None]) -> Proxy:
    require("squid", "apache2", "gcc")
    start_origin(testbed["origin"], {"file": 1000})
    return start_proxy(testbed["proxy"], configuration(testbed["proxy"], "workers 2"))


@contextmanager
def crowd(client: LiveNode, kind: str, count: int, *addresses: str) -> Iterator[dict[str, int]]:
    """Have *count* connections; what each got, by its status."""
    process = client.popen(python_command(MANY, kind, str(count), *addresses), name=kind)
    try:
        wait_until(lambda: "}" in process.output(), "all are there", process=process, timeout=600)
        got: dict[str, int] = json.loads(process.output())
        yield got
    finally:
        process.stop(60)


def times(client: LiveNode) -> list[float]:
    """Return the seconds of 40 requests of a client by itself."""
    found: list[float] = json.loads(client.run(python_command(NORMAL), timeout=600).stdout)
    return found


def waits(alone: Sequence[float], beside: Sequence[float]) -> bool:
    """Whether who was served *alone* in these times waits for others now."""
    quick = min(beside) <= 2 * min(alone) + SLACK_SECONDS
    return not (quick and median(beside) <= 2 * median(alone) + MEDIAN_SLACK_SECONDS)


def worker(proxy: Proxy) -> Any:
    (pid,) = workers(proxy.process)
    return Path(f"/proc/{pid}")


def descriptors(proxy: Proxy) -> int:
    return len(list((worker(proxy) / "fd").iterdir()))


def memory(proxy: Proxy) -> int:
    (line,) = (each for each in (worker(proxy) / "status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1])


def test_who_waits_is_told_from_who_is_on_a_busy_machine() -> None:
    alone = [0.004] * 39 + [3.0]
    assert not waits(alone, [0.01] + [0.4] * 39), "a busy machine"
    assert waits(alone, [0.03] * 40), "each is late"
    assert waits(alone, [0.004] * 19 + [1.0] * 21), "every second one is"


def test_slow_headers_of_one_client_are_bounded(module_testbed: Testbed, proxy: Proxy) -> None:
    """2,500 of them took all descriptors once, and nobody else got an answer."""
    client = module_testbed["client"]
    alone = times(client)
    with crowd(client, "slow", 2500, "10.77.1.2") as got:
        assert got["open"] <= MOST + 1
        assert got["open"] >= MOST - 1, "what is allowed is not refused"
        assert descriptors(proxy) < MOST + 200
        assert not waits(alone, times(client))
    assert "10.77.1.2" in (proxy.logs / "cache.log").read_text()
    wait_until(lambda: descriptors(proxy) < 200, "they are gone", timeout=120)


def test_requests_of_one_client_on_too_many_connections_are_refused(module_testbed: Testbed, proxy: Proxy) -> None:
    with crowd(module_testbed["client"], "idle", MOST + 200, "10.77.1.2") as got:
        assert abs(got["200"] - MOST_SERVED) <= 2
        assert abs(got["429"] - (MOST - MOST_SERVED)) <= 2
    wait_until(lambda: descriptors(proxy) < 200, "they are gone", timeout=120)


def test_thousands_of_all_kinds_keep_nobody_waiting(module_testbed: Testbed, proxy: Proxy) -> None:
    client = module_testbed["client"]
    addresses = [f"10.77.1.{last}" for last in range(10, 23)]
    for each in addresses:
        client.run(["ip", "address", "add", f"{each}/24", "dev", "eth0"])
    alone = times(client)
    with (
        crowd(client, "idle", 5000, *addresses[:10]) as idle,
        crowd(client, "tunnel", 500, "10.77.1.2") as tunnels,
        crowd(client, "slow", 2000, *addresses[10:]) as slow,
    ):
        assert idle == {"200": 5000}
        assert tunnels == {"200": 500}
        assert slow == {"open": 2000}
        beside = times(client)
        for name, found in (("alone", alone), ("beside", beside)):
            print(f"{name}: {min(found):.4f} s, median {median(found):.4f} s")
        print(f"{descriptors(proxy)} descriptors, {memory(proxy)} kB")
        assert not waits(alone, beside)
        assert 8000 <= descriptors(proxy) < MOST_DESCRIPTORS
        assert memory(proxy) < MOST_MEMORY
    wait_until(lambda: descriptors(proxy) < 200, "they are gone", timeout=120)


def test_with_two_workers_a_client_has_the_share_of_each(testbed: Testbed, two_workers: Proxy) -> None:
    """The kernel deals connections out by a hash, about evenly; each worker counts its own."""
    with crowd(testbed["client"], "idle", 2 * MOST + 400, "10.77.1.2") as got:
        assert abs(got["200"] - 2 * MOST_SERVED) <= 4
        assert abs(got["429"] - 2 * (MOST - MOST_SERVED)) <= 4
        held = [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in workers(two_workers.process)]
        # Two workers with what they may take, and a coordinator that takes none.
        assert [MOST <= each < MOST + 200 for each in sorted(held)] == [False, True, True]
