# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the keeper: after the throttler dies, joins still succeed, the sysctls are restored, and the keeper ends.

The kernel accepts joins while any process on the host listens to path-manager events, in any network namespace. A
throttler in another namespace would therefore hide a keeper that does not listen. So the tests read from the kernel
which sockets in the proxy's namespace listen. A join is refused only if no process in another namespace listens either.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from throttling import PATHS, ThrottledSite

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Origin, Throttler, start_origin, wait_until
from mptcp_throttler.kernel.mptcp_pm.family import FLAGS_NOTE, find_family
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics

pytestmark = pytest.mark.kernel

STANDBY = PATHS + "rules: [{name: s, steer: {mode: active-standby, active: wifi, standby: ethernet}}]\n"
SYSCTLS = ("net.mptcp.pm_type", "net.mptcp.stale_loss_cnt")
REJECTED = "MPTcpExtMPJoinRejected"
ENDPOINT = ["ip", "mptcp", "endpoint"]
NETLINK_GENERIC = 16
"""From linux/netlink.h."""


@dataclass
class Site(ThrottledSite):
    """A proxy, with clients in this process. Each client keeps a connection open after one answer."""

    origin: Origin
    started: list[Throttler] = field(default_factory=list)

    def start(self, policy: str) -> Throttler:
        self.started.append(super().start(policy))
        return self.started[-1]

    @contextmanager
    def connections(self, count: int = 1) -> Iterator[list[int]]:
        """Open *count* connections, one after the other. Yields their client ports."""
        with ExitStack() as stack:
            yield [self.open_connection(stack) for _ in range(count)]

    def open_connection(self, stack: ExitStack) -> int:
        with self.testbed["client"].entered():
            client = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP))
        client.settimeout(60)
        client.connect((self.node.service_address(), 3128))
        client.sendall(f"GET {self.origin.url('small')} HTTP/1.1\r\nHost: origin\r\n\r\n".encode())
        assert b" 200 " in client.recv(10_000)
        port: int = client.getsockname()[1]
        return port

    def subflows(self) -> dict[int, int]:
        """Return the number of subflows of each connection, by the client's port of its first subflow."""
        with self.node.entered():
            diagnostics = SocketDiagnostics((3128,))
            found = list(diagnostics.subflows())
            diagnostics.close()
        number = Counter(each.token for each in found)
        return {each.four_tuple.remote_port: number[each.token] for each in found if each.initial}

    def have_joined(self, ports: list[int]) -> bool:
        found = self.subflows()
        return all(found.get(port) == 2 for port in ports)

    @contextmanager
    def second_path_removed(self) -> Iterator[Callable[[], None]]:
        """Remove the client's second endpoint. Yields a function that adds it again, so that all connections join."""
        client = self.testbed["client"]
        shown = [line.split() for line in client.run([*ENDPOINT, "show"]).stdout.splitlines()]
        ((address, _id, number, *_),) = (words for words in shown if words[0] == client.address("wlan0"))
        endpoints_to_add = [[*ENDPOINT, "add", address, "id", number, "subflow", "dev", "wlan0"]]
        client.run([*ENDPOINT, "delete", "id", number])

        def join() -> None:
            while endpoints_to_add:
                client.run(endpoints_to_add.pop())

        try:
            yield join
        finally:
            join()

    def sysctls(self) -> list[str]:
        return self.node.run(["sysctl", "-n", *SYSCTLS]).stdout.split()

    def keepers(self) -> list[int]:
        return keepers(self.node.run(["ip", "netns", "pids", self.node.namespace]).stdout.split())

    def rejected_joins(self) -> int:
        return self.node.mib().get(REJECTED, 0)

    def listening_sockets(self) -> set[int]:
        """Return the inodes of the sockets in the proxy's namespace that listen to the path manager's events."""
        with self.node.entered():
            return subscribed_sockets(Path("/proc/thread-self/net/netlink"))

    def listens(self, pid: int) -> bool:
        """Return whether a process has one of these sockets."""
        descriptors = []
        for each in Path(f"/proc/{pid}/fd").iterdir():
            # The process may close a descriptor during the reading.
            with suppress(OSError):
                descriptors.append(os.readlink(each))
        return any(f"socket:[{inode}]" in descriptors for inode in self.listening_sockets())


