# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for valid and invalid reloads during a download, for the end and exit status of Squid, and for the rotation of
logs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from proxying import (
    curl_command,
    environment,
    fetch,
    mptcp_listeners,
    squid_pid,
    wait_for_workers,
    worker_pids,
    write_configuration,
)

from mptcp_lab.testbed import TMPFS, LiveNode, Process, Testbed
from mptcp_lab.testbed.ownership import namespace_processes
from mptcp_lab.testbed.services import (
    SQUID_CONFIG,
    Origin,
    Proxy,
    program,
    python_command,
    start_origin,
    start_proxy,
    wait_until,
)
from mptcp_proxy import log_files

pytestmark = pytest.mark.kernel
FILE, BIG_FILE = "file.bin", "big.bin"


@pytest.fixture
def origin(testbed: Testbed, require: Callable[..., None]) -> Origin:
    require("squid", "apache2", "curl", "mptcpize", "gcc")
    return start_origin(testbed["origin"], {FILE: 4_000_000, BIG_FILE: 60_000_000})


class PausedDownload:
    """A running download over MPTCP, which cannot end before :meth:`finish` because nothing reads the client's output.

    The file is larger than all buffers between origin and client, so that the proxy still holds a part of it.
    """

    def __init__(self, client: LiveNode, origin: Origin, proxy: Proxy) -> None:
        pipe = client.directory / "download.pipe"
        os.mkfifo(pipe)
        self._output = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        options = ["-o", str(pipe)]
        self._client = client.popen(
            curl_command(origin.url(BIG_FILE), proxy.url(), mptcp=True, tunnel=False, options=options), name="curl"
        )
        self._expected_digest = origin.digests[BIG_FILE]
        wait_until(self._has_begun, "the download has begun", process=self._client)

    def _has_begun(self) -> bool:
        # If no writer has opened the pipe yet, poll(2) reports nothing; if the writer has closed it, only POLLHUP.
        waiting = select.poll()
        waiting.register(self._output, select.POLLIN)
        return any(events & select.POLLIN for _, events in waiting.poll(0))

    def finish(self) -> None:
        """Read the rest of the download and check that it is the origin's file."""
        os.set_blocking(self._output, True)
        digest = hashlib.sha256()
        with open(self._output, "rb") as output:
            while chunk := output.read(1 << 20):
                digest.update(chunk)
        assert self._client.wait(60) == 0, self._client.output()
        assert digest.hexdigest() == self._expected_digest


def test_accepted_reload_lets_a_download_finish(testbed: Testbed, origin: Origin) -> None:
    node, client = testbed["proxy"], testbed["client"]
    config = write_configuration(node)
    proxy = start_proxy(node, config)
    before = (squid_pid(proxy.process), *wait_for_workers(proxy))
    download = PausedDownload(client, origin, proxy)

    write_configuration(node, "http_port 3129", "acl more port 80", f"tcp_outgoing_address {node.address('wan0')}")
    proxy.process.signal(signal.SIGHUP)
    wait_until(lambda: mptcp_listeners(node) == {"*:3128", "*:3129"}, "the new port is open", process=proxy.process)
    download.finish()
    assert (squid_pid(proxy.process), *worker_pids(proxy.process)) == before
    new_url = proxy.url().replace("3128", "3129")
    joins = node.mib()["MPTcpExtMPJoinAckRx"]

    def has_joined() -> bool:
        """Return whether a download used both paths: on a busy machine it may end before the second subflow joins."""
        assert fetch(client, origin.url(FILE), new_url, mptcp=True).sha256 == origin.digests[FILE]
        return node.mib()["MPTcpExtMPJoinAckRx"] > joins

    wait_until(has_joined, "a download through the new port uses both paths", process=proxy.process)


