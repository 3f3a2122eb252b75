"""Several workers, helper children, and outgoing sockets that are bound to an address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from proxying import (
    configuration,
    environment,
    fetch,
    has_library,
    mptcp_listeners,
    squid,
    workers,
)

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, Origin, Proxy, start_origin, start_proxy, wait_until
from mptcp_proxy.process import children

pytestmark = pytest.mark.kernel
WORKERS = 2
HELPER = """#!/bin/sh
# Every request goes through unchanged.
while read -r line; do echo ERR; done
"""


@pytest.fixture(scope="module")
def proxy(module_testbed: Testbed, require: Callable[..., None]) -> Iterator[Proxy]:
    require("squid", "apache2", "curl", "mptcpize", "gcc")
    node = module_testbed["proxy"]
    helper = node.directory / "helper"
    helper.write_text(HELPER)
    helper.chmod(0o755)
    config = configuration(
        node,
        f"workers {WORKERS}",
        "tcp_outgoing_address 10.77.8.2",
        f"url_rewrite_program {helper}",
        "url_rewrite_children 2 startup=2 idle=1 concurrency=0",
    )
    started = start_proxy(node, config)
    wait_until(lambda: len(workers(started.process)) == WORKERS + 1, "workers and coordinator run")
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
    for _ in range(5):
        got = fetch(module_testbed["client"], url, proxy.url(), mptcp=True, tunnel=tunnel)
        assert (got.status, got.sha256) == (200, origin.digests["file.bin"])

    def grown(name: str, counter: str) -> int:
        return module_testbed[name].mib()[counter] - before[name][counter]

    assert grown("proxy", "MPTcpExtMPCapableSYNRX") == 5
    assert grown("proxy", "MPTcpExtMPJoinAckRx") >= 5
    assert grown("proxy", "MPTcpExtMPCapableSYNTX") == 0
    assert grown("origin", "MPTcpExtMPCapableSYNRX") == 0


def test_each_worker_has_an_mptcp_listener_of_its_own(module_testbed: Testbed, proxy: Proxy) -> None:
    assert mptcp_listeners(module_testbed["proxy"]) == {f"*:{PROXY_PORT}"}
    owners = module_testbed["proxy"].run(["ss", "-HtlnpOi"]).stdout.splitlines()
    assert len(owners) == WORKERS
    assert all("tcp-ulp-mptcp" in line and line.count("pid=") == 1 for line in owners)


def test_squid_and_its_workers_have_the_library(proxy: Proxy) -> None:
    pids = (squid(proxy.process), *workers(proxy.process))
    assert len(pids) == WORKERS + 2
    assert all(has_library(pid) for pid in pids)


def test_helper_children_have_neither_the_library_nor_its_variables(proxy: Proxy) -> None:
    def helpers() -> list[int]:
        return [pid for worker in workers(proxy.process) for pid in children(worker)]

    wait_until(lambda: len(helpers()) >= 2 * WORKERS, "the helpers of all workers run")
    for pid in helpers():
        assert "helper" in Path(f"/proc/{pid}/cmdline").read_text()
        assert not has_library(pid)
        assert not {"LD_PRELOAD", "MPTCP_LISTEN_PORTS"} & environment(pid).keys()
