# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks of how systemd handles daemons that hang, and a daemon that fails at each start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from containers import Container, wait_until
from installed_services import Site, capped_client

from mptcp_lab.testbed.services import PROXY_PORT, accepts, python_command

HUNG_UNITS: Final = ("mptcp-throttler", "mptcp-proxy")
WATCHDOG_SECONDS: Final = 20
"""The units have 30 and 180 seconds, for which the test would wait too long."""
WATCHDOG_DROP_IN: Final = f"""
for each in {" ".join(HUNG_UNITS)}; do
    mkdir -p /run/systemd/system/$each.service.d
    printf '[Service]\\nWatchdogSec={WATCHDOG_SECONDS}\\n' >/run/systemd/system/$each.service.d/watchdog.conf
done
systemctl daemon-reload
"""
MAX_RESTART_SECONDS: Final = WATCHDOG_SECONDS + 60
"""Seconds until a new process runs: systemd kills the hanging process and waits for RestartSec."""
MAX_STARTS: Final = 5
"""StartLimitBurst= of all units."""
LIMIT_DROP_IN: Final = """
mkdir -p /run/systemd/system/mptcp-proxy.service.d
printf '[Unit]\\nStartLimitIntervalSec=600\\n' >/run/systemd/system/mptcp-proxy.service.d/limit.conf
systemctl daemon-reload
"""
"""Script that sets a longer interval than the unit's minute, in which a loaded machine is too slow for five starts."""
LISTENER: Final = """
import socket, sys, time
listener = socket.create_server(("", int(sys.argv[1])))
print("listens", flush=True)
time.sleep(3600)
"""


def check_hung_daemons_are_restarted(site: Site) -> None:
    """Check that a hanging throttler and supervisor are killed and restarted; caps and clients work afterwards."""
    container = site.container
    with short_watchdog(container):
        with capped_client(site) as client:
            hang_and_wait_for_restart(container, "mptcp-throttler")
            client.until(is_capped, "the restarted throttler caps the connection")
        assert "Fatal Python error: Aborted" in journal(container, "--unit=mptcp-throttler"), (
            "the log does not show where it hung"
        )
        squids = squids_of(container)
        hang_and_wait_for_restart(container, "mptcp-proxy")
        assert not squids & squids_of(container), "Squid survived its supervisor"
        with capped_client(site):
            pass


def is_capped(answer: dict[str, Any]) -> bool:
    return answer["throttler"] == "answered" and any(each["capped"] for each in answer["subflows"])


def hang_and_wait_for_restart(container: Container, unit: str) -> None:
    """Let *unit* hang, and wait until a new process has replaced it."""
    before = container.main_process(unit)
    container.sh(f"kill -STOP {before}")
    wait_until(lambda: container.main_process(unit) not in ("0", before), f"{unit} is restarted", MAX_RESTART_SECONDS)
    wait_until(lambda: container.is_active(unit), f"{unit} is active again")
    assert f"Watchdog timeout (limit {WATCHDOG_SECONDS}s)" in journal(container, f"--unit={unit}")
    assert container.sh(f"systemctl show --value -p NRestarts {unit}").strip() == "1"


@contextmanager
def short_watchdog(container: Container) -> Iterator[None]:
    container.sh(WATCHDOG_DROP_IN)
    container.restart_after_failure(*HUNG_UNITS)
    yield
    container.sh("rm -r /run/systemd/system/mptcp-*.service.d && systemctl daemon-reload")
    container.restart_after_failure(*HUNG_UNITS)


def squids_of(container: Container) -> set[str]:
    """Return the process IDs of the proxy's Squid, without those of the relay."""
    return set(container.sh("ps -eo pid=,args= | awk '/[s]quid.*mptcpproxy/ { print $1 }'").split())


def check_systemd_stops_restarting_a_unit_that_fails_repeatedly(site: Site) -> None:
    """Check a proxy whose port is in use: systemd retries up to the limit, and then reports the unit as failed."""
    container, node = site.container, site.testbed["proxy"]
    container.sh(LIMIT_DROP_IN)
    container.sh("systemctl stop mptcp-proxy && systemctl reset-failed mptcp-proxy")
    other = node.popen(python_command(LISTENER, str(PROXY_PORT)), name="other")
    wait_until(lambda: other.output() == "listens\n", "another program listens at the port")
    assert container.run(["systemctl", "start", "mptcp-proxy"], check=False).returncode != 0
    wait_until(lambda: "mptcp-proxy.service" in container.failed_units(), "systemctl --failed lists the proxy")
    properties = container.sh("systemctl show -p ExecMainStatus -p MainPID mptcp-proxy").split()
    assert sorted(properties) == ["ExecMainStatus=1", "MainPID=0"]
    messages = journal(container, "--unit=mptcp-proxy")
    assert messages.count(f"port {PROXY_PORT} is in use by") == MAX_STARTS
    assert "Start request repeated too quickly" in messages
    other.stop(60)
    # Without reset-failed systemd would refuse the start until the interval has passed (docs/operator.md).
    container.sh("systemctl reset-failed mptcp-proxy && systemctl start mptcp-proxy")
    wait_until(lambda: accepts(site.testbed["client"], site.address, PROXY_PORT), "the proxy listens")
    assert container.failed_units() == ""
    container.sh("rm -r /run/systemd/system/mptcp-proxy.service.d && systemctl daemon-reload")


def journal(container: Container, *options: str) -> str:
    """Return the lines that *options* of journalctl(1) select, after journald has written all earlier messages."""
    return container.sh(f"journalctl --sync; journalctl --no-pager --boot {' '.join(options)}")