def test_refused_reload_keeps_the_old_settings(testbed: Testbed, origin: Origin) -> None:
    node, client = testbed["proxy"], testbed["client"]
    config = write_configuration(node)
    proxy = start_proxy(node, config)
    before = (squid_pid(proxy.process), *wait_for_workers(proxy))
    download = PausedDownload(client, origin, proxy)

    write_configuration(node, "http_port 3129", "http_acess deny all")
    proxy.process.signal(signal.SIGHUP)
    wait_until(lambda: "refused" in proxy.process.output(), "the reload is refused", process=proxy.process)
    download.finish()
    refusals = [line for line in proxy.process.output().splitlines() if "refused" in line]
    assert len(refusals) == 1
    assert f"{config}:3: http_acess: there is no such directive; did you mean http_access?" in refusals[0]
    assert (squid_pid(proxy.process), *worker_pids(proxy.process)) == before
    assert mptcp_listeners(node) == {"*:3128"}

    # A worker that Squid restarts reads the active configuration, not the broken file.
    before = wait_for_workers(proxy)
    os.kill(before[-1], signal.SIGSEGV)
    wait_until(
        lambda: len(after := worker_pids(proxy.process)) == len(before) and after != before,
        "Squid starts a new worker",
        process=proxy.process,
    )
    wait_until(lambda: mptcp_listeners(node) == {"*:3128"}, "the new worker listens", process=proxy.process)
    assert fetch(client, origin.url(FILE), proxy.url(), mptcp=True).sha256 == origin.digests[FILE]


def test_reload_command_waits_for_the_result(testbed: Testbed, require: Callable[..., None]) -> None:
    require("squid", "gcc")
    node = testbed["proxy"]
    config = write_configuration(node)
    proxy = start_proxy(node, config)
    mounts = {"/run/mptcpproxy": proxy.state}

    def reload() -> tuple[int, str]:
        process = node.popen([program("mptcp-proxy"), "reload"], name="reload", mounts=mounts)
        return process.wait(90), process.output()

    def doctor_finding() -> tuple[str, str]:
        argv = [program("mptcp-proxy"), "doctor", "--json", "--config", str(config)]
        process = node.popen(argv, name="doctor", mounts=mounts)
        process.wait(120)
        (found,) = (each for each in json.loads(process.output()) if each["check"] == "last reload")
        return found["status"], found["text"]

    assert doctor_finding() == ("ok", "the proxy has not reloaded since its start")
    write_configuration(node, "http_acess deny all")
    code, output = reload()
    assert code == 1
    assert f"reload refused, the old settings stay in force: {config}:2: http_acess: there is no such" in output
    assert mptcp_listeners(node) == {"*:3128"}
    # The file is valid again, but not yet active.
    write_configuration(node, "http_port 3129")
    status, text = doctor_finding()
    assert status == "warn"
    assert f": {config}:2: http_acess: there is no such" in text
    assert reload() == (0, "configuration reloaded\n")
    assert doctor_finding()[1].startswith("accepted at ")
    # The command returns when Squid listens again, not already when Squid gets the signal.
    assert mptcp_listeners(node) == {"*:3128", "*:3129"}


def test_ready_notification_is_sent_when_squid_listens_with_mptcp(
    testbed: Testbed, require: Callable[..., None]
) -> None:
    require("squid", "gcc")
    node = testbed["proxy"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(node.directory / "notify"))
        manager.settimeout(60)
        variables = {"NOTIFY_SOCKET": str(node.directory / "notify"), "WATCHDOG_USEC": "2000000"}
        proxy = start_proxy(node, env=variables)
        lines: list[str] = []
        while lines.count("WATCHDOG=1") < 3 or "READY=1" not in lines:
            lines += manager.recv(4096).decode().split("\n")
            if "READY=1" in lines:
                assert mptcp_listeners(node) == {"*:3128"}
        assert "STATUS=serving: port 3128 over Multipath TCP" in lines
        # Debian's Squid would report that it is ready before it listens.
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & environment(squid_pid(proxy.process)).keys()
        assert proxy.process.running


def test_sigterm_stops_squid_and_returns_its_status(testbed: Testbed, require: Callable[..., None]) -> None:
    require("squid", "gcc")
    node = testbed["proxy"]
    proxy = start_proxy(node)
    assert proxy.process.stop(60) == 0
    assert "Squid has ended (status 0)" in proxy.process.output()
    assert not (proxy.state / "squid.pid").exists()
    assert namespace_processes(node.namespace) == ()


@pytest.mark.nightly(except_for=("SIGTERM",))
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_stop_right_after_the_start_ends_squid(testbed: Testbed, require: Callable[..., None], number: int) -> None:
    require("squid", "gcc")
    node = testbed["proxy"]
    process = start_unready(node)
    process.signal(number)
    assert process.wait(60) == 0, process.output()
    assert namespace_processes(node.namespace) == ()


