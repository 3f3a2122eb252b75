# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the systemd units: their exposure, privileges, restarts and time limits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from unit_exposure import MAX_EXPOSURE, exposure

from mptcp_common.exit_status import CONFIGURATION, USAGE
from mptcp_common.trust import THROTTLER_USER
from mptcp_proxy import reloads
from mptcp_proxy.configuration import sandbox
from mptcp_proxy.configuration.check import MAX_SEARCH_SECONDS
from mptcp_proxy.configuration.sandbox import PROPERTIES
from mptcp_proxy.configuration.source import PhysicalLine
from mptcp_proxy.places import SHARED_MEMORY, Places, Role
from mptcp_proxy.serving import WITHOUT_LISTENERS_SECONDS, WITHOUT_PROCESSES_SECONDS
from mptcp_proxy.squid import PARSE_SECONDS
from mptcp_proxy.supervisor import _PAUSE_BEFORE_EXIT

UNITS = Path(__file__).parents[2] / "systemd"
PROXY, RELAY, THROTTLER, CONSOLE, PORTAL, TUNNEL, GATEWAY, FORWARDER = (
    UNITS / f"mptcp-{name}.service"
    for name in ("proxy", "relay", "throttler", "console", "portal", "tunnel", "gateway", "forwarder")
)
ALL_UNITS = (PROXY, RELAY, THROTTLER, CONSOLE, PORTAL, TUNNEL, GATEWAY, FORWARDER)
COMMANDS = {unit: f"{unit.stem} run" for unit in ALL_UNITS} | {
    PROXY: "mptcp-proxy run $OPTIONS",
    RELAY: "mptcp-proxy run --role relay $OPTIONS",
    FORWARDER: "mptcp-gateway forward --config %d/gateway.yaml",
}
UNITS_WITH_RELOAD = [PROXY, RELAY, THROTTLER]


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)


