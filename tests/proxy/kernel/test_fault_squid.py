# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with clients that send requests while Squid is killed, reloaded or restarted, rotates logs, or has full
disks."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from proxying import mptcp_listeners, squid_pid, worker_pids_by_name, write_configuration
from small_disk import fill, small_disk
from time_limit import slowness

from mptcp_lab.agent import processors
from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import PROXY_PORT, Proxy, python_command, start_origin, start_proxy, wait_until
from mptcp_proxy import log_files

pytestmark = pytest.mark.kernel
LONG_LIMIT = 60.0
"""Time limit in seconds for steps of one or two seconds, which take longer on a busy machine."""
CLIENT_COUNT, PAUSE_SECONDS = 4, 0.05
"""Number of concurrent clients, and seconds between two requests of one client."""
MAX_RETRY_SECONDS = 5.0
"""Maximum seconds until the supervisor tries again. Normally it tries again after one second."""
COORDINATOR = "(squid-coord-3)"
# A client program. It sends each request with a unique name on a new connection, and records name, outcome, time and
# duration. It ends when the file named by its last argument exists.
CLIENTS = """
import itertools, json, os, socket, sys, threading, time
proxy, port, origin, threads, pause, record, end_file = sys.argv[1:]
outcomes, numbers = open(record, "a", buffering=1), itertools.count()
def request(name):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as connection:
        connection.settimeout(60)
        connection.connect((proxy, int(port)))
        head = f"GET http://{origin}/{name} HTTP/1.1\\r\\nHost: {origin}\\r\\nConnection: close"
        connection.sendall(f"{head}\\r\\n\\r\\n".encode())
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer.split(None, 2)[1].decode() if answer else "nothing"
def run():
    while not os.path.exists(end_file):
        name, start = f"request-{next(numbers)}", time.time()
        try:
            outcome = request(name)
        except OSError as error:
            outcome = type(error).__name__
        outcomes.write(json.dumps([name, outcome, time.time(), time.time() - start]) + "\\n")
        time.sleep(float(pause))
for thread in [threading.Thread(target=run) for _ in range(int(threads))]:
    thread.start()
"""
SERVED = "404"
"""The origin has no files of the requested names, so a served request gets 404."""
REFUSED = "ConnectionRefusedError"
LOST = {"ConnectionResetError", "BrokenPipeError", "nothing"}
"""Outcomes of requests whose connection was accepted by a process that then died."""


@dataclass(frozen=True)
class Request:
    """Outcome of one request."""

    name: str
    outcome: str
    ended_at: float
    seconds: float


class Traffic:
    """Requests of several clients in parallel. Each client sends one request after the other."""

    def __init__(self, record: Path) -> None:
        self._record = record

    def ended_requests(self) -> list[Request]:
        lines = self._record.read_text().splitlines(keepends=True)
        return [Request(*json.loads(line)) for line in lines if line.endswith("\n")]  # the last line may be incomplete

    def failed_requests(self) -> list[Request]:
        return [each for each in self.ended_requests() if each.outcome != SERVED]

    def served_since(self, moment: float) -> int:
        """Return the number of served requests that began after *moment*."""
        return sum(each.outcome == SERVED and each.ended_at - each.seconds > moment for each in self.ended_requests())

    def wait_until_served(self) -> float:
        """Wait until requests are served again. Return the longest time in seconds between two served requests."""
        start = time.time()
        wait_until(lambda: self.served_since(start) >= 5 * CLIENT_COUNT, "requests are served", timeout=LONG_LIMIT)
        served = sorted(each.ended_at for each in self.ended_requests() if each.outcome == SERVED)
        return max(later - earlier for earlier, later in itertools.pairwise(served))


@contextmanager
def traffic(testbed: Testbed) -> Iterator[Traffic]:
    directory = testbed.directory
    record, end_file = directory / "traffic", directory / "traffic-end"
    record.write_text("")
    end_file.unlink(missing_ok=True)
    proxy, origin = (testbed[name].service_address() for name in ("proxy", "origin"))
    arguments = (proxy, str(PROXY_PORT), origin, str(CLIENT_COUNT), str(PAUSE_SECONDS), str(record), str(end_file))
    process = testbed["client"].popen(python_command(CLIENTS, *arguments), name="traffic")
    running = Traffic(record)
    try:
        running.wait_until_served()
        yield running
    finally:
        end_file.write_text("")
        assert process.wait(LONG_LIMIT) == 0, process.output()