IMPATIENT_SUPERVISION = """
import sys
from mptcp_proxy import pending_signals
from mptcp_proxy.cli import main
pending_signals.MAX_STOP_DELAY = 0.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_stop_kills_a_squid_that_does_not_handle_signals_yet(
    testbed: Testbed, require: Callable[..., None], number: int
) -> None:
    """On a very busy machine, Squid may not handle signals before the time limit of the stop. Then the signal kills
    Squid."""
    require("squid", "gcc")
    process = start(testbed["proxy"], python_command(IMPATIENT_SUPERVISION))
    wait_until(lambda: "started Squid" in process.output(), "Squid is started", process=process)
    process.signal(number)
    assert process.wait(60) == 0, process.output()
    assert namespace_processes(testbed["proxy"].namespace) == ()


def test_reloads_right_after_the_start_reach_squid_when_ready(testbed: Testbed, require: Callable[..., None]) -> None:
    """A SIGHUP kills a process of Squid that does not handle the signal yet."""
    require("squid", "gcc")
    node = testbed["proxy"]
    process = start_unready(node)
    process.signal(signal.SIGHUP)
    wait_until(lambda: "reload accepted" in process.output(), "the reload is accepted", process=process)
    for _ in range(5):
        process.signal(signal.SIGHUP)
    before = wait_for_workers(Proxy(node, process, node.directory / "run", node.directory / "var"))
    wait_until(lambda: process.output().count("reload accepted") >= 2, "the second reload is accepted", process=process)
    assert worker_pids(process) == before
    assert process.stop(60) == 0


RELOAD_DURING_CHECK = """
import os, signal, sys
from mptcp_proxy import supervisor
from mptcp_proxy.cli import main
check = supervisor.check
def first_check(*arguments, **keywords):
    supervisor.check = check
    os.kill(os.getpid(), signal.SIGHUP)
    return check(*arguments, **keywords)
supervisor.check = first_check
sys.exit(main(sys.argv[1:]))
"""


def test_reload_during_the_first_check_follows_the_start(testbed: Testbed, require: Callable[..., None]) -> None:
    """After a SIGHUP during the first check of the configuration, the reload follows as soon as Squid runs."""
    require("squid", "gcc")
    node = testbed["proxy"]
    process = start(node, python_command(RELOAD_DURING_CHECK))
    wait_until(lambda: "reload accepted" in process.output(), "the reload is accepted", process=process)
    wait_until(lambda: mptcp_listeners(node) == {"*:3128"}, "Squid listens", process=process)
    assert process.stop(60) == 0


def test_reload_without_a_temporary_directory_is_refused(testbed: Testbed, origin: Origin) -> None:
    node = testbed["proxy"]
    temporary = node.directory / "temporary"
    temporary.mkdir()
    proxy = start_proxy(node, env={**os.environ, "TMPDIR": str(temporary)})
    temporary.rmdir()
    proxy.process.signal(signal.SIGHUP)
    wait_until(lambda: "refused" in proxy.process.output(), "the reload is refused", process=proxy.process)
    (refusal,) = [line for line in proxy.process.output().splitlines() if "refused" in line]
    assert refusal.startswith(f"mptcp-proxy: reload refused, the old settings stay in force: {temporary}/")
    assert fetch(testbed["client"], origin.url(FILE), proxy.url()).status == 200

    temporary.mkdir()
    proxy.process.signal(signal.SIGHUP)
    wait_until(
        lambda: "reload accepted" in proxy.process.output(), "the next reload is accepted", process=proxy.process
    )
    assert proxy.process.stop(60) == 0


FAILING_SUPERVISION = """
import sys
from mptcp_proxy import supervisor
from mptcp_proxy.cli import main
from mptcp_proxy.process import children
def fail(self, process):
    if children(process.pid):
        raise MemoryError("during the supervision")
supervisor._Supervisor._run_due_checks = fail
sys.exit(main(sys.argv[1:]))
"""


def test_crashing_supervisor_ends_squid(testbed: Testbed, require: Callable[..., None]) -> None:
    require("squid", "gcc")
    node = testbed["proxy"]
    process = start(node, python_command(FAILING_SUPERVISION))
    assert process.wait(60) == 1
    assert "started Squid" in process.output()
    assert "MemoryError: during the supervision" in process.output()
    assert namespace_processes(node.namespace) == ()


def start(node: LiveNode, command: Sequence[str] = ()) -> Process:
    """Start the proxy with its own directories, without waiting."""
    mounts: dict[str, str | Path] = {"/dev/shm": TMPFS, "/run/squid": TMPFS}
    for target in ("/run/mptcpproxy", "/var/log/mptcpproxy"):
        directory = node.directory / target[1:4]
        directory.mkdir()
        mounts[target] = directory
    argv = [*(command or [program("mptcp-proxy")]), "run", "--config", str(SQUID_CONFIG)]
    return node.popen(argv, name="early", mounts=mounts)


def start_unready(node: LiveNode) -> Process:
    """Start the proxy and return as soon as Squid's process exists, ready or not."""
    process = start(node)
    wait_until(lambda: "started Squid" in process.output(), "Squid is started", process=process)
    return process


