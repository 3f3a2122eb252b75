# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for an experiment of the paper on hosts that are reached only by ssh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from platform import release
from typing import Any

import pytest
from ssh_hosts import PARTS, SshHosts, plain, start

from mptcp_bench.result_file import FILE, load
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.commands import program
from mptcp_lab.testbed.services import wait_until

pytestmark = pytest.mark.kernel


@pytest.fixture
def hosts(make_testbed: Callable[..., Testbed], require: Any) -> SshHosts:
    require("sshd", "ssh", "squid", "apache2", "wget", "mptcpize", "htb")
    return start(make_testbed(plain()))


@pytest.mark.nightly
def test_experiment_of_the_paper_is_one_command_on_real_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    """Run the command line in a namespace from which the hosts are reached only by ssh."""
    argv = [program("mptcp-bench"), "run", "fig6", "--quick", "--set", "repetitions=1"]
    argv += ["--inventory", str(hosts.inventory())]
    done = hosts.core.run([*argv, "--output", str(tmp_path)], check=False, timeout=900)
    assert all("attempts repeated" in line for line in done.stderr.splitlines()), done.stdout + done.stderr
    result = load(tmp_path / "fig6" / FILE)
    shares = {run["cell"]: run["share_ethernet"] for run in result.data["runs"]}
    assert len(shares) == 4
    assert shares["(b) throttled, repeated transfer"] < shares["not throttled"]
    assert {path.name for path in (tmp_path / "fig6").iterdir()} == {FILE, "figure.png", "figure.svg"}
    assert result.provenance.kernel == f"client {release()}, proxy {release()}, origin {release()}"
    assert result.parameters["inventory"] == str(hosts.inventory())
    refused = hosts.core.run([*argv, "--set", "wifi.loss=1%"], check=False, timeout=300)
    assert refused.returncode == 1
    assert "real hosts have their own links" in refused.stderr
    for part in PARTS:
        wait_until(lambda part=part: not hosts.processes(part), f"the programs on {part} have ended")  # type: ignore[misc]
        assert hosts.directories(part) == []
    hosts.wait_until_unchanged()