@pytest.mark.parametrize("unit", ALL_UNITS, ids=lambda unit: unit.name)
def test_exposure_of_the_unit_is_low(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED: systemd-analyze is not installed")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    assert exposure(output) <= MAX_EXPOSURE[unit.stem]


@pytest.mark.parametrize("unit", ALL_UNITS, ids=lambda unit: unit.name)
def test_configuration_and_usage_errors_prevent_a_restart(unit: Path) -> None:
    (statuses,) = values(unit, "RestartPreventExitStatus")
    assert set(statuses.split()) == {str(CONFIGURATION), str(USAGE)}
    (burst,), (interval,) = values(unit, "StartLimitBurst"), values(unit, "StartLimitIntervalSec")
    # Each start takes a second or more, plus RestartSec; with these values a failing unit still reaches the start
    # limit.
    assert int(burst) * (1 + 5) < int(interval)


@pytest.mark.parametrize("unit", [PROXY, RELAY], ids=lambda unit: unit.name)
def test_killed_worker_does_not_stop_the_unit(unit: Path) -> None:
    """Defect: systemd stopped the whole service, which is its default (systemd.service(5))."""
    assert values(unit, "OOMPolicy") == ["continue"]


@pytest.mark.parametrize("unit", ALL_UNITS, ids=lambda unit: unit.name)
def test_unit_notifies_systemd_and_waits_for_reloads(unit: Path) -> None:
    command = f"/opt/mptcp-steering-proxy/bin/{COMMANDS[unit]}"
    assert values(unit, "Type") == ["notify"]
    assert values(unit, "ExecStart") == [command]
    reload = command.removesuffix(" $OPTIONS").replace(" run", " reload")
    assert values(unit, "ExecReload") == ([reload] if unit in UNITS_WITH_RELOAD else [])
    assert int(values(unit, "WatchdogSec")[0]) >= 10


@pytest.mark.parametrize("unit", ALL_UNITS, ids=lambda unit: unit.name)
def test_unit_waits_for_network_addresses(unit: Path) -> None:
    """At boot, network addresses may appear late. After five failed starts systemd would give up."""
    assert "network-online.target" in values(unit, "After")[0].split()
    assert values(unit, "Wants")[0] == "network-online.target"


def test_units_of_relay_and_proxy_are_identical_except_for_names() -> None:
    """Each improvement of one unit must also be made in the other."""
    hardening = {
        unit: [line for line in unit.read_text().split("[Service]")[1].splitlines() if line and line[0] not in "#E"]
        for unit in (PROXY, RELAY)
    }
    assert [line.replace("mptcprelay", "mptcpproxy") for line in hardening[RELAY]] == hardening[PROXY]
    assert values(RELAY, "ConditionPathExists") == ["/etc/mptcp-proxy/relay-squid.conf"]


@pytest.mark.parametrize("role", Role, ids=lambda role: role.unit)
def test_check_warns_of_files_that_the_unit_cannot_open(
    role: Role, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Defect: check accepted a list below /root, and the unit did not start again after a restart."""
    unit = UNITS / role.unit
    # systemd prints list properties as the unit file writes them.
    properties = {key: " ".join(values(unit, key)) for key in PROPERTIES}
    assert {key for key, value in properties.items() if value} == {
        *("ProtectSystem", "ProtectHome", "PrivateTmp", "TemporaryFileSystem"),
        *("BindPaths", "ReadWritePaths", "RuntimeDirectory"),
    }
    # If the unit gets another setting that hides paths or makes them read-only, sandbox.py must support it first.
    supported = "|".join(PROPERTIES)
    others = re.findall(
        rf"^(?!(?:{supported})=)(\w*(?:Paths|Directory|Directories|FileSystem|Images?))=", unit.read_text(), re.M
    )
    assert others == []
    monkeypatch.setattr(sandbox, "properties_of_unit", lambda name, _: properties if name == role.unit else {})
    monkeypatch.setattr("mptcp_proxy.places.CONFIGURATIONS", tmp_path)
    places = Places(role.service_name)
    visible = ("/etc/mptcp-proxy/a", "/usr/share/a", "/srv/a", str(places.own_addresses))
    hidden = ("/root/a", "/home/me/a", "/run/user/0/a", "/tmp/a", "/var/tmp/a", "/dev/shm/a")
    writable = (places.logs / "a.log", "/var/log/squid/a.log", places.pid_file, "/run/squid/a", "/dev/null")
    read_only = ("/etc/mptcp-proxy/a", "/usr/a", "/srv/a", "/run/a", "/var/spool/squid/a", "/var/lib/a", "/opt/a")
    assert unopenable_files(role, [f'acl a src "{name}"' for name in (*visible, *hidden)]) == set(hidden)
    assert unopenable_files(role, [f"cache_log {name}" for name in (*writable, *read_only, *hidden)]) == {
        *read_only,
        *hidden,
    }
    # The shipped configuration passes.
    shipped = (UNITS.parent / "conf" / role.file).read_text().splitlines()
    assert unopenable_files(role, shipped) == set()


def unopenable_files(role: Role, lines: list[str]) -> set[str]:
    """Return the file names in *lines*, a configuration of *role*, that its unit cannot open."""
    numbered = [PhysicalLine("squid.conf", number, text) for number, text in enumerate(lines, 1)]
    found = sandbox.unit_problems(role.installed_file, numbered, (), role.service_name, role)
    return {each.text.split(": ")[0].split()[-1].strip('"') for each in found if each.line}


def test_throttler_is_not_root_and_has_only_needed_capabilities() -> None:
    assert values(THROTTLER, "User") == [THROTTLER_USER]
    needed = {"CAP_BPF", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_PERFMON", "CAP_SYS_NICE"}
    for key in ("AmbientCapabilities", "CapabilityBoundingSet"):
        assert set(values(THROTTLER, key)[0].split()) == needed
    assert f"\nu {THROTTLER_USER} " in (UNITS / "mptcp-throttler.sysusers").read_text()


def test_owner_of_the_iptables_lock_is_restored_when_the_throttler_ends() -> None:
    """Defect: after a purge the iptables lock belonged to a user id that the next user of the host would get."""
    (start,), (stop,) = values(THROTTLER, "ExecStartPre"), values(THROTTLER, "ExecStopPost")
    assert set(re.findall(r"chown \S+ (\S+)", start)) == {"/run/xtables.lock"}
    assert start.startswith("-+/bin/sh -c ")
    assert stop == "-+/bin/sh -c 'chown root:root /run/xtables.lock && chmod 0600 /run/xtables.lock'"


def test_purge_restores_the_owner_of_the_iptables_lock_before_it_deletes_the_user() -> None:
    script = (UNITS.parent / "debian" / "postrm").read_text()
    assert script.index("chown root:root /run/xtables.lock") < script.index("userdel mptcp-throttler")


def test_console_is_unprivileged_and_may_only_query_the_throttler() -> None:
    assert values(CONSOLE, "DynamicUser") == ["yes"]
    assert values(CONSOLE, "User") == []
    assert values(CONSOLE, "SupplementaryGroups") == [THROTTLER_USER]
    assert values(CONSOLE, "CapabilityBoundingSet") == [""]
    assert values(CONSOLE, "AmbientCapabilities") == []
    assert re.findall(r"^(?:ReadWritePaths|\w+Directory)=.*", CONSOLE.read_text(), re.MULTILINE) == [
        "StateDirectory=mptcp-console"
    ], "the console may write more than the volumes of paths"
    # Only root can write the token. If that fails, the console reports it.
    assert values(CONSOLE, "ExecStartPre") == ["-+/opt/mptcp-steering-proxy/bin/mptcp-console make-token"]


def test_portal_is_unprivileged_and_may_query_the_throttler() -> None:
    assert values(PORTAL, "DynamicUser") == ["yes"]
    assert values(PORTAL, "SupplementaryGroups") == [THROTTLER_USER]
    assert values(PORTAL, "CapabilityBoundingSet") == values(PORTAL, "AmbientCapabilities") == [""]
    # The portal needs netlink to distinguish Squid from other programs of the host.
    assert values(PORTAL, "RestrictAddressFamilies") == ["AF_UNIX AF_INET AF_INET6 AF_NETLINK"]


@pytest.mark.parametrize("unit", [PROXY, RELAY], ids=lambda unit: unit.name)
def test_shared_memory_of_the_workers_is_private(unit: Path, tmp_path: Path) -> None:
    """Defect: any user could create a file with one of Squid's names in /dev/shm, which kept the unit from starting."""
    (mount_options,) = values(unit, "TemporaryFileSystem")
    path, _, options = mount_options.partition(":")
    assert path == str(SHARED_MEMORY)
    # Squid, which drops root, must be able to write there.
    assert set(options.split(",")) == {"mode=1777", "size=50%"}
    if os.geteuid() == 0:
        # systemd passes these options to the kernel unchanged: with wrong ones the unit does not start.
        mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)]
        subprocess.run(mount, check=True)
    # systemd makes only one mount per path, and ReadWritePaths would take precedence.
    assert str(SHARED_MEMORY) not in " ".join(values(unit, "ReadWritePaths")).split()
    assert values(unit, "PrivateMounts") == ["yes"]