def subscribed_sockets(listing: Path) -> set[int]:
    """Return the inodes of the netlink sockets in *listing* that listen to the path manager's events."""
    group_bit = 1 << (find_family()[1] - 1)
    rows = [line.split() for line in listing.read_text().splitlines()[1:]]
    return {int(row[9]) for row in rows if int(row[1]) == NETLINK_GENERIC and int(row[3], 16) & group_bit}


def any_process_listens() -> bool:
    """Return whether any process on this host listens to the path manager's events, in any network namespace."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if subscribed_sockets(process / "net" / "netlink"):
                return True
        except OSError:
            continue  # The process has ended
    return False


def keepers(pids: list[str]) -> list[int]:
    """Return which of the processes are keepers."""
    found = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "mptcp-keeper":
                found.append(int(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.fixture(scope="module")
def shared_site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "nftables")
    testbed = make_module_testbed()
    return Site.start_on(testbed, start_origin(testbed["origin"], {"small": 1000}))


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    """The site. Throttlers and keepers of a test are ended before the next test."""
    yield shared_site
    for throttler in shared_site.started:
        throttler.process.stop()
    shared_site.started.clear()
    shared_site.cleanup()


def wait_for_two_checks(keeper: int) -> None:
    """Wait until the keeper has checked twice which connections remain. The keeper sleeps before each check."""

    def sleep_count() -> int:
        (count,) = re.findall(r"^voluntary_ctxt_switches:\t(\d+)", Path(f"/proc/{keeper}/status").read_text(), re.M)
        return int(count)

    before = sleep_count()
    wait_until(lambda: sleep_count() >= before + 4, "the keeper has checked twice")


def kill_throttler_and_keeper(throttler: Throttler, keeper: int) -> None:
    """Kill both, so that the throttler has no time to start another keeper."""
    os.kill(throttler.process.pid, signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    throttler.process.kill()


def test_connections_can_join_after_the_throttler_was_killed(site: Site) -> None:
    assert not site.listening_sockets()
    before = site.sysctls()
    throttler = site.start(STANDBY)
    assert site.sysctls() == ["1", "3"]
    (keeper,) = site.keepers()
    with ExitStack() as old, ExitStack() as new:
        with site.second_path_removed() as join:
            ports = [site.open_connection(old) for _ in range(5)]
            rejected_joins = site.rejected_joins()
            throttler.process.kill()
            assert site.listens(keeper)
            # Connections that are opened now, while the keeper works, must be able to join, too.
            ports += [site.open_connection(old) for _ in range(5)]
            wait_until(lambda: site.sysctls() == before, "the keeper restores the sysctls")
            later = [site.open_connection(new) for _ in range(5)]
            join()
            wait_until(lambda: site.have_joined(ports + later), "every connection has its second path")
            assert site.rejected_joins() == rejected_joins
        # The old connections need the keeper. The keeper ends with them, even if newer connections exist.
        wait_for_two_checks(keeper)
        assert site.keepers() == [keeper]
        assert site.listens(keeper)
        old.close()
        wait_until(lambda: not site.keepers(), "the keeper ends")
        assert site.have_joined(later)
        assert not (throttler.state / "path-manager.sock").exists()
        assert not (throttler.state / "sysctls.json").exists()
        assert not site.listening_sockets()
    site.cleanup()


@pytest.mark.nightly
def test_joins_are_refused_if_the_keeper_is_killed_too(site: Site) -> None:
    """Without a keeper, joins are refused. So the success of the joins in the previous test is due to the keeper."""
    before = site.sysctls()
    throttler = site.start(STANDBY)
    rejected_joins = site.rejected_joins()
    kill_throttler_and_keeper(throttler, site.keepers()[0])
    # The kernel closes the keeper's sockets when the keeper's process next gets a processor.
    wait_until(lambda: not site.listening_sockets(), "the keeper has ended")
    others_listen = any_process_listens()
    with site.connections() as (port,):
        wait_until(lambda: site.rejected_joins() > rejected_joins or site.have_joined([port]), "the join has ended")
        assert not site.have_joined([port]) or others_listen or any_process_listens()
    assert site.sysctls() == ["1", "3"]
    site.cleanup()
    assert site.sysctls() == before


def test_older_connection_can_join_after_a_stop(site: Site) -> None:
    before = site.sysctls()
    throttler = site.start(STANDBY)
    with site.second_path_removed() as join, site.connections() as ports:
        throttler.process.signal(signal.SIGTERM)
        assert throttler.process.wait(60) == 0
        assert site.sysctls() == before
        join()
        wait_until(lambda: site.have_joined(ports), "the connection has its second path")
        assert len(site.keepers()) == 1
    wait_until(lambda: not site.keepers(), "the keeper ends")


@pytest.mark.nightly
def test_successor_uses_the_keeper_and_replaces_a_killed_one(site: Site) -> None:
    before = site.sysctls()
    throttler = site.start(STANDBY)
    with site.connections():
        (keeper,) = site.keepers()
        throttler.process.kill()
        throttler = site.start(STANDBY)
        assert site.keepers() == [keeper]
        assert site.sysctls() == ["1", "3"]
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: site.keepers() not in ([], [keeper]), "a new keeper is started")
        assert site.sysctls() == ["1", "3"]
        throttler.process.signal(signal.SIGTERM)
        assert throttler.process.wait(60) == 0
        assert site.sysctls() == before
        assert site.keepers()
        site.cleanup()
        assert not site.keepers()


KILLED_PROGRAM = """\
import asyncio, os, signal, sys
from dataclasses import dataclass, field
from pathlib import Path
from mptcp_throttler.kernel.access import REAL
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.runtime.path_manager import UserspacePathManager

