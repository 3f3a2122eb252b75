"""Squid's listeners for transparent proxying ("tproxy"), which need a capability in its workers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from proxying import configuration, fetch, has_libraries, mptcp_listeners, workers

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
NET_BIND_SERVICE, NET_ADMIN = 1 << 10, 1 << 12
"""linux/capability.h"""
PORT = 3129


def capabilities(pid: int) -> int:
    """Return those in force."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("CapEff:"))
    return int(line.split()[1], 16)


@pytest.mark.nightly(besides=("[2]",))
@pytest.mark.parametrize("number", [1, 2])
def test_workers_have_the_capabilities_that_squid_alone_gives_them(
    testbed: Testbed, require: Callable[..., None], number: int
) -> None:
    require("squid", "apache2", "curl", "mptcpize", "gcc")
    node, origin = testbed["proxy"], start_origin(testbed["origin"], {"file.bin": 100_000})
    started = start_proxy(node, configuration(node, f"workers {number}"))
    count = number if number == 1 else number + 1  # several have a coordinator
    wait_until(lambda: len(workers(started.process)) == count, "all workers run")

    def in_force() -> set[int]:
        return {capabilities(pid) for pid in workers(started.process)}

    wait_until(lambda: in_force() == {NET_BIND_SERVICE}, "they have given up what they do not need")
    before = set(workers(started.process))
    configuration(node, f"workers {number}", f"http_port {PORT} tproxy")
    started.process.signal(signal.SIGHUP)
    wait_until(lambda: f"*:{PORT}" in mptcp_listeners(node), "the transparent listener is there")
    wait_until(lambda: in_force() == {NET_BIND_SERVICE | NET_ADMIN}, "they have what it needs")
    assert set(workers(started.process)) == before, "none of them died of it"
    assert all(has_libraries(pid) for pid in before)
    assert started.process.stop(60) == 0

    started = start_proxy(node, configuration(node, f"workers {number}", f"http_port {PORT} tproxy"))
    wait_until(lambda: in_force() == {NET_BIND_SERVICE | NET_ADMIN}, "they have it from the start")
    wait_until(lambda: mptcp_listeners(node) == {f"*:{PROXY_PORT}", f"*:{PORT}"}, "both listeners are there")
    got = fetch(testbed["client"], origin.url("file.bin"), started.url(), mptcp=True)
    assert (got.status, got.sha256) == (200, origin.digests["file.bin"])
