# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for workers that end repeatedly or hang: the supervisor detects, reports and repairs the fault."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress

import pytest
from proxying import (
    fetch,
    mptcp_listeners,
    skip_if_squid_needs_no_library,
    squid_pid,
    worker_pids_by_name,
    write_configuration,
)

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.ownership import namespace_processes
from mptcp_lab.testbed.services import PROXY_PORT, Proxy, program, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
LONG_LIMIT = 120.0
"""Time limit in seconds for steps of ten or twenty seconds, which take longer on a busy machine."""
WORKERS = ("(squid-1)", "(squid-2)")
LATE_REVIVAL = "hopeless_kid_revival_delay 1 hour"
"""Squid's own default delay before it restarts a worker that it has given up."""
FAILURES = 5
"""After this many failures, each within ten seconds of its start, Squid gives up a worker (Squid's ipc/Kid.h)."""


@pytest.fixture
def start(testbed: Testbed, require: Callable[..., None]) -> Callable[..., Proxy]:
    """Return a function that starts the proxy with two workers and waits until both listen."""
    require("squid", "gcc")
    node = testbed["proxy"]

    def start(*statements: str) -> Proxy:
        proxy = start_proxy(node, write_configuration(node, "workers 2", *statements))
        wait_until(lambda: count_listeners(node) == 2, "both listen", timeout=LONG_LIMIT, process=proxy.process)
        wait_until(lambda: read_status(proxy)[0] != "", "the supervisor sees the listeners", process=proxy.process)
        return proxy

    return start


def count_listeners(node: LiveNode) -> int:
    return len(node.run(["ss", "-HtlnO", "sport", "=", f":{PROXY_PORT}"]).stdout.splitlines())


def kill_until_given_up(proxy: Proxy, names: Collection[str]) -> None:
    """Kill the workers *names* after each start, until Squid gives them up."""
    killed: Counter[str] = Counter()
    dead: set[int] = set()
    absent_since = time.monotonic()

    def are_given_up() -> bool:
        nonlocal absent_since
        for name, pid in worker_pids_by_name(proxy.process).items():
            if name in names and pid not in dead:
                os.kill(pid, signal.SIGKILL)
                dead.add(pid)
                killed[name] += 1
                absent_since = time.monotonic()
        return min(killed[name] for name in names) >= FAILURES and time.monotonic() - absent_since > 2

    wait_until(are_given_up, f"Squid gives up {', '.join(names)}", timeout=LONG_LIMIT, process=proxy.process)


def read_status(proxy: Proxy) -> tuple[str, list[str]]:
    """Return the status that the supervisor wrote: how Squid listens, and other problems."""
    answer = json.loads((proxy.state / "reloads.json").read_text())
    return answer["serving"], answer["problems"]


def run_doctor(node: LiveNode, proxy: Proxy) -> dict[str, dict[str, str]]:
    config = node.directory / f"{node.name}-squid.conf"
    argv = [program("mptcp-proxy"), "doctor", "--json", "--config", str(config)]
    mounts = {"/run/mptcpproxy": proxy.state, "/var/log/mptcpproxy": proxy.logs}
    process = node.popen(argv, name="doctor", mounts=mounts)
    process.wait(LONG_LIMIT)
    return {finding["check"]: finding for finding in json.loads(process.output())}


def test_supervisor_restores_workers_that_squid_gave_up(testbed: Testbed, start: Callable[..., Proxy]) -> None:
    """Defect: Squid restarted the workers only after an hour, but each status display reported that the proxy was
    serving."""
    node, proxy = testbed["proxy"], start()
    first_pid = squid_pid(proxy.process)
    kill_until_given_up(proxy, WORKERS)
    assert worker_pids_by_name(proxy.process).keys().isdisjoint(WORKERS)
    wait_until(lambda: count_listeners(node) == 2, "both listen again", timeout=LONG_LIMIT, process=proxy.process)
    assert squid_pid(proxy.process) == first_pid
    assert mptcp_listeners(node) == {f"*:{PROXY_PORT}"}


@pytest.mark.nightly
def test_supervisor_ends_with_an_error_if_no_worker_listens(testbed: Testbed, start: Callable[..., Proxy]) -> None:
    """Defect: only the coordinator still ran, but the service stayed "active" and reported that it was serving port
    3128."""
    node, proxy = testbed["proxy"], start(LATE_REVIVAL)
    kill_until_given_up(proxy, WORKERS)
    message = f"Squid does not listen on port {PROXY_PORT}; the reason is in"
    wait_until(
        lambda: message in proxy.process.output(),
        "the supervisor reports that no worker listens",
        timeout=LONG_LIMIT,
        process=proxy.process,
    )
    expected = f"NOT LISTENING: port {PROXY_PORT}"
    wait_until(
        lambda: read_status(proxy)[0] == expected,
        "the status reports that no worker listens",
        timeout=LONG_LIMIT,
        process=proxy.process,
    )
    # The supervisor is about to end; stop it until the doctor has run.
    proxy.process.signal(signal.SIGSTOP)
    port = run_doctor(node, proxy)[f"port {PROXY_PORT}"]
    assert (port["status"], port["text"]) == ("fail", "the proxy runs, but no process listens on it")
    proxy.process.signal(signal.SIGCONT)
    assert proxy.process.wait(LONG_LIMIT) == 1
    assert proxy.process.output().count(message) == 1
    assert "Squid runs, and has not listened on any port for long" in proxy.process.output()
    assert namespace_processes(node.namespace) == ()


