# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a Squid from ``./run squid``, which opens Multipath TCP listeners itself.

The tests are skipped if dist has no such package, unless ``--all`` builds it. To run all other tests here with this
Squid:

    dpkg-deb -x dist/squid_….deb /tmp/rebuilt
    sudo PATH=/tmp/rebuilt/usr/sbin:$PATH .venv/bin/pytest tests/proxy/kernel
"""

from __future__ import annotations

import json
import signal

import pytest
from proxying import fetch, mptcp_listeners, tcp_listeners, write_configuration

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import Proxy, program, start_origin, start_proxy, wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("squid_with_patches")]
LOG_LINE = "Multipath TCP with its own option mptcp"


def http_port_lines(proxy: Proxy) -> list[str]:
    lines = (proxy.state / "squid.conf").read_text().splitlines()
    return [line for line in lines if line.startswith("http_port")]


def reload(proxy: Proxy, expected_count: int) -> None:
    """Reload, and wait until Squid has logged this number of opened listeners since its start."""
    proxy.process.signal(signal.SIGHUP)
    wait_until(
        lambda: (proxy.logs / "cache.log").read_text().count("Accepting HTTP") >= expected_count,
        "Squid opens new listeners",
        process=proxy.process,
    )


@pytest.mark.parametrize("worker_count", [1, 2])
def test_own_listeners_accept_mptcp_and_tcp_and_origins_see_tcp(testbed: Testbed, worker_count: int) -> None:
    worker_statement = f"workers {worker_count}"
    node, client = testbed["proxy"], testbed["client"]
    origin = start_origin(testbed["origin"], {"file.bin": 5_000_000})
    proxy = start_proxy(node, write_configuration(node, worker_statement))
    assert LOG_LINE in proxy.process.output()
    (line,) = http_port_lines(proxy)
    assert line.split().count("mptcp") == 1
    assert ("worker-queues" in line.split()) == (worker_count > 1)
    wait_until(lambda: mptcp_listeners(node) == {"*:3128"}, "an MPTCP listener is open", process=proxy.process)
    for mptcp in (True, False):
        download = fetch(client, origin.url("file.bin"), proxy.url(), mptcp=mptcp)
        assert (download.status, download.sha256) == (200, origin.digests["file.bin"])
    assert _accepted_mptcp_connections(node) == 1
    count_before = (proxy.logs / "cache.log").read_text().count("Accepting HTTP")
    write_configuration(node, worker_statement, "http_port 3129")
    reload(proxy, count_before + 2)
    wait_until(lambda: mptcp_listeners(node) == {"*:3128", "*:3129"}, "both ports listen", process=proxy.process)
    assert "mptcp_listen" not in proxy.process.output()


def _accepted_mptcp_connections(node: LiveNode) -> int:
    """Return the number of MPTCP connections that this host has accepted."""
    text = node.run(["nstat", "-asz", "MPTcpExtMPCapableACKRX"]).stdout
    return int(float(text.split("MPTcpExtMPCapableACKRX")[1].split()[0]))


def test_kernel_without_mptcp_is_logged_and_squid_serves_plain_tcp(testbed: Testbed) -> None:
    node = testbed["proxy"]
    origin = start_origin(testbed["origin"], {"file.bin": 1_000_000})
    with node.sysctl("net.mptcp.enabled", "0"):
        proxy = start_proxy(node, write_configuration(node))
        wait_until(lambda: tcp_listeners(node) == {"*:3128"}, "the port listens", process=proxy.process)
        assert mptcp_listeners(node) == set()
        download = fetch(testbed["client"], origin.url("file.bin"), proxy.url(), mptcp=True)
        assert (download.status, download.sha256) == (200, origin.digests["file.bin"])
        assert "WARNING: Cannot use Multipath TCP for" in (proxy.logs / "cache.log").read_text()


def test_squid_accepts_mptcp_without_the_library(testbed: Testbed) -> None:
    """The loader refuses the library, so only Squid's option can have opened the listener."""
    node = testbed["proxy"]
    broken = node.directory / "mptcp_listen.so"
    broken.write_bytes(b"no library")
    broken.with_name("squid_turns.so").write_bytes(b"no library")
    proxy = start_proxy(node, write_configuration(node), env={"MPTCP_LISTEN_SHIM": str(broken)})
    wait_until(lambda: mptcp_listeners(node) == {"*:3128"}, "an MPTCP listener is open", process=proxy.process)


def test_doctor_reports_squids_own_option(testbed: Testbed) -> None:
    node = testbed["proxy"]
    argv = [program("mptcp-proxy"), "doctor", "--json", "--config", str(write_configuration(node))]
    answer = node.run(argv, check=False, timeout=120)
    (finding,) = (each for each in json.loads(answer.stdout) if each["check"] == "listeners")
    assert finding["status"] == "ok"
    assert "with its own option mptcp" in finding["text"]
