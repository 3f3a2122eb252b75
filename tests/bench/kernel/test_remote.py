# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a lab whose hosts are reached only by ssh: an experiment of the paper, and that nothing is left behind.

The hosts are namespaces with an sshd each (``ssh_hosts``). The driver runs in another namespace, from which it can
reach them, but not their files or kernel.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from platform import release
from typing import Any

import pytest
from ssh_hosts import PARTS, USER, SshHosts, plain, start

from mptcp_bench.result_file import FILE, load
from mptcp_lab.agent.processes import TMPFS
from mptcp_lab.remote import SshHost, read_inventory, remote_lab
from mptcp_lab.testbed import Testbed, TestbedError
from mptcp_lab.testbed.commands import program
from mptcp_lab.testbed.services import wait_until

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def hosts(make_module_testbed: Callable[..., Testbed], require: Any) -> SshHosts:
    require("sshd", "ssh", "sudo", "squid", "apache2", "wget", "mptcpize", "htb")
    return start(make_module_testbed(plain()))


@pytest.fixture(scope="module", autouse=True)
def hosts_are_restored(hosts: SshHosts) -> Iterator[None]:
    """Check at the end that the tests left nothing on the hosts."""
    yield
    check_hosts(hosts)


def check_hosts(hosts: SshHosts) -> None:
    """Check that no program or directory of a run remains, and that the kernel state is as before."""
    for part in PARTS:
        wait_until(lambda part=part: not hosts.processes(part), f"the programs on {part} have ended")  # type: ignore[misc]
        assert hosts.directories(part) == []
    hosts.wait_until_unchanged()


@pytest.fixture
def origin_host(hosts: SshHosts) -> Iterator[SshHost]:
    """Yield the origin. It is the only connected host."""
    with ExitStack() as stack:
        stack.enter_context(hosts.core.entered())
        yield stack.enter_context(SshHost(read_inventory(hosts.inventory()).origin))


@pytest.mark.nightly
def test_experiment_of_the_paper_is_one_command_on_real_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    """Run the command line in a namespace from which the hosts are reached only by ssh, one of them as a sudo user."""
    inventory = hosts.inventory(client__ssh=hosts.destination("client", USER))
    argv = [program("mptcp-bench"), "run", "fig6", "--quick", "--set", "repetitions=1", "--inventory", str(inventory)]
    done = hosts.core.run([*argv, "--output", str(tmp_path)], check=False, timeout=900)
    assert all("attempts repeated" in line for line in done.stderr.splitlines()), done.stdout + done.stderr
    result = load(tmp_path / "fig6" / FILE)
    shares = {run["cell"]: run["share_ethernet"] for run in result.data["runs"]}
    assert len(shares) == 4
    assert shares["(b) throttled, repeated transfer"] < shares["not throttled"]
    assert {path.name for path in (tmp_path / "fig6").iterdir()} == {FILE, "figure.png", "figure.svg"}
    assert result.provenance.kernel == f"client {release()}, proxy {release()}, origin {release()}"
    assert result.parameters["inventory"] == str(inventory)
    refused = hosts.core.run([*argv, "--set", "wifi.loss=1%"], check=False, timeout=300)
    assert refused.returncode == 1
    assert "real hosts have their own links" in refused.stderr
    check_hosts(hosts)


def test_ssh_host_runs_commands_like_a_namespace(origin_host: SshHost) -> None:
    host = origin_host
    assert host.run(["cat"], input="naïve\n").stdout == "naïve\n"
    for argv, message in (
        (["sh", "-c", "echo err >&2; exit 3"], r"(?s)^\[origin\] sh -c .*: exit code 3\n    err$"),
        (["no-such-program"], "the program 'no-such-program' is not installed"),
        (["sleep", "60"], r"sleep 60: not ended within 0\.2 s"),
    ):
        with pytest.raises(TestbedError, match=message):
            host.run(argv, timeout=0.2 if argv[0] == "sleep" else 30)
    # Quotes, spaces and shell characters reach the program unchanged.
    assert host.run(["printf", "%s|", "a b", "'", "$HOME;", "\\", "*"]).stdout == "a b|'|$HOME;|\\|*|"
    assert (host.address("eth0"), host.service_address(6)) == ("10.77.9.2", "fd77:9::2")
    with pytest.raises(KeyError, match="origin:wlan0 has no IPv4 address"):
        host.address("wlan0")