@pytest.mark.parametrize("unit", ALL_UNITS, ids=lambda unit: unit.name)
def test_systemd_analyze_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED: systemd-analyze is not installed")
    # The commands exist only where the package is installed.
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"^(Exec\w+)=.*$", r"\1=/bin/true", unit.read_text(), flags=re.MULTILINE))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, [line for line in result.stderr.splitlines() if unit.name in line]) == (0, [])


@pytest.mark.parametrize("unit", [PROXY, RELAY], ids=lambda unit: unit.name)
def test_crashes_after_serving_do_not_reach_the_start_limit(unit: Path) -> None:
    """Defect: a client that could crash workers repeatedly made the unit fail permanently within seconds."""
    (burst,), (interval,), (pause,) = (
        values(unit, key) for key in ("StartLimitBurst", "StartLimitIntervalSec", "RestartSec")
    )
    assert int(burst) * (min(WITHOUT_PROCESSES_SECONDS, _PAUSE_BEFORE_EXIT) + int(pause)) > int(interval)


@pytest.mark.parametrize("unit", [PROXY, RELAY], ids=lambda unit: unit.name)
def test_start_timeout_is_longer_than_start_and_reload_take(unit: Path) -> None:
    """Defect: with two million names in a list systemd ended each start and each reload after its default of 90 s."""
    (limit,) = values(unit, "TimeoutStartSec")
    assert int(limit) > MAX_SEARCH_SECONDS + PARSE_SECONDS + WITHOUT_LISTENERS_SECONDS
    # A reload may first wait for another reload command.
    assert int(limit) > 2 * reloads.MAX_WAIT_SECONDS