@pytest.fixture
def start(testbed: Testbed, require: Callable[..., None]) -> Callable[[int], Proxy]:
    """Return a function that starts the proxy with a number of workers and waits until all of them listen."""
    require("squid", "apache2", "gcc")
    start_origin(testbed["origin"], {"file": 10})
    node = testbed["proxy"]

    def start(count: int) -> Proxy:
        proxy = start_proxy(node, write_configuration(node, f"workers {count}"))
        expected_names = {f"(squid-{number + 1})" for number in range(count)}
        wait_until(
            lambda: listeners(node, proxy) == expected_names,
            "all workers listen",
            timeout=LONG_LIMIT,
            process=proxy.process,
        )
        return proxy

    return start


def listeners(node: LiveNode, proxy: Proxy) -> set[str]:
    """Return the names of the Squid processes that hold a listener."""
    sockets = node.run(["ss", "-HtlnpO", "sport", "=", f":{PROXY_PORT}"]).stdout
    return {name for name, pid in worker_pids_by_name(proxy.process).items() if f"pid={pid}," in sockets}


def test_killed_squid_process_is_replaced_while_others_serve(testbed: Testbed, start: Callable[[int], Proxy]) -> None:
    """Defect: a restarted coordinator could not bind, and workers that started after it had no listener."""
    node, proxy = testbed["proxy"], start(2)

    def is_served_without(name: str, victim: int) -> bool:
        return worker_pids_by_name(proxy.process).get(name, victim) != victim and listeners(node, proxy) >= {
            "(squid-1)",
            "(squid-2)",
        }

    with traffic(testbed) as clients:
        for name in (COORDINATOR, "(squid-1)", "(squid-2)", "(squid-1)"):
            victim, moment = worker_pids_by_name(proxy.process)[name], time.time()
            count_before = len(clients.failed_requests())
            os.kill(victim, signal.SIGKILL)
            wait_until(
                partial(is_served_without, name, victim),
                f"both workers listen after the death of {name}",
                timeout=LONG_LIMIT,
                process=proxy.process,
            )
            print(f"{name}: {time.time() - moment:.1f} s")
            clients.wait_until_served()
            lost = [each.outcome for each in clients.failed_requests()[count_before:]]
            # Requests that the killed process had accepted are lost; no connection is refused.
            assert len(lost) <= 2 * CLIENT_COUNT, lost
            assert set(lost) <= LOST, lost
            assert lost == [] or name != COORDINATOR
    assert mptcp_listeners(node) == {f"*:{PROXY_PORT}"}


@pytest.mark.nightly(except_for=("[2]",))
@pytest.mark.parametrize("count", [1, 2])
def test_reload_refuses_connections_only_briefly(testbed: Testbed, start: Callable[[int], Proxy], count: int) -> None:
    node, proxy = testbed["proxy"], start(count)
    before = worker_pids_by_name(proxy.process)
    with traffic(testbed) as clients:
        for number in range(4):
            proxy.process.signal(signal.SIGHUP)
            wait_until(partial(has_reloaded, proxy, number + 1), "the reload is complete", timeout=LONG_LIMIT)
            time.sleep(2)  # The supervisor checks the listeners one second after the reload.
            print(f"no request served for {clients.wait_until_served():.2f} s")
    # Squid closes its listener and opens another one; the kernel resets connections that were not yet accepted.
    assert {each.outcome for each in clients.failed_requests()} <= {REFUSED, "ConnectionResetError"}
    assert worker_pids_by_name(proxy.process) == before
    assert mptcp_listeners(node) == {f"*:{PROXY_PORT}"}


def count_reloads(proxy: Proxy) -> int:
    return proxy.process.output().count("reload accepted")


def has_reloaded(proxy: Proxy, times: int) -> bool:
    return count_reloads(proxy) >= times


