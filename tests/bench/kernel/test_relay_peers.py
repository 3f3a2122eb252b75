# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the proxies of the experiment relay, by TCP and Multipath TCP, and for the counters of its load clients."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from listening_socket import serving
from rich.console import Console
from void_runs import valid

from mptcp_bench.experiments import own_processor
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.peers import peers
from mptcp_bench.experiments.relay import SCENARIO, measure
from mptcp_bench.experiments.relay_bed import Bed
from mptcp_bench.experiments.relay_judging import BASE, LIMIT, OURS, REBUILT, Carried, Cell, Setting
from mptcp_bench.experiments.relay_load import NATIVE, Counters, latencies
from mptcp_lab.testbed import Testbed, TestbedError, paths

pytestmark = pytest.mark.kernel
ATTEMPTS = 5
PROGRAMS = {"haproxy": "haproxy", "nginx": "nginx", "traffic-server": "traffic_server"}


def built(testbed: Testbed, setting: Setting = BASE) -> Bed:
    return Bed.built(testbed, 0.3, setting=setting, held=20)


@pytest.fixture(scope="module")
def bed(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> Bed:
    require("root", "mptcp", "mptcp-pm", "squid", "apache2", "mptcpize", "ss", "gcc")
    return built(make_module_testbed(paths((None, None), name="relay")))


def carried(bed: Bed, proxy: str, client: str, *tasks: str) -> Carried:
    """Measure *tasks*, and check that answers came, and were right."""
    cell = Cell(proxy, client, bed.setting, tasks)
    # mod_proxy and HAProxy may use a connection that the origin is about to close, and then answer 502.
    most = 50 if proxy in ("apache", "haproxy") else 0
    for _ in range(ATTEMPTS):
        found = valid(partial(measure, bed, Turn(cell, "", 1)))
        # On a loaded machine a proxy or its clients may wait for a processor for the whole measured time.
        if all(found.rates.values()) and found.failures <= most:
            break
    assert found.failures <= most, found
    assert all(rate > 0 for rate in found.rates.values()), found
    return found


@pytest.mark.nightly(besides=("ours", "haproxy"))
@pytest.mark.parametrize(
    ("name", "client", "wanted"),
    [
        (name, client, wanted)
        for name, peer in peers().items()
        for client, wanted in (("tcp", ("connect", "requests")), ("mptcp2", ("get",)))
        if client == "tcp" or peer.multipath
    ],
)
def test_proxy_carries_requests_tunnels_and_two_subflows(
    name: str, client: str, wanted: tuple[str, ...], bed: Bed, require: Callable[..., None]
) -> None:
    require(*([PROGRAMS[name]] if name in PROGRAMS else []))
    peer = peers()[name]
    if name == REBUILT and (why := peer.lacking()):
        pytest.skip(f"NOT TESTED: {why}")
    assert peer.lacking() is None
    tasks = [task for task in wanted if peer.tunnels or task != "connect"]
    assert list(carried(bed, name, client, *tasks).rates) == tasks


def test_quick_run_has_all_figures_and_no_failure(require: Callable[..., None]) -> None:
    require("root", "mptcp", "mptcp-pm", "squid", "apache2", "mptcpize", "ss", "ethtool", "gcc")
    options = {"proxies": OURS, "clients": "mptcp2", "family": "6", "runs": "1", "seconds": "0.3", "hold": "20"}
    findings = SCENARIO.run(Console(quiet=True), 1, True, options)
    assert findings.failures == ()
    direct, ours = sorted(findings.data["runs"], key=lambda run: bool(run["costs"]))
    assert set(ours["costs"]) == {"get", "connect", "requests"}
    assert all(cost > 0 for cost in ours["costs"].values())
    assert all(rate > 0 for run in (direct, ours) for rate in run["rates"].values())
    assert ours["failures"] == 0


@pytest.mark.nightly
def test_run_is_void_when_a_proxy_leaves_its_own_processor(
    make_testbed: Callable[..., Testbed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel handles the proxy's packets where the proxy runs, all others elsewhere."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("NOT TESTED: one processor")
    testbed = make_testbed(paths((None, None), name="relay"))
    apart = built(testbed, Setting(apart=True))
    shares = own_processor.here()
    for node, chosen in (("proxy", shares.proxy), ("core", shares.others), ("client", shares.others)):
        written = testbed[node].run(["sh", "-c", "cat /sys/class/net/[!l]*/queues/rx-0/rps_cpus"]).stdout.split()
        assert {int(each.replace(",", ""), 16) for each in written} == {sum(1 << number for number in chosen)}
    assert own_processor.strays(apart.web.process.pid, shares.others) == []
    carried(apart, OURS, "mptcp2", "get")
    monkeypatch.setattr(own_processor, "pin", lambda pid, processors: None)
    with pytest.raises(TestbedError, match=r"splice, tcp, .*: threads \[\d+\] may run on other processors"):
        measure(apart, Turn(Cell(LIMIT, "tcp", apart.setting, ("get",)), "", 1))


def test_run_is_void_when_clients_fall_back_to_tcp(bed: Bed) -> None:
    """Stock Squid accepts only TCP, so the clients' Multipath TCP connections fell back to plain TCP."""
    with pytest.raises(TestbedError, match="squid, mptcp1: 0 of 4 connections were Multipath TCP"):
        measure(bed, Turn(Cell("squid", "mptcp1", tasks=("get",)), "", 1))


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"


@contextmanager
def server(answers: list[bytes], pause: float = 0) -> Iterator[int]:
    """Serve each connection *answers*, one for each request, the first after *pause* s; then close it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        for number, answer in enumerate(answers):
            if not connection.recv(4096):
                break
            time.sleep(0 if number else pause)
            connection.sendall(answer)

    with serving(listener, talk):
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]) -> Path:
    require("gcc")
    target = tmp_path_factory.mktemp("load") / "relay_load"
    subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-o", target,
         NATIVE / "relay_load.c"],
        check=True,
    )  # fmt: skip
    return target


def counted(
    program: Path,
    answers: list[bytes],
    enough: Callable[[Counters], bool],
    *,
    rate: float = 0,
    requests: int = -1,
    preamble: str = "",
    pause: float = 0,
) -> Counters:
    """Return the counters of one client of a server with these *answers*, as soon as *enough* accepts them."""
    file = program.parent / "counters"
    file.unlink(missing_ok=True)
    request = "GET / HTTP/1.1\r\n\r\n"
    with server(answers, pause) as port:
        where = ["tcp", "127.0.0.1", str(port), "1"]
        process = subprocess.Popen(
            [program, file, *where, str(requests), str(rate), preamble, request], stdout=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                assert process.poll() is None
                if file.exists() and file.stat().st_size and enough(found := Counters.of(file.read_bytes())):
                    return found
            pytest.fail("never enough")
        finally:
            process.kill()
            process.wait()


def test_load_counts_answers_and_reopens_closed_connections(program: Path) -> None:
    found = counted(program, [HEAD + b"abcd"] * 3, lambda c: c.answers >= 30)
    assert found.failures == 0
    assert found.octets >= 4 * 30
    assert found.opened >= 30 // 3
    assert found.standing == 1
    assert sum(found.late) >= 30


def test_load_keeps_its_rate_when_connections_are_closed(program: Path) -> None:
    """Each second request ends with a closed connection, and is repeated."""
    began = time.monotonic()
    found = counted(program, [HEAD + b"abcd", b""], lambda c: c.answers >= 51, rate=100)
    # The first answer does not count towards the rate.
    assert time.monotonic() - began >= 0.49
    assert found.failures == 0
    assert 0 <= found.dealt - (found.answers - found.standing) <= 1


@pytest.mark.parametrize("requests", [1, 2])
def test_load_times_the_first_answer_from_connect(program: Path, requests: int) -> None:
    """The tunnel's answer comes late. Of the answers behind it only the first has waited for it."""
    answers = [b"HTTP/1.1 200 OK\r\n\r\n", *[HEAD + b"abcd"] * 9]
    preamble = "CONNECT a:443 HTTP/1.1\r\n\r\n"

    def least() -> float:
        """Return the seconds of the fastest answer."""
        found = counted(program, answers, lambda c: c.resting == 1, requests=requests, preamble=preamble, pause=0.3)
        assert found.answers == requests
        assert latencies(found.late, (100,))[0] > 0.29
        return latencies(found.late, (1,))[0]

    # The second answer did not wait for the tunnel. On a busy machine it may still be slow, but not in each attempt.
    assert (min(least() for _ in range(ATTEMPTS)) > 0.29) is (requests == 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nabcd",
        HEAD + b"ab",
        HEAD + b"abcdef",
        b"HTTP/1.1 200 OK\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent",
        b"\0" * 5000,
    ],
    ids=["another status", "broken off", "too long", "without a length", "half a head", "no HTTP"],
)
def test_load_counts_a_failure_when_an_answer_is_not_whole(program: Path, answer: bytes) -> None:
    found = counted(program, [answer], lambda c: c.failures >= 3)
    assert found.answers == 0
