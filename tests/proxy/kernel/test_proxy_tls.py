# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for TLS in Squid with the preload library: from clients (https_port), and from a relay to its parent."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import relaying
from proxying import curl_command, fetch, mptcp_listeners, worker_pids, write_configuration

from mptcp_lab.testbed import RELAY, LiveNode, Testbed
from mptcp_lab.testbed.services import start_origin, start_proxy, start_relay

pytestmark = pytest.mark.kernel
PORT, SIZE = 3129, 3_000_000
TIMED_OUT = 28
"""Exit status of curl."""


def create_certificate(node: LiveNode) -> Path:
    """Create a self-signed certificate for the node's address, with its key in the same file."""
    address = node.service_address(4)
    path = node.directory / "tls.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={address}"]
    files = ["-addext", f"subjectAltName=IP:{address}", "-keyout", str(path), "-out", str(path) + ".crt"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    with path.open("a") as file:
        file.write(Path(f"{path}.crt").read_text())
    path.chmod(0o644)
    return path


def test_clients_of_a_tls_port_get_mptcp_and_complete_answers(testbed: Testbed, require: Callable[..., None]) -> None:
    require("squid", "apache2", "curl", "gcc")
    host, client = testbed["proxy"], testbed["client"]
    origin = start_origin(testbed["origin"], {"file": SIZE})
    config = write_configuration(host, f"https_port {PORT} tls-cert={create_certificate(host)}", "workers 1")
    proxy = start_proxy(host, config)
    assert any(each.endswith(f":{PORT}") for each in mptcp_listeners(host))
    before = worker_pids(proxy.process)
    proxy_url = f"https://{host.service_address(4)}:{PORT}"
    insecure = ("--proxy-insecure",)
    for tunnel in (False, True):
        url = origin.url("file", port=443 if tunnel else 80)
        answer = fetch(client, url, proxy_url, mptcp=True, tunnel=tunnel, options=insecure)
        assert (answer.status, answer.sha256) == (200, origin.digests["file"])
    # These clients abort their transfers; the client after them completes its transfer.
    for _ in range(3):
        options = ("-m", "1", "--limit-rate", "500k", "-o", "/dev/null", *insecure)
        aborted = client.run(
            curl_command(origin.url("file"), proxy_url, mptcp=True, tunnel=False, options=options), check=False
        )
        assert aborted.returncode == TIMED_OUT
    assert fetch(client, origin.url("file"), proxy_url, mptcp=True, options=insecure).sha256 == origin.digests["file"]
    assert worker_pids(proxy.process) == before, "a client ended a worker"


def test_relay_reaches_its_parent_over_tls(make_testbed: Callable[..., Testbed], require: Callable[..., None]) -> None:
    require("squid", "apache2", "curl", "gcc")
    testbed = make_testbed(RELAY)
    host, node = testbed["proxy"], testbed["relay"]
    origin = start_origin(testbed["origin"], {"file": SIZE})
    pem = create_certificate(host)
    start_proxy(host, write_configuration(host, f"https_port {PORT} tls-cert={pem}"))
    address = host.service_address(4)
    parent = f"cache_peer {address} parent {PORT} 0 no-query no-digest default tls tls-cafile={pem}.crt name=proxy"
    relay = start_relay(node, relaying.write_configuration(node, parent))
    for tunnel in (False, True):
        url = origin.url("file", port=443 if tunnel else 80)
        answer = fetch(testbed["client"], url, relay.url(), tunnel=tunnel)
        assert (answer.status, answer.sha256) == (200, origin.digests["file"])
    counted = node.run(["nstat", "-asz", "MPTcpExtMPCapableSYNACKRX"]).stdout.splitlines()[-1].split()
    assert int(counted[1]) >= 2, "the relay did not use Multipath TCP"
