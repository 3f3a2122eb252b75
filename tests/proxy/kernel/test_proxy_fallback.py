# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a kernel without MPTCP, and a library that cannot be loaded: the proxy serves TCP and logs the reason."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from proxying import (
    fetch,
    libraries_of,
    mptcp_listeners,
    skip_if_squid_needs_no_library,
    tcp_listeners,
    wait_for_workers,
    worker_pids,
    write_configuration,
)

from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import program, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel


@pytest.mark.nightly(except_for=("two workers",))
@pytest.mark.parametrize("worker_statement", ["workers 1", "workers 2"], ids=["one worker", "two workers"])
def test_kernel_without_mptcp_is_logged_and_tcp_works(
    testbed: Testbed, require: Callable[..., None], worker_statement: str
) -> None:
    require("squid", "apache2", "curl", "mptcpize", "gcc")
    node = testbed["proxy"]
    origin = start_origin(testbed["origin"], {"file.bin": 1_000_000})
    with node.sysctl("net.mptcp.enabled", "0"):
        proxy = start_proxy(node, write_configuration(node, worker_statement, "http_port 3129"))
        wait_until(lambda: tcp_listeners(node) == {"*:3128", "*:3129"}, "both ports listen")
        assert mptcp_listeners(node) == set()
        for mptcp in (False, True):
            download = fetch(testbed["client"], origin.url("file.bin"), proxy.url(), mptcp=mptcp)
            assert (download.status, download.sha256) == (200, origin.digests["file.bin"])
        before = wait_for_workers(proxy)
        proxy.process.signal(signal.SIGHUP)
        wait_until(lambda: "reload accepted" in proxy.process.output(), "the reload is accepted", process=proxy.process)
        wait_until(
            lambda: (proxy.logs / "cache.log").read_text().count("Accepting HTTP") >= 4, "Squid opens new listeners"
        )
        assert worker_pids(proxy.process) == before

        # Each worker logs the line once, for the port that it opens first.
        lines = [line for line in proxy.process.output().splitlines() if "mptcp_listen" in line]
        assert len(lines) == int(worker_statement.split()[1])
        assert "no MPTCP on port 312" in lines[0]
        assert "net.mptcp.enabled" in lines[0]
        for line in (f"port {port} accepts only plain TCP, not Multipath TCP" for port in (3128, 3129)):
            wait_until(lambda line=line: line in proxy.process.output(), line, process=proxy.process)  # type: ignore[misc]
        assert proxy.process.stop(60) == 0


def test_turns_library_is_not_loaded_if_all_its_features_are_off(
    testbed: Testbed, require: Callable[..., None]
) -> None:
    require("squid", "apache2", "curl", "mptcpize", "gcc")
    node = testbed["proxy"]
    origin = start_origin(testbed["origin"], {"file.bin": 1_000_000})
    proxy = start_proxy(node, write_configuration(node), arguments=("--turns", "kernel", "--without", "zero-read"))
    wait_until(lambda: len(mptcp_listeners(node)) > 0, "the proxy listens", process=proxy.process)
    assert [libraries_of(pid) for pid in wait_for_workers(proxy)] == [["mptcp_listen.so"]] * len(
        wait_for_workers(proxy)
    )
    download = fetch(testbed["client"], origin.url("file.bin"), proxy.url(), mptcp=True)
    assert (download.status, download.sha256) == (200, origin.digests["file.bin"])
    assert proxy.process.stop(60) == 0


@pytest.mark.nightly(except_for=("no library",))
@pytest.mark.parametrize("library_loads", [True, False], ids=["library", "no library"])
def test_library_that_was_not_loaded_is_reported(
    testbed: Testbed, require: Callable[..., None], library_loads: bool
) -> None:
    """The loader reports an error, but Squid still starts."""
    require("squid", "gcc")
    if not library_loads:
        skip_if_squid_needs_no_library()
    node = testbed["proxy"]
    broken = node.directory / "mptcp_listen.so"
    broken.write_bytes(b"no library")
    broken.with_name("squid_turns.so").write_bytes(b"no library")
    config = write_configuration(node)
    proxy = start_proxy(node, config, env=None if library_loads else {"MPTCP_LISTEN_SHIM": str(broken)})
    message = "port 3128 accepts only plain TCP, not Multipath TCP, so clients can use only one path"
    if not library_loads:
        wait_until(lambda: message in proxy.process.output(), "the supervisor reports it", process=proxy.process)
    argv = [program("mptcp-proxy"), "doctor", "--json", "--config", str(config)]
    doctor = node.run(with_mounts(argv, {"/run/mptcpproxy": str(proxy.state)}), check=False, timeout=120)
    found = {finding["check"]: finding["status"] for finding in json.loads(doctor.stdout)}
    assert found["port 3128"] == ("ok" if library_loads else "fail")
    assert (message in proxy.process.output()) == (not library_loads)
    assert proxy.process.stop(60) == 0
