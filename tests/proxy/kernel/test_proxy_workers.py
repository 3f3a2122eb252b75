# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for several workers, helper children, and outgoing sockets that are bound to an address."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from proxying import (
    environment,
    fetch,
    has_libraries,
    libraries_of,
    mptcp_listeners,
    squid_pid,
    worker_pids,
    write_configuration,
)

from mptcp_lab.testbed import TMPFS, LiveNode, Testbed
from mptcp_lab.testbed.services import PROXY_PORT, Origin, Proxy, program, start_origin, start_proxy, wait_until
from mptcp_proxy.process import children, command

pytestmark = pytest.mark.kernel
WORKERS = 2
HELPER = """#!/bin/sh
# This helper does not change any request.
while read -r line; do echo ERR; done
"""


@pytest.fixture(scope="module")
def proxy(module_testbed: Testbed, require: Callable[..., None]) -> Iterator[Proxy]:
    require("squid", "apache2", "curl", "mptcpize", "gcc")
    node = module_testbed["proxy"]
    helper = node.directory / "helper"
    helper.write_text(HELPER)
    helper.chmod(0o755)
    config = write_configuration(
        node,
        f"workers {WORKERS}",
        "tcp_outgoing_address 10.77.8.2",
        f"url_rewrite_program {helper}",
        "url_rewrite_children 2 startup=2 idle=1 concurrency=0",
    )
    started = start_proxy(node, config)
    wait_until(lambda: len(worker_pids(started.process)) == WORKERS + 1, "workers and coordinator run")
    wait_until(lambda: len(listener_lines(node)) == WORKERS, "each worker listens", process=started.process)
    yield started
    assert started.process.stop(60) == 0
    assert not node.run(["ss", "-Htln"]).stdout


@pytest.fixture(scope="module")
def origin(module_testbed: Testbed) -> Origin:
    return start_origin(module_testbed["origin"], {"file.bin": 2_000_000})


@pytest.mark.parametrize("tunnel", [False, True], ids=["GET", "CONNECT"])
def test_workers_serve_mptcp_and_use_plain_tcp(
    module_testbed: Testbed, proxy: Proxy, origin: Origin, tunnel: bool
) -> None:
    before = {name: module_testbed[name].mib() for name in ("proxy", "origin")}
    url = origin.url("file.bin", port=443 if tunnel else 80)
    # Each download takes two seconds, because on a busy machine the second subflow may join late.
    limit = ["--limit-rate", "1M"]
    downloads = 0

    def increase(name: str, counter: str) -> int:
        return module_testbed[name].mib()[counter] - before[name][counter]

    def has_joined() -> bool:
        """Return whether another download used both paths."""
        nonlocal downloads
        downloads, joins = downloads + 1, increase("proxy", "MPTcpExtMPJoinAckRx")
        download = fetch(module_testbed["client"], url, proxy.url(), mptcp=True, tunnel=tunnel, options=limit)
        assert (download.status, download.sha256) == (200, origin.digests["file.bin"])
        return increase("proxy", "MPTcpExtMPJoinAckRx") > joins

    for _ in range(5):
        wait_until(has_joined, "a download uses both paths", process=proxy.process)
    assert increase("proxy", "MPTcpExtMPCapableSYNRX") == downloads
    assert increase("proxy", "MPTcpExtMPCapableSYNTX") == 0
    assert increase("origin", "MPTcpExtMPCapableSYNRX") == 0


def test_each_worker_has_its_own_mptcp_listener(module_testbed: Testbed, proxy: Proxy) -> None:
    assert mptcp_listeners(module_testbed["proxy"]) == {f"*:{PROXY_PORT}"}
    owners = module_testbed["proxy"].run(["ss", "-HtlnpOi"]).stdout.splitlines()
    assert len(owners) == WORKERS
    assert all("tcp-ulp-mptcp" in line and line.count("pid=") == 1 for line in owners)


def test_squid_and_its_workers_have_the_libraries(proxy: Proxy) -> None:
    pids = (squid_pid(proxy.process), *worker_pids(proxy.process))
    assert len(pids) == WORKERS + 2
    assert all(has_libraries(pid) for pid in pids)


def test_helper_children_have_neither_the_libraries_nor_their_variables(proxy: Proxy) -> None:
    def helpers() -> list[int]:
        return [pid for worker in worker_pids(proxy.process) for pid in children(worker)]

    def all_run() -> bool:
        # Between fork(2) and execve(2), a helper still has the command line of its worker.
        return len(helpers()) >= 2 * WORKERS and all(b"helper" in command(pid) for pid in helpers())

    wait_until(all_run, "the helpers of all workers run")
    for pid in helpers():
        assert not libraries_of(pid)
        assert not {"LD_PRELOAD", "MPTCP_LISTEN_PORTS"} & environment(pid).keys()


@pytest.mark.parametrize("processors", [1, None], ids=["one", "all"])
def test_shipped_configuration_starts_a_worker_for_each_processor(
    testbed: Testbed, require: Callable[..., None], processors: int | None
) -> None:
    require("squid", "gcc")
    node, allowed = testbed["proxy"], os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, set(sorted(allowed)[:processors]))
        count = len(os.sched_getaffinity(0))
        started = start_proxy(node)
    finally:
        os.sched_setaffinity(0, allowed)
    process_count = count + (count > 1)  # the coordinator exists if there are several workers
    wait_until(lambda: len(worker_pids(started.process)) == process_count, "all processes run", process=started.process)
    wait_until(lambda: len(listener_lines(node)) == count, "each worker listens", process=started.process)
    assert f"{count} worker{'s' * (count > 1)} (one for each processor)" in started.process.output()
    # Keep the directories for shared memory and sockets open: only Squid's namespace has them, and they must be
    # readable after its end.
    directories = [
        os.open(f"/proc/{squid_pid(started.process)}/root{name}", os.O_RDONLY) for name in ("/dev/shm", "/run/squid")
    ]
    try:
        assert all(os.listdir(directory) for directory in directories) or count == 1
        assert started.process.stop(60) == 0
        assert [os.listdir(directory) for directory in directories] == [[], []]
    finally:
        for directory in directories:
            os.close(directory)
    assert listener_lines(node) == []


