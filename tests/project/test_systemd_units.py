"""The units of systemd: how exposed they are, and that they fail where a restart cures nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from unit_exposure import MOST, exposure

from mptcp_common.exit_status import CONFIGURATION, USAGE
from mptcp_common.trust import THROTTLER_USER

UNITS = Path(__file__).parents[2] / "systemd"
PROXY, RELAY, THROTTLER, CONSOLE, PORTAL = (
    UNITS / f"mptcp-{name}.service" for name in ("proxy", "relay", "throttler", "console", "portal")
)
ALL = (PROXY, RELAY, THROTTLER, CONSOLE, PORTAL)
COMMANDS = {unit: (unit.stem, "") for unit in ALL} | {RELAY: ("mptcp-proxy", " --role relay")}
RELOADING = [PROXY, RELAY, THROTTLER]


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)


@pytest.mark.parametrize("unit", ALL, ids=lambda unit: unit.name)
def test_the_exposure_is_low(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED: systemd-analyze is not installed")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    assert exposure(said) <= MOST[unit.stem]


@pytest.mark.parametrize("unit", ALL, ids=lambda unit: unit.name)
def test_what_a_restart_does_not_cure_is_not_started_again(unit: Path) -> None:
    (statuses,) = values(unit, "RestartPreventExitStatus")
    assert set(statuses.split()) == {str(CONFIGURATION), str(USAGE)}
    (burst,), (interval,) = values(unit, "StartLimitBurst"), values(unit, "StartLimitIntervalSec")
    # Each start takes a second or more, and RestartSec besides: the limit has to be reached.
    assert int(burst) * (1 + 5) < int(interval)


@pytest.mark.parametrize("unit", ALL, ids=lambda unit: unit.name)
def test_systemd_is_told_and_reloads_are_waited_for(unit: Path) -> None:
    command, role = COMMANDS[unit]
    command = f"/opt/mptcp-steering-proxy/bin/{command}"
    assert values(unit, "Type") == ["notify"]
    assert values(unit, "ExecStart") == [f"{command} run{role}"]
    assert values(unit, "ExecReload") == ([f"{command} reload{role}"] if unit in RELOADING else [])
    assert int(values(unit, "WatchdogSec")[0]) >= 10


@pytest.mark.parametrize("unit", ALL, ids=lambda unit: unit.name)
def test_addresses_are_waited_for(unit: Path) -> None:
    """At boot an address of the network may come late; five starts without it would be the last."""
    assert "network-online.target" in values(unit, "After")[0].split()
    assert values(unit, "Wants") == ["network-online.target"]


def test_the_relay_is_kept_as_the_proxy_is() -> None:
    """Word for word, but for its names: what is learnt for one holds for the other."""
    hardening = {
        unit: [line for line in unit.read_text().split("[Service]")[1].splitlines() if line and line[0] not in "#E"]
        for unit in (PROXY, RELAY)
    }
    assert [line.replace("mptcprelay", "mptcpproxy") for line in hardening[RELAY]] == hardening[PROXY]
    assert values(RELAY, "ConditionPathExists") == ["/etc/mptcp-proxy/relay-squid.conf"]


def test_the_throttler_is_not_root_and_has_no_more_than_it_uses() -> None:
    assert values(THROTTLER, "User") == [THROTTLER_USER]
    needed = {"CAP_BPF", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_PERFMON", "CAP_SYS_NICE"}
    for key in ("AmbientCapabilities", "CapabilityBoundingSet"):
        assert set(values(THROTTLER, key)[0].split()) == needed
    assert f"\nu {THROTTLER_USER} " in (UNITS / "mptcp-throttler.sysusers").read_text()


def test_what_the_throttler_is_given_of_root_is_taken_back_when_it_has_ended() -> None:
    """Defect: after a purge the lock of iptables was owned by a number that the next user of the host gets."""
    (given,), (back,) = values(THROTTLER, "ExecStartPre"), values(THROTTLER, "ExecStopPost")
    assert set(re.findall(r"chown \S+ (\S+)", given)) == {"/run/xtables.lock"}
    assert given.startswith("-+/bin/sh -c ")
    assert back == "-+/bin/sh -c 'chown root:root /run/xtables.lock && chmod 0600 /run/xtables.lock'"


def test_a_purge_takes_it_back_before_the_user_goes() -> None:
    script = (UNITS.parent / "debian" / "postrm").read_text()
    assert script.index("chown root:root /run/xtables.lock") < script.index("userdel mptcp-throttler")


def test_the_console_is_nobody_and_may_ask_the_throttler_alone() -> None:
    assert values(CONSOLE, "DynamicUser") == ["yes"]
    assert values(CONSOLE, "User") == []
    assert values(CONSOLE, "SupplementaryGroups") == [THROTTLER_USER]
    assert values(CONSOLE, "CapabilityBoundingSet") == [""]
    assert values(CONSOLE, "AmbientCapabilities") == []
    assert not re.search(r"^(ReadWritePaths|\w+Directory)=", CONSOLE.read_text(), re.MULTILINE)
    # Its token is root's to write. What fails there the console says itself.
    assert values(CONSOLE, "ExecStartPre") == ["-+/opt/mptcp-steering-proxy/bin/mptcp-console make-token"]


def test_the_portal_is_nobody_who_may_ask_the_throttler() -> None:
    assert values(PORTAL, "DynamicUser") == ["yes"]
    assert values(PORTAL, "SupplementaryGroups") == [THROTTLER_USER]
    assert values(PORTAL, "CapabilityBoundingSet") == values(PORTAL, "AmbientCapabilities") == [""]
    # Without netlink it could not tell Squid from other programs of the host.
    assert values(PORTAL, "RestrictAddressFamilies") == ["AF_UNIX AF_INET AF_INET6 AF_NETLINK"]