def test_restart_refuses_connections_immediately(testbed: Testbed, start: Callable[[int], Proxy]) -> None:
    proxy = start(2)
    with traffic(testbed) as clients:
        assert proxy.process.stop(LONG_LIMIT) == 0
        stopped = time.time()
        wait_until(
            lambda: any(each.outcome == REFUSED for each in clients.failed_requests()),
            "a connection is refused",
            timeout=LONG_LIMIT,
        )
        start(2)
        restarted = time.time()
        clients.wait_until_served()
    # Clients get a reset immediately; no client waits for a proxy that does not run.
    assert {each.outcome for each in clients.failed_requests()} <= LOST | {REFUSED}
    assert [
        each
        for each in clients.failed_requests()
        if stopped + 1 < each.ended_at - each.seconds and each.seconds > LONG_LIMIT / 4
    ] == []
    assert [each for each in clients.failed_requests() if each.ended_at - each.seconds > restarted] == []


def test_log_rotation_loses_no_line_and_no_descriptor(testbed: Testbed, start: Callable[[int], Proxy]) -> None:
    """Rotate the logs of two workers that share one log, as mptcp-proxy run does when a log exceeds 16 MiB."""
    node, proxy, rotations = testbed["proxy"], start(2), 8

    def log_descriptors() -> list[str]:
        """Return the current names of all open log files, once for each descriptor."""
        found = []
        for pid in worker_pids_by_name(proxy.process).values():
            for each in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    found.append(os.readlink(each))
        return sorted(name for name in found if "/log/" in name)

    with traffic(testbed) as clients:
        before = log_descriptors()
        assert before
        for _ in range(rotations):
            clients.wait_until_served()
            assert log_files.rotate(proxy.logs, max_bytes=10, old_files=2 * rotations)
            os.kill(squid_pid(proxy.process), signal.SIGUSR1)
            wait_until((proxy.logs / "access.log").exists, "Squid opens a new log", timeout=LONG_LIMIT)
        clients.wait_until_served()
        assert clients.failed_requests() == []

    def log_text() -> str:
        return "".join(path.read_text() for path in proxy.logs.glob("access.log*"))

    names = [each.name for each in clients.ended_requests()]

    def are_all_logged() -> bool:
        """Return whether all requests are in the logs. Workers write their lines with a delay."""
        text = log_text()
        return all(f"/{name} " in text for name in names)

    wait_until(are_all_logged, "all requests are logged", timeout=LONG_LIMIT)
    text = log_text()
    assert [name for name in names if text.count(f"/{name} ") != 1] == []
    assert len(list(proxy.logs.glob("access.log.*"))) == rotations
    # Squid also keeps the first cache.log open, because it opened this file twice, but no other old log.
    current = [name for name in before if name.endswith("access.log")]
    wait_until(
        lambda: (
            [name for name in log_descriptors() if "access" in name] == current
            and len(log_descriptors()) == len(before)
        ),
        "the old logs are closed",
        timeout=LONG_LIMIT,
    )
    assert mptcp_listeners(node) == {f"*:{PROXY_PORT}"}


