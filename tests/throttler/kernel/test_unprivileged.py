# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the throttler with the rights of its systemd unit: not root, but five capabilities."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from throttler_site import POLICY, PORT, Site, clients, connection, knows_both_subflows, read_status, until

from mptcp_lab.testbed import Process
from mptcp_lab.testbed.services import program, throttler_mounts
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.usefixtures("unchanged_kernel"),
    pytest.mark.nightly(except_for=("iptables",)),
]

USER = 64123
CAPABILITIES = "-all,+net_admin,+net_raw,+bpf,+perfmon,+sys_nice"
STEERING_POLICY = POLICY + "  - {name: order, steer: {mode: active-standby, active: wifi, standby: ethernet}}\n"


@pytest.fixture
def start(site: Site) -> Iterator[Callable[..., Process]]:
    """Yield a function that starts the daemon without root."""
    if not all(directory.stat().st_mode & 0o001 for directory in Path(sys.executable).absolute().parents):
        pytest.skip(f"NOT TESTED: other users may not enter {Path(sys.executable).parent}")
    mounts = throttler_mounts(site.proxy)
    state = Path(mounts["/run/mptcp-throttler"])
    os.chown(state, USER, USER)
    for file in state.iterdir():
        os.chown(file, USER, USER)
    site.testbed.directory.chmod(0o755)
    for file in (site.config, site.policy):
        file.chmod(0o644)
    lock = state / "xtables.lock"
    lock.touch(0o600)
    os.chown(lock, USER, -1)

    def start_throttler(**environment: str) -> Process:
        command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
        command += [
            f"--{capability_set}={CAPABILITIES}" for capability_set in ("inh-caps", "ambient-caps", "bounding-set")
        ]
        command += [program("mptcp-throttler"), "run", "--config", str(site.config)]
        # systemd mounts cgroup2 at this path. The namespace's /sys lacks it, and only root can mount it.
        command = ["sh", "-ec", 'mount -t cgroup2 none /sys/fs/cgroup; exec "$@"', "sh", *command]
        environment = {"XTABLES_LOCKFILE": "/run/mptcp-throttler/xtables.lock", **environment}
        return site.proxy.popen(command, name="unprivileged", mounts=mounts, env=environment)

    yield start_throttler
    # The test, not the daemon, created this file, so the test removes it.
    lock.unlink()


def status_socket(site: Site) -> Path:
    return Path(throttler_mounts(site.proxy)["/run/mptcp-throttler"]) / "status.sock"


def status_is_in_step(site: Site, process: Process) -> Callable[[], bool]:
    def check() -> bool:
        assert process.running, process.output()
        try:
            return bool(read_status(status_socket(site))["in_step"])
        except OSError:
            return False

    return check


def test_unprivileged_throttler_caps_subflows_and_adopts_entries(site: Site, start: Callable[..., Process]) -> None:
    first = start()
    until(status_is_in_step(site, first), timeout=60)
    with connection(site):
        until(lambda: knows_both_subflows(status_socket(site)))
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        entries = site.entries()
        first.kill()
        second = start()
        until(status_is_in_step(site, second), timeout=60)
        assert site.entries() == entries
        assert read_status(status_socket(site))["paced"]
        second.signal(signal.SIGTERM)
        assert second.wait(60) == 0, second.output()
    assert "Traceback" not in first.output() + second.output()
    assert "WARNING" not in second.output()


def test_unprivileged_throttler_steers_and_its_keeper_restores_sysctls(
    site: Site, start: Callable[..., Process]
) -> None:
    def path_manager() -> str:
        return site.proxy.run(["cat", "/proc/sys/net/mptcp/pm_type"]).stdout.strip()

    site.policy.write_text(STEERING_POLICY)
    process = start()
    until(status_is_in_step(site, process), timeout=60)
    assert path_manager() == "1"
    with connection(site):
        # Only a path manager in user space can set the backup flag of one subflow.
        until(lambda: any(backups(site)))
        process.kill()
        until(lambda: path_manager() == "0")
    process = start()
    until(status_is_in_step(site, process), timeout=60)
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.output()
    assert path_manager() == "0"


def backups(site: Site) -> list[bool]:
    """Return for each subflow whether the proxy's side set its backup flag."""
    with site.proxy.entered(), closing(SocketDiagnostics([PORT])) as sockets:
        return [each.made_backup for batch in sockets.batches() for each in batch]


def test_unreadable_iptables_lock_is_reported_in_one_line(site: Site, start: Callable[..., Process]) -> None:
    if site.backend != "iptables":
        pytest.skip("nftables has no such lock")
    lock = site.testbed.directory / "xtables.lock"
    lock.touch(0o600)
    process = start(XTABLES_LOCKFILE=str(lock))
    assert process.wait(60) == 1
    (line,) = process.output().splitlines()
    assert f"iptables' lock {lock} cannot be opened: Permission denied; mptcp-throttler.service gives the file" in line
