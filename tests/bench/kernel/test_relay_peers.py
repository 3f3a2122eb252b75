# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the proxies of the experiment relay, over TCP and Multipath TCP, and for its load clients' counters."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from listening_socket import serving
from rich.console import Console

from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.relay import SCENARIO, measure
from mptcp_bench.experiments.relay_bed import Bed
from mptcp_bench.experiments.relay_judging import DIRECT, HELD, OURS, Cell
from mptcp_bench.experiments.relay_load import NATIVE, Counters
from mptcp_lab.testbed import Testbed, TestbedError, paths

pytestmark = pytest.mark.kernel


@pytest.mark.nightly(besides=("[ours]",))
@pytest.mark.parametrize("proxies", [OURS, "squid,haproxy,splice"], ids=["ours", "peers"])
def test_quick_run_has_all_figures_and_no_failure(proxies: str, require: Callable[..., None]) -> None:
    require(*SCENARIO.needs, *(["haproxy"] if "haproxy" in proxies else []))
    options = {"proxies": proxies, "clients": "tcp,mptcp2", "runs": "1", "seconds": "0.3", "hold": "20"}
    findings = SCENARIO.run(Console(quiet=True), 1, True, options)
    assert findings.failures == ()
    cells = SCENARIO.cells(SCENARIO.chosen(options, quick=True))
    runs = {(run["cell"], run["part"]): run for run in findings.data["runs"]}
    assert runs.keys() == {(str(cell), task) for cell in cells for task in cell.tasks}
    for (cell, task), run in runs.items():
        assert task in HELD or run["rate"] > 0, run
        assert cell.startswith(DIRECT) or run["cost"] > 0, run
        # HAProxy may use a connection that the origin is about to close, and then answer 502.
        assert run["failures"] <= (50 if cell.startswith("haproxy") else 0), run


def test_run_is_void_when_clients_fall_back_to_tcp(
    make_testbed: Callable[..., Testbed], require: Callable[..., None]
) -> None:
    """Stock Squid accepts only TCP, so the clients' Multipath TCP connections fell back to plain TCP."""
    require(*SCENARIO.needs)
    bed = Bed.on(make_testbed(paths((None, None), name="relay")), 0.3)
    with pytest.raises(TestbedError, match="squid, mptcp1: 0 of 4 connections were Multipath TCP"):
        measure(bed, Turn(Cell("squid", "mptcp1", tasks=("get",)), "", 1))


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"


@contextmanager
def server(answers: list[bytes]) -> Iterator[int]:
    """Send *answers* on each connection, one for each request, and then close the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        for answer in answers:
            if not connection.recv(4096):
                break
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


def counters(program: Path, answers: list[bytes], enough: Callable[[Counters], bool]) -> Counters:
    """Return the counters of one client of a server with these *answers*, as soon as *enough* is true of them."""
    file = program.parent / "counters"
    file.unlink(missing_ok=True)
    with server(answers) as port:
        argv = [str(program), str(file), "tcp", "127.0.0.1", str(port), "1", "-1", "", "GET / HTTP/1.1\r\n\r\n"]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                assert process.poll() is None
                if file.exists() and file.stat().st_size and enough(found := Counters.of(file.read_bytes())):
                    return found
            pytest.fail("the counters are not as expected")
        finally:
            process.kill()
            process.wait()


def test_load_counts_answers_and_reopens_closed_connections(program: Path) -> None:
    found = counters(program, [HEAD + b"abcd"] * 3, lambda c: c.answers >= 30)
    assert (found.failures, found.standing) == (0, 1)
    assert found.octets >= 4 * 30
    assert found.opened >= 30 // 3
    assert sum(found.latency) >= 30


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
    assert counters(program, [answer], lambda c: c.failures >= 3).answers == 0