async def main():
    path_manager = UserspacePathManager(Path(sys.argv[1]), REAL)
    policy = load_policy(sys.argv[2], "policy.yaml")
    await path_manager.prepare(policy)
    await path_manager.commit(policy)
    assert Path("/proc/sys/net/mptcp/pm_type").read_text() == "1\\n"
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.nightly
def test_twenty_kills_leave_at_most_one_keeper_which_ends(site: Site, tmp_path: Path) -> None:
    before = site.sysctls()
    with site.connections():
        for number in range(20):
            run = site.node.run([sys.executable, "-c", KILLED_PROGRAM, str(tmp_path), STANDBY], check=False)
            assert run.returncode == -signal.SIGKILL, run.stderr
            wait_until(lambda: site.sysctls() == before, "the keeper restores the sysctls")
            assert len(site.keepers()) <= 1, number
    wait_until(lambda: not site.keepers(), "the keeper ends")
    # The file that records backup flags remains until a start or cleanup has reset the flags.
    assert [file.name for file in tmp_path.iterdir()] == [FLAGS_NOTE]


def test_keeper_ignores_signals_to_all_processes_of_the_service(site: Site) -> None:
    before = site.sysctls()
    throttler = site.start(STANDBY)
    (keeper,) = site.keepers()
    with site.connections():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(keeper, number)
        # Stop the keeper, so that it receives the throttler's end and the signal at the same time, even on a busy
        # machine.
        os.kill(keeper, signal.SIGSTOP)
        throttler.process.kill()
        os.kill(keeper, signal.SIGTERM)
        os.kill(keeper, signal.SIGCONT)
        wait_for_two_checks(keeper)
        assert site.keepers() == [keeper]
        wait_until(lambda: site.sysctls() == before, "the keeper restores the sysctls")

        def has_ended() -> bool:
            with suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGTERM)
            return not site.keepers()

        # After its second check, the keeper no longer ignores SIGTERM, which it gets when the host shuts down.
        wait_until(has_ended, "the keeper ends")
    site.cleanup()


def test_keeper_uses_little_memory(site: Site) -> None:
    throttler = site.start(STANDBY)
    status = Path(f"/proc/{site.keepers()[0]}/status").read_text()
    (resident,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    assert resident < 16_000, status
    throttler.process.signal(signal.SIGTERM)
    assert throttler.process.wait(60) == 0
    wait_until(lambda: not site.keepers(), "the keeper ends")