@pytest.mark.nightly
def test_supervisor_ends_later_if_squid_gave_up_its_only_worker(testbed: Testbed, require: Callable[..., None]) -> None:
    """Defect: the supervisor ended immediately, and after a few restarts systemd gave up the service."""
    require("squid", "gcc")
    node = testbed["proxy"]
    proxy = start_proxy(node, write_configuration(node, "workers 1"))
    wait_until(lambda: read_status(proxy)[0] != "", "the supervisor sees the listeners", process=proxy.process)
    started = time.monotonic()
    dead: set[int] = set()
    reported: set[str] = set()

    def has_ended() -> bool:
        reported.add(read_status(proxy)[0])
        with suppress(ValueError):  # Squid has just ended
            for name, pid in worker_pids_by_name(proxy.process).items():
                if name in WORKERS and pid not in dead:
                    os.kill(pid, signal.SIGKILL)
                    dead.add(pid)
        return not proxy.process.running

    wait_until(has_ended, "the supervisor ends", timeout=LONG_LIMIT)
    assert proxy.process.wait(1) == 1
    assert len(dead) >= FAILURES
    assert f"NOT LISTENING: port {PROXY_PORT}" in reported
    assert time.monotonic() - started > 15
    assert namespace_processes(node.namespace) == ()


@pytest.mark.nightly
def test_missing_worker_is_reported_while_the_other_serves(testbed: Testbed, start: Callable[..., Proxy]) -> None:
    proxy = start(LATE_REVIVAL)
    origin = start_origin(testbed["origin"], {"file": 1000})
    kill_until_given_up(proxy, WORKERS[1:])
    message = f"port {PROXY_PORT}: 1 of 2 workers listen; the reason is in"
    wait_until(
        lambda: message in proxy.process.output(),
        "the supervisor reports the missing worker",
        timeout=LONG_LIMIT,
        process=proxy.process,
    )
    expected_status = f"serving: port {PROXY_PORT} (1 of 2 workers) over Multipath TCP"
    wait_until(
        lambda: read_status(proxy)[0] == expected_status,
        "the status reports the missing worker",
        timeout=LONG_LIMIT,
        process=proxy.process,
    )
    assert fetch(testbed["client"], origin.url("file"), proxy.url()).status == 200
    assert proxy.process.output().count(message) == 1


@pytest.mark.nightly
def test_worker_that_returns_with_plain_tcp_is_reported(testbed: Testbed, start: Callable[..., Proxy]) -> None:
    """Defect: the supervisor checked the listeners only after a start and a reload."""
    skip_if_squid_needs_no_library()
    node, proxy = testbed["proxy"], start()
    # Simulate a preload library that no longer works: with this list it converts no listener to Multipath TCP.
    (proxy.state / "listen-ports").write_text("9\n")
    os.kill(worker_pids_by_name(proxy.process)["(squid-2)"], signal.SIGKILL)
    message = f"port {PROXY_PORT} accepts only plain TCP, not Multipath TCP"
    wait_until(
        lambda: message in proxy.process.output(),
        "the supervisor reports plain TCP",
        timeout=LONG_LIMIT,
        process=proxy.process,
    )
    expected_status = f"serving: port {PROXY_PORT} over PLAIN TCP"
    wait_until(
        lambda: read_status(proxy)[0].startswith(expected_status),
        "the status reports plain TCP",
        timeout=LONG_LIMIT,
        process=proxy.process,
    )
    assert count_listeners(node) == 2


@pytest.mark.nightly
def test_stopped_worker_is_reported(testbed: Testbed, start: Callable[..., Proxy]) -> None:
    node, proxy = testbed["proxy"], start()
    victim = worker_pids_by_name(proxy.process)["(squid-2)"]
    os.kill(victim, signal.SIGSTOP)
    message = (
        f"these processes of Squid hang, and clients that the kernel assigns to them wait: squid-2 (process {victim})"
    )
    wait_until(
        lambda: message in proxy.process.output(),
        "the supervisor reports the hanging worker",
        timeout=LONG_LIMIT,
        process=proxy.process,
    )
    wait_until(
        lambda: [message in problem for problem in read_status(proxy)[1]] == [True],
        "the status reports the hanging worker",
        timeout=LONG_LIMIT,
        process=proxy.process,
    )
    found = run_doctor(node, proxy)["the running service"]
    assert found["status"] == "warn"
    assert message in found["text"]
    os.kill(victim, signal.SIGCONT)
    wait_until(
        lambda: read_status(proxy)[1] == [], "the status has no problem", timeout=LONG_LIMIT, process=proxy.process
    )
    assert proxy.process.output().count("these processes of Squid hang") == 1