@pytest.mark.parametrize("unit", [PROXY, RELAY], ids=lambda unit: unit.name)
def test_unit_has_no_memory_limit(unit: Path) -> None:
    """The kernel's memory accounting adds data received over Multipath TCP and never subtracts it
    (docs/operator.md)."""
    assert not re.search(r"^Memory(Max|High|Limit|SwapMax)=", unit.read_text(), re.MULTILINE)


def test_pages_do_not_copy_unit_files() -> None:
    """Defect: a unit copied as docs/relay.md advised did not start (203/EXEC), and hid the package's unit."""
    pages = [UNITS.parent / "README.md", *(UNITS.parent / "docs").glob("*.md")]
    copied = re.compile(r"\b(?:cp|install)\b[^`\n]*\bsystemd/\S*\.service")
    assert [page.name for page in pages if copied.search(page.read_text())] == []
    # The page copies the installed file with restricted rights, because it may contain a parent's password.
    rules = (UNITS.parent / "debian/rules").read_text()
    assert "$(TREE)/etc/mptcp-proxy/relay-squid.conf.example" in rules
    step = "cd /etc/mptcp-proxy && {}install -m640 -g proxy relay-squid.conf.example relay-squid.conf"
    assert step.format("") in (UNITS.parent / "docs/relay.md").read_text()
    assert step.format("sudo ") in (UNITS.parent / "docs/packages.md").read_text()


def test_drop_in_on_the_page_starts_the_throttler_with_an_interface(tmp_path: Path) -> None:
    """Defect: "systemctl reenable" of systemd 252 ignores drop-ins, so nothing would have started the throttler."""
    if shutil.which("systemctl") is None:
        pytest.skip("NOT TESTED: systemctl is not installed")
    example = re.search(
        r"`systemctl edit mptcp-throttler`, write\s+`(\S+)` below `\[Install\]`, then `systemctl (\w+) ",
        (UNITS.parent / "docs/operator.md").read_text(),
    )
    assert example is not None
    shipped, configured = tmp_path / "usr/lib/systemd/system", tmp_path / "etc/systemd/system"
    for directory in (shipped, configured / "mptcp-throttler.service.d"):
        directory.mkdir(parents=True)
    shutil.copy(THROTTLER, shipped)
    (configured / "mptcp-throttler.service.d/override.conf").write_text(f"[Install]\n{example[1]}\n")
    systemctl = ["systemctl", "--quiet", f"--root={tmp_path}"]
    # The package enables the unit this way.
    subprocess.run([*systemctl, "enable", "mptcp-throttler"], check=True, timeout=60)
    link = configured / f"{example[1].partition('=')[2]}.wants/mptcp-throttler.service"
    link.unlink(missing_ok=True)
    subprocess.run([*systemctl, example[2], "mptcp-throttler"], check=True, timeout=60)
    assert link.is_symlink()