@pytest.mark.nightly
def test_full_log_disk_stops_no_request(testbed: Testbed, start: Callable[[int], Proxy]) -> None:
    """Defect: Squid ended a worker that could not write its line to access.log, and gave it up after a few restarts."""
    node = testbed["proxy"]

    def count_logged(requests: list[Request]) -> int:
        """Return the number of these requests that have a line in the log."""
        text = "".join(path.read_text(errors="replace") for path in disk.glob("access.log*"))
        return sum(f"/{each.name} " in text for each in requests)

    def count_unlogged(clients: Traffic) -> int:
        requests = clients.ended_requests()
        return len(requests) - count_logged(requests)

    with small_disk(node.directory / f"{node.name}-proxy-log") as disk:
        proxy = start(2)
        before = worker_pids_by_name(proxy.process)
        with traffic(testbed) as clients:
            filling = fill(disk)
            # The log's last memory page still has room for lines.
            wait_until(lambda: count_unlogged(clients) > 100, "requests are not logged", timeout=LONG_LIMIT)
            assert (worker_pids_by_name(proxy.process), clients.failed_requests()) == (before, [])
            wait_until(
                lambda: "requests are served without a log line" in proxy.process.output(),
                "the supervisor logs the full disk",
                timeout=LONG_LIMIT,
            )
            # cache.log is on the same disk. Both logs are rotated there, and Squid reports this in cache.log.
            assert log_files.rotate(proxy.logs, max_bytes=10, old_files=2)
            os.kill(squid_pid(proxy.process), signal.SIGUSR1)
            wait_until((disk / "access.log").exists, "Squid opens a new log", timeout=LONG_LIMIT)
            clients.wait_until_served()
            assert worker_pids_by_name(proxy.process) == before
            full = ["the disk of /var/log/mptcpproxy is full"]
            wait_until(
                lambda: json.loads((proxy.state / "reloads.json").read_text())["problems"] == full,
                "the status reports the full disk",
                timeout=LONG_LIMIT,
            )
            filling.unlink()
            count_when_freed = len(clients.ended_requests())
            wait_until(
                lambda: count_logged(clients.ended_requests()[count_when_freed:]) > 100,
                "requests are logged",
                timeout=LONG_LIMIT,
            )
            wait_until(
                lambda: "requests are logged" in proxy.process.output(),
                "the supervisor logs the end",
                timeout=LONG_LIMIT,
            )
        assert clients.failed_requests() == []
        assert worker_pids_by_name(proxy.process) == before
        assert proxy.process.output().count("the disk of the logs is full") == 1


class Attempts:
    """Counts attempts to write into a directory: each creates and removes a file, which changes the mtime."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._times = {directory.stat().st_mtime_ns}

    def count(self) -> int:
        self._times.add(self._directory.stat().st_mtime_ns)
        return len(self._times) - 1


def test_full_runtime_directory_refuses_reloads_and_stops_no_request(
    testbed: Testbed, start: Callable[[int], Proxy]
) -> None:
    node = testbed["proxy"]
    with small_disk(node.directory / f"{node.name}-proxy-run") as disk:
        proxy = start(2)
        outcome_file = disk / "reloads.json"
        wait_until(lambda: b"serving: " in outcome_file.read_bytes(), "the outcome is written", timeout=LONG_LIMIT)
        # The file of the preload libraries' counters still changes, because its space was allocated at the start.
        files = {path: path.read_bytes() for path in disk.iterdir() if path.is_file() and path.name != "counters"}
        before = worker_pids_by_name(proxy.process)
        with traffic(testbed) as clients:
            filling = fill(disk)
            node.run(["ip", "addr", "add", "192.0.2.77/32", "dev", "lo"])
            wait_until(
                lambda: "; for now, " in proxy.process.output(), "the supervisor logs the full disk", timeout=LONG_LIMIT
            )
            proxy.process.signal(signal.SIGHUP)
            wait_until(lambda: "reload refused" in proxy.process.output(), "the reload is refused", timeout=LONG_LIMIT)
            clients.wait_until_served()
            assert {path: path.read_bytes() for path in files} == files
            assert worker_pids_by_name(proxy.process) == before
            assert clients.failed_requests() == []
            attempts = Attempts(disk)
            wait_until(lambda: attempts.count() >= 2, "the supervisor tries twice", timeout=LONG_LIMIT)
            assert proxy.process.output().count("; for now, ") == 1
            filling.unlink()
            before_freed, freed = processors.read(), time.monotonic()
            own_addresses = disk / "own-addresses"
            wait_until(
                lambda: b"192.0.2.77" in own_addresses.read_bytes(), "the addresses are written", timeout=LONG_LIMIT
            )
            seconds = time.monotonic() - freed
            print(f"the addresses were written {seconds:.2f} s after the disk had room")
            waiting = processors.usage(before_freed, processors.read()).waiting
            assert seconds < MAX_RETRY_SECONDS * slowness(waiting), "the addresses were written only by a later attempt"
            proxy.process.signal(signal.SIGHUP)
            wait_until(lambda: count_reloads(proxy) == 1, "the reload is complete", timeout=LONG_LIMIT)
            clients.wait_until_served()
        assert worker_pids_by_name(proxy.process) == before
        assert b"192.0.2.77" in (disk / "own-addresses").read_bytes()
        assert "Traceback" not in proxy.process.output()
