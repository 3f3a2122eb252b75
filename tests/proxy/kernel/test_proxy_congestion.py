# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the congestion control for clients applies to each of their subflows, and to no other connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from proxying import count_subflows, curl_command, fetch, mptcp_listeners, write_configuration

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.congestion import AVAILABLE
from mptcp_lab.testbed.services import PROXY_PORT, Origin, Proxy, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
FILE = "file.bin"
DEFAULT_SYSCTL = "net.ipv4.tcp_congestion_control"


@pytest.fixture
def origin(testbed: Testbed, require: Callable[..., None]) -> Origin:
    require("squid", "apache2", "curl", "mptcpize", "gcc")
    return start_origin(testbed["origin"], {FILE: 20_000_000})


def congestion_controls(node: LiveNode, expression: Sequence[str]) -> list[str]:
    """Return the congestion control of each established TCP socket that ss(8) finds for *expression*."""
    text = node.run(["ss", "-HtinO", "state", "established", *expression]).stdout
    return re.findall(r"\b(bbr|cubic|reno)\b(?!:)", text)  # "bbr:(…)" contains internal values of bbr


@contextmanager
def downloading(testbed: Testbed, origin: Origin, proxy: Proxy) -> Iterator[None]:
    """Keep a download over two subflows running."""
    client = testbed["client"]
    options = ["--limit-rate", "1M", "-o", "/dev/null"]
    download = client.popen(
        curl_command(origin.url(FILE), proxy.url(), mptcp=True, tunnel=False, options=options), name="curl"
    )
    wait_until(lambda: count_subflows(client, PROXY_PORT) >= 2, "the download has two subflows", process=download)
    yield
    assert download.running, "the download ended before the test could check it"
    download.kill_tree()


@pytest.mark.nightly(except_for=("default-two", "reno-one"))
@pytest.mark.parametrize("worker_statement", ["workers 1", "workers 2"], ids=["one worker", "two workers"])
@pytest.mark.parametrize(
    ("arguments", "client_control"),
    [((), "bbr"), (("--congestion-control", "reno"), "reno"), (("--congestion-control", "keep"), None)],
    ids=["default", "reno", "keep"],
)
def test_congestion_control_applies_only_to_subflows_of_clients(
    testbed: Testbed, origin: Origin, arguments: Sequence[str], client_control: str | None, worker_statement: str
) -> None:
    node = testbed["proxy"]
    default = node.run(["sysctl", "-n", DEFAULT_SYSCTL]).stdout.strip()
    expected = client_control or default
    if client_control and (default == expected or expected not in AVAILABLE.read_text().split()):
        pytest.skip(f"NOT TESTED: this kernel has no {expected} in addition to {default}")
    proxy = start_proxy(node, write_configuration(node, worker_statement), arguments=arguments)
    with downloading(testbed, origin, proxy):
        initial_and_joined = congestion_controls(node, ["sport", "=", f":{PROXY_PORT}"])
        assert len(initial_and_joined) >= 2
        assert set(initial_and_joined) == {expected}
        assert congestion_controls(node, ["dport", "=", ":80"]) == [default]
    assert "mptcp_listen" not in proxy.process.output()


def test_missing_congestion_control_is_logged_and_the_proxy_runs(testbed: Testbed, origin: Origin) -> None:
    """The unknown name simulates bbr on a kernel that lacks it."""
    node = testbed["proxy"]
    proxy = start_proxy(node, arguments=("--congestion-control", "nonesuch"))
    assert mptcp_listeners(node) == {f"*:{PROXY_PORT}"}
    download = fetch(testbed["client"], origin.url(FILE), proxy.url(), mptcp=True)
    assert (download.status, download.sha256) == (200, origin.digests[FILE])
    # Each worker binds its own listener and logs the line once.
    (line,) = {line for line in proxy.process.output().splitlines() if "mptcp_listen" in line}
    assert "cannot use congestion control nonesuch for MPTCP, the host's default is used: No such file" in line
