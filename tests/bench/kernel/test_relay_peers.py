# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a quick run of the experiment relay with each proxy, and for the counters of its load clients."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from listening_socket import serving
from rich.console import Console

from mptcp_bench.experiments.relay import SCENARIO
from mptcp_bench.experiments.relay_judging import DIRECT, OURS
from mptcp_bench.experiments.relay_load import BUCKETS, NATIVE, Counters
from mptcp_lab.testbed.services import wait_until

pytestmark = pytest.mark.kernel


@pytest.mark.nightly(except_for=("[ours]",))
@pytest.mark.parametrize("proxies", [OURS, "squid,haproxy,nginx,splice"], ids=["ours", "peers"])
def test_quick_run_has_all_figures_and_no_failure(proxies: str, require: Callable[..., None]) -> None:
    require(*SCENARIO.needs, *(["haproxy", "nginx"] if "haproxy" in proxies else []))
    options = {"proxies": proxies, "clients": "tcp,mptcp2", "runs": "1", "seconds": "1"}
    findings = SCENARIO.run(Console(quiet=True), 1, True, options)
    assert findings.failures == ()
    cells = SCENARIO.cells(SCENARIO.chosen(options, quick=True))
    runs = {(run["cell"], run["part"]): run for run in findings.data["runs"]}
    assert runs.keys() == {(str(cell), task) for cell in cells for task in cell.tasks}
    for (cell, _), run in runs.items():
        assert run["rate"] > 0, run
        assert cell.startswith(DIRECT) or run["cost"] > 0, run
        # HAProxy may use a connection that the origin is about to close, and then answer 502.
        assert run["failures"] <= (50 if cell.startswith("haproxy") else 0), run


HEADER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]) -> Path:
    require("gcc")
    target = tmp_path_factory.mktemp("load") / "relay_load"
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    subprocess.run(["gcc", *flags, "-o", target, NATIVE / "relay_load.c"], check=True)
    return target


def counters(program: Path, answers: list[bytes], condition: Callable[[Counters], bool]) -> Counters:
    """Return the counters of one client as soon as they meet *condition*.

    The server sends *answers* on each connection, one for each request, and then closes the connection.
    """

    def talk(connection: socket.socket) -> None:
        for answer in answers:
            if connection.recv(4096):
                connection.sendall(answer)

    def read() -> Counters:
        return Counters.parse(file.read_bytes())

    file, listener = program.parent / "counters", socket.create_server(("127.0.0.1", 0))
    file.write_bytes(bytes(8 * (len(Counters._fields) - 1 + BUCKETS)))
    argv = [str(program), str(file), "tcp", "127.0.0.1", str(listener.getsockname()[1]), "1", "-1", "", "GET\r\n\r\n"]
    with serving(listener, talk), subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: process.poll() is not None or condition(read()), "the condition is met", timeout=60)
            return read()
        finally:
            process.kill()


def test_load_counts_answers_and_reopens_closed_connections(program: Path) -> None:
    found = counters(program, [HEADER + b"abcd"] * 3, lambda c: c.answers >= 30)
    assert (found.failures, found.answered) == (0, 1)
    assert found.octets >= 4 * 30
    assert found.opened >= 30 // 3
    assert sum(found.latency) >= 30


INVALID = {
    "another status": b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nabcd",
    "incomplete": HEADER + b"ab",
    "too long": HEADER + b"abcdef",
    "without a length": b"HTTP/1.1 200 OK\r\n\r\nabcd",
    "not HTTP": b"\0" * 5000,
}


@pytest.mark.parametrize("answer", INVALID.values(), ids=INVALID)
def test_load_counts_an_invalid_answer_as_a_failure(program: Path, answer: bytes) -> None:
    assert counters(program, [answer], lambda c: c.failures >= 3).answers == 0