def test_programs_of_an_ssh_host_are_watched_signalled_and_ended(origin_host: SshHost) -> None:
    script = 'trap "echo caught; exit 7" TERM; echo "$COLOR"; ls /mnt; while :; do sleep 0.05; done'
    trap = origin_host.popen(["sh", "-c", script], name="trap", mounts={"/mnt": TMPFS}, env={"COLOR": "red"})
    wait_until(lambda: "red" in trap.output(), "the program runs", process=trap)
    assert trap.returncode is None
    assert trap.stop() == 7
    assert trap.tail() == "\n    red\n    caught"
    # The numbers are random, because the hosts share their process table with each other and with other tests.
    first, second = (f"{seconds}.{secrets.randbelow(10**9):09}" for seconds in (1000, 1001))
    parent = origin_host.popen(["sh", "-c", f"sleep {first} & sleep {second}; true"])
    children = ["pgrep", "-f", f"^sleep ({first}|{second})$"]
    wait_until(lambda: len(origin_host.run(children, check=False).stdout.split()) == 2, "the children run")
    parent.kill_tree()
    wait_until(lambda: not origin_host.run(children, check=False).stdout, "the children have ended")
    with pytest.raises(TestbedError, match=r"start no-such-program: the program 'no-such-program' is not installed"):
        origin_host.popen(["no-such-program"])


KILL_SESSION = ["sh", "-c", 'kill $(ps -o ppid= -p "$PPID")']
"""Command that kills the session's sshd: the parent of the agent, which is the parent of this command."""


def test_host_restores_its_state_after_the_connection_was_lost(hosts: SshHosts) -> None:
    def lose(host: SshHost) -> None:
        with host, host.sysctl("net.ipv4.tcp_rmem", "4096 8192 16384"):
            # The second program leaves its parent and its session.
            host.popen(["sh", "-c", "setsid sleep 1000 & sleep 1000"])
            host.run(KILL_SESSION)

    host = SshHost(read_inventory(hosts.inventory()).origin)
    with (
        hosts.core.entered(),
        pytest.raises(TestbedError, match=r"^origin: root@10\.77\.9\.2: the connection was lost[^\n]*$"),
    ):
        lose(host)
    check_hosts(hosts)


def test_all_problems_of_the_hosts_are_reported_together(hosts: SshHosts) -> None:
    changes: dict[str, Any] = {"client__paths": {"ethernet": "eth0", "wifi": "wlan1"}, "proxy__interfaces": ["eth7"]}
    inventory = read_inventory(hosts.inventory("refused.yaml", **changes, proxy__commands="/nowhere"))
    with hosts.testbed["origin"].entered():
        server = socket.create_server(("", 80))
    with server, hosts.core.entered(), pytest.raises(TestbedError) as refused, remote_lab(inventory):
        pytest.fail("the lab started in spite of the mistakes")
    proxy, advice = "  proxy: root@10.77.8.2", "check 'commands' in the inventory"
    *lines, last = str(refused.value).splitlines()
    assert lines == [
        "the hosts are not ready:",
        "  client: root@10.77.1.2 has no interface wlan1; it has eth0, wlan0",
        f"{proxy}: there is no program /nowhere/mptcp-proxy; {advice}",
        f"{proxy}: there is no program /nowhere/mptcp-throttler; {advice}",
        f"{proxy} has no interface eth7; it has wan0",
    ], str(refused.value)
    assert last.startswith("  origin: root@10.77.9.2: port 80 is used by users:((")