def test_only_foreign_files_stay_after_a_killed_squid(testbed: Testbed, require: Callable[..., None]) -> None:
    """Squid itself removes its shared memory only at a regular end."""
    require("squid", "gcc")
    node = testbed["proxy"]
    started = start_two_workers(node)
    first = squid_pid(started.process)
    directories = [os.open(f"/proc/{first}/root{name}", os.O_RDONLY) for name in ("/dev/shm", "/run/squid")]
    others = ["mptcpproxy2-cf__metadata.shm", "squid-coordinator.ipc"]
    try:
        assert all(os.listdir(directory) for directory in directories)
        for directory, name in zip(directories, others, strict=True):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=directory))
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: [os.listdir(directory) for directory in directories] == [[name] for name in others],
            "only the foreign files remain",
        )
    finally:
        for directory in directories:
            os.close(directory)
    # Squid ended by itself, so the status is not 0, unlike after a requested stop.
    assert started.process.wait(60) != 0


def test_files_of_another_user_do_not_prevent_the_start(testbed: Testbed, require: Callable[..., None]) -> None:
    """Defect: Squid ended at each start, because it could neither create nor remove the file of that name."""
    require("squid", "gcc")
    node = testbed["proxy"]
    config = write_configuration(node, "workers 2")
    mounts: dict[str, str | Path] = {"/dev/shm": TMPFS, "/run/squid": TMPFS}
    for target in ("/run/mptcpproxy", "/var/log/mptcpproxy"):
        mounts[target] = node.directory / target[1:4]
        Path(mounts[target]).mkdir()
    create = "cd /dev/shm && touch mptcpproxy-cf__metadata.shm && mkdir mptcpproxy-x.shm && chown nobody mptcpproxy-*"
    argv = [program("mptcp-proxy"), "run", "--config", str(config)]
    process = node.popen(["sh", "-ec", f'{create}; exec "$0" "$@"', *argv], name="early", mounts=mounts)
    wait_until(lambda: len(listener_lines(node)) == 2, "both listen", process=process)
    assert process.stop(60) == 0


def start_two_workers(node: LiveNode) -> Proxy:
    """Return a proxy whose two workers both listen."""
    started = start_proxy(node, write_configuration(node, "workers 2"))
    wait_until(lambda: len(listener_lines(node)) == 2, "both listen", process=started.process)
    return started


def listener_lines(node: LiveNode) -> list[str]:
    return node.run(["ss", "-HtlnO"]).stdout.splitlines()


def test_port_removed_by_a_reload_is_closed(testbed: Testbed, require: Callable[..., None]) -> None:
    """Defect in Squid: the coordinator kept its socket open, so the kernel accepted connections that no worker
    served."""
    require("squid", "gcc")
    node = testbed["proxy"]
    started = start_proxy(node, write_configuration(node, "workers 2", "http_port 3129"))
    wait_until(lambda: len(listener_lines(node)) == 4, "both workers listen on both ports", process=started.process)
    write_configuration(node, "workers 2")
    started.process.signal(signal.SIGHUP)
    remaining = {f"*:{PROXY_PORT}"}
    wait_until(
        lambda: mptcp_listeners(node) == remaining and len(listener_lines(node)) == 2,
        "both workers listen only on the remaining port",
    )


def test_reload_does_not_change_the_number_of_workers(testbed: Testbed, require: Callable[..., None]) -> None:
    """A restarted worker reads the file. With another number of workers, it could not join the other processes."""
    require("squid", "gcc")
    node = testbed["proxy"]
    started = start_two_workers(node)
    write_configuration(node, "workers 1")
    started.process.signal(signal.SIGHUP)
    message = "workers 1: from the next start on; until then 2"
    wait_until(
        lambda: message in started.process.output(),
        "the supervisor reports the number of workers",
        process=started.process,
    )
    before = worker_pids(started.process)
    os.kill(before[-1], signal.SIGKILL)
    wait_until(
        lambda: len(after := worker_pids(started.process)) == len(before) and after != before, "all workers exist again"
    )
    wait_until(lambda: len(listener_lines(node)) == 2, "both listen again", process=started.process)


@pytest.mark.nightly
def test_reload_refuses_features_that_workers_cannot_share(testbed: Testbed, require: Callable[..., None]) -> None:
    """Defect: each worker had the delay pool's full rate, and a restarted worker overwrote the other worker's cache."""
    require("squid", "gcc")
    node = testbed["proxy"]
    started = start_two_workers(node)
    before = (started.state / "squid.conf").read_bytes()
    write_configuration(node, "delay_pools 1", "workers 1")
    started.process.signal(signal.SIGHUP)
    message = "delay_pools 1: each of the 2 workers would have its own; restart the proxy"
    wait_until(
        lambda: message in started.process.output(), "the supervisor refuses the reload", process=started.process
    )
    assert "reload refused" in started.process.output()
    assert (started.state / "squid.conf").read_bytes() == before
    assert len(listener_lines(node)) == 2
