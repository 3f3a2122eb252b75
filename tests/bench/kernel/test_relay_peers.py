# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the proxies of the experiment relay, by TCP and Multipath TCP, and for the counters of its load clients."""

from __future__ import annotations

import itertools
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from listening_socket import serving
from void_runs import valid

from mptcp_bench.experiments import own_processor
from mptcp_bench.experiments.peers import PEERS
from mptcp_bench.experiments.peers.model import PORT
from mptcp_bench.experiments.peers.splice import NATIVE
from mptcp_bench.experiments.relay import tasks_of
from mptcp_bench.experiments.relay_bed import LARGE, Bed, measured, topology
from mptcp_bench.experiments.relay_cells import BASE, BULK, DIRECT, HELD, REBUILT, SLOW, TASKS, Cell, Setting, plan_of
from mptcp_bench.experiments.relay_judging import taken
from mptcp_bench.experiments.relay_load import Counters
from mptcp_lab.testbed import Testbed, TestbedError
from mptcp_lab.testbed.services import wait_until

pytestmark = pytest.mark.kernel
PLAN = plan_of({"runs": "1", "seconds": "0.3", "hold": "20"}, quick=True)
ATTEMPTS = 5
PROGRAMS = {"haproxy": "haproxy", "nginx": "nginx", "traffic-server": "traffic_server"}


