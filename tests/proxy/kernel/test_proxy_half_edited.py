# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that Squid uses the checked copy of a list, even if the operator edits the file before a reload."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from proxying import WITH_RETRIES, fetch, mptcp_listeners, squid_pid, wait_for_workers, worker_pids

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, SQUID_CONFIG, Origin, Proxy, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
UNUSED_ADDRESS = "192.0.2.1\n"
"""A documentation address (RFC 5737), which no host uses."""


@pytest.fixture
def origin(testbed: Testbed, require: Callable[..., None]) -> Origin:
    require("squid", "apache2", "curl", "gcc")
    return start_origin(testbed["origin"], {"file": 1000})


@pytest.fixture
def list_file(testbed: Testbed) -> Path:
    """Return the file with the addresses that are forbidden as destinations."""
    path = testbed.directory / "forbidden.txt"
    path.write_text(UNUSED_ADDRESS)
    return path


@pytest.fixture
def proxy(testbed: Testbed, origin: Origin, list_file: Path) -> Proxy:
    node = testbed["proxy"]
    path = node.directory / "lists.conf"
    rules = f'acl to_listed dst "{list_file}"\nhttp_access deny to_listed\n'
    path.write_text(f"{rules}include {SQUID_CONFIG}\nworkers 2\nshutdown_lifetime 0 seconds\n")
    return start_proxy(node, path)


@pytest.mark.nightly(except_for=("33",))
@pytest.mark.parametrize("edit", ["10.77.9.0/24", "10.77.9.0/33", "half-an-edi"])
def test_unfinished_edit_of_a_list_has_no_effect(
    testbed: Testbed, proxy: Proxy, origin: Origin, list_file: Path, edit: str
) -> None:
    """Defect: after a new address of the host or a worker's restart, Squid read the edited file and ended at an invalid
    word."""
    node, client = testbed["proxy"], testbed["client"]

    def request_status() -> int:
        return fetch(client, origin.url("file"), proxy.url(), options=WITH_RETRIES).status

    assert request_status() == 200
    before = wait_for_workers(proxy)
    list_file.write_text(f"{edit}\n")
    main_pid = squid_pid(proxy.process)
    node.run(["ip", "addr", "add", "192.0.2.77/32", "dev", "lo"])
    message = "this host's addresses have changed"
    wait_until(
        lambda: message in proxy.process.output(), "the supervisor reports the new address", process=proxy.process
    )
    log = proxy.logs / "cache.log"
    reconfigured = "Reconfiguring Squid Cache"
    wait_until(lambda: reconfigured in log.read_text(), "Squid reads the configuration", process=proxy.process)
    assert request_status() == 200
    assert worker_pids(proxy.process) == before, "a worker ended"
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: len(after := worker_pids(proxy.process)) == len(before) and not set(after) & set(before),
        "Squid replaces all workers",
        process=proxy.process,
    )
    wait_until(lambda: mptcp_listeners(node) == {f"*:{PROXY_PORT}"}, "the workers listen", process=proxy.process)
    assert request_status() == 200
    assert squid_pid(proxy.process) == main_pid


def test_reload_rereads_the_list_or_names_the_file_with_the_mistake(
    testbed: Testbed, proxy: Proxy, origin: Origin, list_file: Path
) -> None:
    client = testbed["client"]
    (copy,) = (proxy.state / "lists").iterdir()
    metadata = copy.stat()
    assert (copy.read_text(), stat.S_IMODE(metadata.st_mode), metadata.st_uid) == (UNUSED_ADDRESS, 0o640, 0)
    assert metadata.st_gid == (proxy.state / "squid.conf").stat().st_gid
    list_file.write_text("10.77.9.0/33\n")
    proxy.process.signal(signal.SIGHUP)
    wait_until(lambda: "reload refused" in proxy.process.output(), "the reload is refused", process=proxy.process)
    (refusal,) = [line for line in proxy.process.output().splitlines() if "refused" in line]
    assert f'lists.conf:1: acl to_listed dst "{list_file}": ' in refusal
    assert "/lists/" not in refusal
    assert fetch(client, origin.url("file"), proxy.url()).status == 200
    assert list((proxy.state / "lists").iterdir()) == [copy]
    list_file.write_text("10.77.9.0/24\n")
    proxy.process.signal(signal.SIGHUP)
    wait_until(
        lambda: fetch(client, origin.url("file"), proxy.url()).status == 403,
        "the request is forbidden",
        process=proxy.process,
    )