def test_crash_of_squid_gives_a_nonzero_status(testbed: Testbed, require: Callable[..., None]) -> None:
    require("squid", "gcc")
    node = testbed["proxy"]
    proxy = start_proxy(node, write_configuration(node, "workers 2"))
    os.kill(squid_pid(proxy.process), signal.SIGKILL)
    assert proxy.process.wait(60) == 128 + signal.SIGKILL
    assert "Squid ended by itself (signal SIGKILL); the reason is" in proxy.process.output()
    # Workers without their main process would keep the port.
    assert namespace_processes(node.namespace) == ()


def lines_without_notes(process: Process) -> list[str]:
    """Return the output without the lines about statements that this version of Squid does not get."""
    return [line for line in process.output().splitlines() if ": left out, Squid" not in line]


def test_second_proxy_with_the_same_name_is_refused(testbed: Testbed, require: Callable[..., None]) -> None:
    require("squid", "gcc")
    node = testbed["proxy"]
    proxy = start_proxy(node)
    assert isinstance(proxy.process, Process)
    second = node.popen(
        proxy.process.argv, name="second", mounts={"/run/mptcpproxy": proxy.state, "/var/log/mptcpproxy": proxy.logs}
    )
    assert second.wait(60) == 1
    assert len(lines_without_notes(second)) == 1
    assert f"a proxy of this name runs already (process {squid_pid(proxy.process)}" in second.output()


def test_second_proxy_with_another_name_needs_a_free_port(testbed: Testbed, require: Callable[..., None]) -> None:
    require("squid", "gcc")
    node = testbed["proxy"]
    first = start_proxy(node)
    directories: dict[str, Path] = {
        f"/{kind}/second": node.directory / f"second-{kind[:3]}" for kind in ("run", "var/log")
    }
    for directory in directories.values():
        directory.mkdir()
    # The service name is part of the names of Squid's shared memory, so the proxy of another test run would share it.
    mounts: dict[str, str | Path] = {**directories, "/dev/shm": TMPFS, "/run/squid": TMPFS}

    def start_second(config: Path) -> Process:
        assert isinstance(first.process, Process)
        argv = [first.process.argv[0], "run", "--service-name", "second", "--config", str(config)]
        return node.popen(argv, name="second", mounts=mounts)

    refused = start_second(write_configuration(node, name="taken.conf"))
    assert refused.wait(60) == 1
    assert re.search(r"conf/squid.conf:\d+: port 3128 is in use by squid \(process \d+\)", refused.output())
    assert len(lines_without_notes(refused)) == 1

    other_port = node.directory / "other-port.conf"
    other_port.write_text(
        (Path(__file__).parents[3] / "conf/squid.conf").read_text().replace("http_port 3128", "http_port 3130")
    )
    second = start_second(other_port)
    wait_until(lambda: "*:3130" in mptcp_listeners(node), "the second proxy listens", process=second)
    assert first.process.running
    assert second.stop(60) == 0


def test_large_log_is_renamed_and_reopened(testbed: Testbed, origin: Origin) -> None:
    """Rotate the logs of two workers that share one log, as mptcp-proxy run does every 30 seconds."""
    node, client = testbed["proxy"], testbed["client"]
    proxy = start_proxy(node, write_configuration(node, "workers 2"))
    log = proxy.logs / "access.log"
    fetch(client, origin.url(FILE), proxy.url())
    wait_until(lambda: FILE in log.read_text(), "the request is logged")

    assert log_files.rotate(proxy.logs, max_bytes=10, old_files=2)
    os.kill(squid_pid(proxy.process), signal.SIGUSR1)
    wait_until(lambda: log.exists() and (proxy.logs / "cache.log").exists(), "Squid writes new logs")
    fetch(client, origin.url("nothing.bin"), proxy.url())
    wait_until(lambda: "nothing.bin" in log.read_text(), "the next request is in the new log")
    assert FILE not in log.read_text()
    assert FILE in (proxy.logs / "access.log.1").read_text()
    assert sorted(path.name for path in proxy.logs.glob("access.log*")) == ["access.log", "access.log.1"]