@pytest.fixture(scope="module")
def bed(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> Bed:
    require("root", "mptcp", "mptcp-pm", "squid", "apache2", "mptcpize", "ss", "gcc")
    testbed = make_module_testbed(topology(BASE))
    return Bed.built(testbed, BASE, seconds=PLAN.seconds, hold=PLAN.hold)


def tasks_found(bed: Bed, cell: Cell, *wanted: str) -> list[str]:
    """Measure those tasks of *wanted* that *cell* supports, check the results, and return the names of the tasks."""
    tasks = [task for task in tasks_of(PLAN, BASE, cell) if task in wanted]
    # mod_proxy and HAProxy may use a connection that the origin is about to close, and then answer 502.
    part = 0.1 if cell.proxy in ("apache", "haproxy") else 0
    for _ in range(ATTEMPTS):
        found = valid(partial(measured, bed, cell, tasks, 0))
        # On a loaded machine a proxy or its clients may wait for a processor for the whole measured time. Failures are
        # counted since the clients began.
        if all((m.octets or m.task in HELD) and (not part or m.failures <= m.answers * part) for m in found):
            break
    for m in found:
        assert m.failures <= m.answers * part, m
        # A few idle connections need less memory than the kernel's other allocations vary.
        if m.task == "busy":
            assert m.kernel > 0, m
        elif m.task not in HELD:
            assert m.octets > 0, m
            assert m.answers > 0 or m.task in BULK, m
    return [m.task for m in found]


LISTEN = """
import socket, sys, time
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("listens", flush=True)
time.sleep(1)
"""


@pytest.mark.nightly
def test_a_proxy_waits_for_the_port_of_the_one_that_was_killed_before(bed: Bed) -> None:
    program = bed.testbed["proxy"].popen([sys.executable, "-c", LISTEN, str(PORT)])
    wait_until(lambda: "listens" in program.output(), "the port is taken", timeout=20)
    with bed.running(Cell("apache", "tcp")) as process:
        assert process is not None
        assert process.running


@pytest.mark.nightly(besides=("ours", "haproxy"))
@pytest.mark.parametrize(
    ("name", "client", "wanted"),
    [
        (name, client, wanted)
        for name, peer in PEERS.items()
        for client, wanted in (("tcp", ("connect", "requests")), ("mptcp2", ("get",)))
        if client == "tcp" or peer.multipath
    ],
)
def test_a_proxy_carries_what_it_is_asked_for(
    name: str, client: str, wanted: tuple[str, ...], bed: Bed, require: Callable[..., None]
) -> None:
    require(*([PROGRAMS[name]] if name in PROGRAMS else []))
    peer = PEERS[name]
    if name == REBUILT and (why := peer.lacking()):
        pytest.skip(f"NOT TESTED: {why}")
    assert peer.lacking() is None
    assert tasks_found(bed, Cell(name, client), *wanted) == [
        task for task in wanted if peer.tunnels or task != "connect"
    ]


@pytest.mark.nightly
def test_all_that_is_measured_of_a_proxy_and_without_one(bed: Bed) -> None:
    assert tasks_found(bed, Cell("splice", "mptcp1"), *TASKS) == list(TASKS)
    assert tasks_found(bed, Cell(DIRECT, "tcp"), *TASKS) == ["get", "requests", "latency"]


def test_by_ipv6(bed: Bed) -> None:
    six = replace(bed, setting=Setting(family=6))
    assert tasks_found(six, Cell("ours", "mptcp2"), "get", "connect") == ["get", "connect"]


def test_by_links_that_are_the_bottleneck(make_testbed: Callable[..., Testbed]) -> None:
    setting = Setting(slow=True)
    slow = Bed.built(make_testbed(topology(setting)), setting, seconds=1.0)
    (found,) = valid(partial(measured, slow, Cell("splice", "mptcp2"), ["get"], 0))
    assert 0 < found.rate < 1.2 * sum(SLOW) / 8


@pytest.mark.nightly
def test_on_a_processor_of_its_own(make_testbed: Callable[..., Testbed], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel handles the proxy's packets where the proxy runs, all others elsewhere.

    A misplaced proxy voids the run.
    """
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("NOT TESTED: one processor")
    setting = Setting(apart=True)
    testbed = make_testbed(topology(setting))
    apart = Bed.built(testbed, setting, seconds=PLAN.seconds)
    shares = own_processor.here()
    for node, chosen in (("proxy", shares.proxy), ("core", shares.others), ("client", shares.others)):
        written = testbed[node].run(["sh", "-c", "cat /sys/class/net/[!l]*/queues/rx-0/rps_cpus"]).stdout.split()
        assert {int(each.replace(",", ""), 16) for each in written} == {sum(1 << number for number in chosen)}
    with apart.asking(Cell(DIRECT, "tcp"), "get", 1, -1, LARGE) as load:
        for process in (load.process, apart.web.process):
            assert own_processor.strays(process.pid, shares.others) == []
    assert tasks_found(apart, Cell("ours", "mptcp2"), "get") == ["get"]
    monkeypatch.setattr(own_processor, "pin", lambda pid, processors: None)
    with pytest.raises(TestbedError, match=r"splice, tcp: threads \[\d+\] may run on other processors"):
        measured(apart, Cell("splice", "tcp"), ["get"], 0)


def test_clients_of_another_kind_make_a_run_void(bed: Bed) -> None:
    """Stock Squid accepts only TCP, so the clients' Multipath TCP connections fell back to plain TCP."""
    with pytest.raises(TestbedError, match="squid, mptcp1: 0 of 4 connections were Multipath TCP"):
        measured(bed, Cell("squid", "mptcp1"), ["get"], 0)


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


@contextmanager
def clients(
    program: Path, port: int, connections: int = 1, *, rate: float = 0, requests: int = -1, preamble: str = ""
) -> Iterator[Callable[[Callable[[Counters], bool]], Counters]]:
    """Start the load clients on *port*.

    Yield a function that waits until they have counted enough, and returns the counters.
    """
    file = program.parent / "counters"
    file.unlink(missing_ok=True)
    argv: list[str | Path] = [
        program, file, "tcp", "127.0.0.1", str(port), str(connections), str(requests), str(rate), preamble,
        "GET / HTTP/1.1\r\n\r\n",
    ]  # fmt: skip
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)

    def until(enough: Callable[[Counters], bool]) -> Counters:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert process.poll() is None
            if file.exists() and file.stat().st_size:
                found = Counters.of(file.read_bytes())
                if enough(found):
                    return found
        pytest.fail("never enough")

    try:
        yield until
    finally:
        process.kill()
        process.wait()


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
    with (
        server(answers, pause) as port,
        clients(program, port, rate=rate, requests=requests, preamble=preamble) as until,
    ):
        return until(enough)


@contextmanager
def delaying(answers: int, held: Mapping[int, threading.Event]) -> Iterator[int]:
    """Serve each connection *answers* answers. A connection whose number is in *held* waits for its event first."""
    numbers = itertools.count()

    class Talk(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):
                if event := held.get(next(numbers)):
                    event.wait(60)
                for _ in range(answers):
                    if not self.request.recv(4096):
                        break
                    self.request.sendall(HEAD + b"abcd")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Talk) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield listener.server_address[1]
        finally:
            for event in held.values():
                event.set()
            listener.shutdown()
            thread.join(60)


def test_answers_are_counted_and_closed_connections_opened_again(program: Path) -> None:
    found = counted(program, [HEAD + b"abcd"] * 3, lambda c: c.answers >= 30)
    assert found.failures == 0
    assert found.octets >= 4 * 30
    assert found.opened >= 30 // 3
    assert found.standing == 1
    assert sum(found.late) >= 30


@pytest.mark.parametrize(("answers", "requests"), [(10_000, -1), (1, 1)], ids=["kept", "closed after each answer"])
@pytest.mark.parametrize("rate", [0, 1000])
def test_connections_that_stand_wait_until_all_do(program: Path, answers: int, requests: int, rate: float) -> None:
    """Otherwise a connection that comes late would wait behind those that ask without a pause."""
    first, again = threading.Event(), threading.Event()
    held = {0: first} | dict.fromkeys(range(3, 6), again)
    with delaying(answers, held) as port, clients(program, port, 3, requests=requests, rate=rate) as until:
        until(lambda c: c.standing == 2)
        time.sleep(0.3)
        waiting = until(lambda c: True)
        assert (waiting.answers, waiting.opened, waiting.standing, waiting.dealt) == (2, 3, 2, 0)
        first.set()
        if answers == 1:
            until(lambda c: c.opened == 6)
        again.set()
        found = until(lambda c: c.answers >= 30)
        assert (found.standing, found.failures) == (3, 0)


def test_all_connections_stand_however_low_the_rate(program: Path) -> None:
    """One connection alone could answer all requests that are due.

    After the first one of each, the next is due in 1000 s.
    """
    with delaying(10_000, {}) as port, clients(program, port, 3, rate=0.001) as until:
        assert until(lambda c: c.standing == 3).answers in (3, 4)


def test_connections_of_which_nothing_is_asked_stand_when_they_rest(program: Path) -> None:
    tunnel = b"HTTP/1.1 200 OK\r\n\r\n"
    found = counted(program, [tunnel, b""], lambda c: c.resting == 1, requests=0, preamble="CONNECT a:443\r\n\r\n")
    assert (found.standing, found.answers) == (1, 0)


def test_a_rate_is_kept(program: Path) -> None:
    began = time.monotonic()
    # The first answer does not count towards the rate.
    found = counted(program, [HEAD + b"abcd"] * 1000, lambda c: c.answers >= 51, rate=100)
    assert time.monotonic() - began >= 0.49
    assert found.failures == 0


def test_a_request_that_was_lost_with_its_connection_is_asked_again(program: Path) -> None:
    """Each second request ends with a closed connection.

    The client repeats it, so that only one answer is outstanding.
    """
    found = counted(program, [HEAD + b"abcd", b""], lambda c: c.answers >= 20, rate=1000)
    assert found.failures == 0
    assert 0 <= found.dealt - (found.answers - found.standing) <= 1


def test_connections_rest_when_they_have_had_their_answers(program: Path) -> None:
    found = counted(program, [HEAD + b"abcd"] * 9, lambda c: c.resting == 1, requests=2)
    assert (found.answers, found.octets, found.failures) == (2, 8, 0)


@pytest.mark.parametrize("requests", [1, 2])
def test_the_first_answer_is_counted_from_when_its_connection_was_opened(program: Path, requests: int) -> None:
    """The tunnel's answer comes late. Of the answers behind it only the first has waited for it."""
    answers = [b"HTTP/1.1 200 OK\r\n\r\n", *[HEAD + b"abcd"] * 9]
    preamble = "CONNECT a:443 HTTP/1.1\r\n\r\n"

    def least() -> float:
        """Return the seconds of the fastest answer."""
        found = counted(program, answers, lambda c: c.resting == 1, requests=requests, preamble=preamble, pause=0.3)
        assert found.answers == requests
        assert taken(found.late, (100,))[0] > 0.29
        return taken(found.late, (1,))[0]

    # The second answer did not wait for the tunnel. On a busy machine it may still be slow, but not in each attempt.
    assert (min(least() for _ in range(ATTEMPTS)) > 0.29) is (requests == 1)


def test_connections_that_are_closed_while_they_rest_are_opened_again(program: Path) -> None:
    found = counted(program, [HEAD + b"abcd"], lambda c: c.opened >= 5, requests=1)
    assert found.failures == 0
    assert found.resting <= 1


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
def test_what_is_no_whole_answer_is_a_failure(program: Path, answer: bytes) -> None:
    found = counted(program, [answer], lambda c: c.failures >= 3)
    assert found.answers == 0
