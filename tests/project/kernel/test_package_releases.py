# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the package on each release of Debian, from ``apt install`` to purge, on a host that boots systemd.

They are too slow for each test run: ``sudo ./run deb --test [RELEASE]`` starts them and downloads Debian's packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confinement import assert_units_have_only_needed_privileges, exposures
from containers import Container, wait_until
from deb_package import (
    BUILD_DIFFERENTLY,
    BUILD_TIMEOUT,
    EARLIER_COMMIT,
    LOW_PRIORITY,
    NAME,
    RELEASES,
    build_from,
    contents,
    copy_sources,
    has_commit,
    repack,
    sha256,
    unexpected_files,
)
from failing_services import (
    check_hung_daemons_are_restarted,
    check_systemd_stops_restarting_a_unit_that_fails_repeatedly,
    journal,
)
from installed_services import (
    FILE_BYTES,
    RELAYED_BYTES,
    Site,
    capped_client,
    check_console_shows_the_cap,
    check_console_shows_throttler_and_squid,
    check_download_is_throttled,
    check_new_clients_are_served,
    check_relay_uses_both_uplinks,
    check_squid_reports_a_missing_check_page,
    check_that_check_page_answers_only_clients,
    topology,
)
from operator_steps import OPERATOR_FILES, TOKEN, configure, configure_throttler
from release_builds import build_in
from typing_shells import SHELLS, TypingShell
from unit_exposure import MAX_EXPOSURE
from unit_places import check_warns_of_files_the_unit_cannot_open

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import start_origin
from mptcp_lab.testbed.system_state import SYSCTLS, changed_sysctls, differences, kernel_state, without_dumps

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not RELEASES, reason="NOT TESTED: sudo ./run deb --test boots containers and takes minutes"),
]

UNITS = tuple(MAX_EXPOSURE)
ENABLED = ("mptcp-proxy", "mptcp-throttler")
"""Units that the package enables itself; an operator enables the others."""
COMPLETIONS: Final = {
    "mptcp-console ch": "mptcp-console check",
    "mptcp-portal ch": "mptcp-portal check",
    "mptcp-proxy doctor --role rel": "mptcp-proxy doctor --role relay",
    "mptcp-throttler sta": "mptcp-throttler status",
    "mptcp-throttler check --pol": "mptcp-throttler check --policy",
    "mptcp-proxy check --config /etc/mptcp-proxy/squ": "mptcp-proxy check --config /etc/mptcp-proxy/squid.conf",
    "mptcp-throttler explain --js": "mptcp-throttler explain --json",
    "mptcp-throttler replay /etc/debian_ver": "mptcp-throttler replay /etc/debian_version",
}
"""Texts that the operator types, and their completions by the TAB key."""
METERED_RULE: Final = """
  - name: wifi-volume
    paths: [wifi]
    budget:
      period: month
      steps: [{after: 1 TB, throttle: {rate: 1 Mbit/s}}]
"""
"""A rule that caps no subflow; the daemon keeps its used volume across a restart."""
# Files that systemd, dpkg's tools and Debian's own packages leave on a host that ran for a while.
FILES_OF_DEBIAN = (
    "etc/hosts",
    "etc/networks",
    "var/lib/dbus/",
    "root/",
    "tmp",
    "var/tmp",
    "shared",
    "var/lib/systemd/",
    "var/lib/apt/",
    "var/lib/logrotate",
    "var/spool/squid",
    # On Debian 13, ca-certificates comes with Squid and stays, because apt recommends it. It generates these files.
    "etc/ca-certificates.conf",
    "etc/ssl/certs/",
    "usr/local/share/ca-certificates",
)


@pytest.fixture(scope="module")
def earlier_package(builder: Container | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package of commit :data:`EARLIER_COMMIT`, built on *release* or given by the environment."""
    if ready := os.environ.get("MPTCP_PACKAGE_BEFORE"):
        return Path(ready).resolve()
    if not has_commit(EARLIER_COMMIT):
        pytest.skip(
            f"NOT TESTED: no git, or a checkout without commit {EARLIER_COMMIT:.12}: git fetch --unshallow fetches it"
        )
    if builder is not None:
        return build_in(builder, "earlier", EARLIER_COMMIT)
    directory = tmp_path_factory.mktemp("earlier")
    copy_sources(directory / "source", EARLIER_COMMIT)
    return build_from(directory / "source", directory / "output")


@pytest.fixture(scope="module")
def other_users_package(builder: Container | None, package: Path) -> Iterator[Path]:
    """Yield the package that another user builds from the same sources."""
    assert package.exists()
    with tempfile.TemporaryDirectory(dir=builder.shared if builder else None) as name:
        directory = Path(name)
        copy_sources(directory / "source")
        if builder is None:
            command = [*LOW_PRIORITY, "sh", "-euc", BUILD_DIFFERENTLY, "sh", str(directory)]
            subprocess.run(command, check=True, timeout=BUILD_TIMEOUT)
        else:
            inside = f"/shared/{directory.name}"
            builder.run_with_host_network(f"export PIP_CERT=/shared/trusted.pem; set -- {inside}; {BUILD_DIFFERENTLY}")
        (built_package,) = (directory / "output").glob("*.deb")
        yield built_package


@pytest.fixture(scope="module")
def site(
    release: str, make_module_testbed: Callable[..., Testbed], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    testbed = make_module_testbed(topology())
    origin = start_origin(testbed["origin"], {"file": FILE_BYTES, "relayed": RELAYED_BYTES})
    # Kernels before 6.12 do not have this sysctl.
    testbed["relay"].run(["sysctl", "-qw", "net.mptcp.blackhole_timeout=0"], check=False)
    container = Container(release, tmp_path_factory.mktemp(release))
    yield Site(container, testbed, origin)
    container.shut_down()


def test_package_works_from_installation_to_purge(
    site: Site, package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    container, node = site.container, site.testbed["proxy"]
    later = repack(package, tmp_path, "9.9", [("etc/mptcp-proxy/squid.conf", "dns_timeout 10", "dns_timeout 11")])
    first, second = (f"/shared/{each.name}" for each in (package, later))
    for each in (package, later):
        shutil.copy(each, container.shared)
    container.run_with_host_network(
        f"apt-get update --quiet && apt-get install --yes --quiet {' '.join(SHELLS)} bash-completion"
    )
    boot_with_downloads(site, first)
    # systemd sets sysctls during boot.
    before, kernel = container.files(), kernel_state(node)

    output = container.sh(f"apt-get install --yes --quiet {first}")
    assert "squid.service, which came as a dependency, is stopped and disabled" in output
    assert "mptcp-throttler waits for its configuration" in output
    wait_until(lambda: container.is_active("mptcp-proxy"), "the proxy is active")
    omission = "request_entities on: left out, Squid 6"
    for messages in (container.sh("mptcp-proxy check"), journal(container, "--unit=mptcp-proxy")):
        assert (omission in messages) == (container.release != "bookworm"), messages
    assert container.sh("systemctl is-enabled squid.service", check=False).strip() == "disabled"
    assert not container.is_active("squid")
    assert enabled_units(container) == set(ENABLED)
    assert {unit for unit in UNITS if container.is_active(unit)} == {"mptcp-proxy"}
    check_tab_completion(container)

    # Enable everything at once: units that lack their configuration must wait for it.
    container.sh("systemctl enable --now mptcp-console mptcp-portal mptcp-relay mptcp-tunnel mptcp-gateway")
    for unit in ("mptcp-throttler", "mptcp-portal", "mptcp-relay", "mptcp-tunnel", "mptcp-gateway"):
        assert not container.is_active(unit)
        assert "ConditionResult=no" in container.sh(f"systemctl show -p ConditionResult {unit}"), unit
    assert container.failed_units() == ""
    check_console_shows_throttler_and_squid(site, "http://127.0.0.1:8610", throttler=0)
    check_squid_reports_a_missing_check_page(site)

    configure(site)
    assert container.failed_units() == ""
    with capsys.disabled():
        print(f"\n{container.release}: {exposures(container)}")
    assert_units_have_only_needed_privileges(container)
    check_mistakes_are_reported(container)
    check_warns_of_files_the_unit_cannot_open(container)
    check_hung_daemons_are_restarted(site)
    check_systemd_stops_restarting_a_unit_that_fails_repeatedly(site)
    check_all_services(site)

    # An upgrade with a new squid.conf keeps the operator's line, because dpkg asks before it replaces the file.
    container.sh("echo '# by the operator' >>/etc/mptcp-proxy/squid.conf")
    processes = main_processes(container)
    container.sh(f"apt-get install --yes --quiet -o Dpkg::Options::=--force-confold {second}")
    wait_until(lambda: all(container.is_active(unit) for unit in UNITS), "all units are active after the upgrade")
    assert not set(main_processes(container)) & set(processes), "a service was not restarted"
    assert "# by the operator" in container.sh("cat /etc/mptcp-proxy/squid.conf")
    check_all_services(site)

    container.shut_down()
    site.boot()
    wait_until(lambda: all(container.is_active(unit) for unit in UNITS), "all units are active after the reboot")
    assert not container.is_active("squid")
    check_all_services(site)

    # A killed daemon leaves its caps in the kernel; the removal of the package deletes them.
    container.sh("systemctl kill --signal=KILL mptcp-throttler; systemctl stop mptcp-throttler")
    container.sh(f"apt-get remove --yes --quiet {NAME}")
    after = kernel_state(node)
    assert differences(without_dumps(kernel, SYSCTLS), without_dumps(after, SYSCTLS)) == []
    # Kernel modules loaded since then have added sysctls.
    assert changed_sysctls(kernel[SYSCTLS], after[SYSCTLS]) == []
    assert not any(container.is_active(unit) for unit in UNITS)
    assert project_processes(container) == ""
    assert [line for line in container.failed_units().splitlines() if "mptcp-throttler" not in line] == []
    container.sh(f"apt-get purge --yes --quiet {NAME} && apt-get autoremove --purge --yes --quiet")
    # Remove the files that the operator created.
    container.sh(f"rm -r {' '.join(OPERATOR_FILES)}; systemctl daemon-reload; systemctl reset-failed")
    # A dependency that Debian marks as important stays installed.
    files_of_others = {name.lstrip("/") for name in container.sh("cat /var/lib/dpkg/info/*.list").splitlines()}
    remaining = unexpected_files(sorted(container.files() - before - files_of_others))
    assert [name for name in remaining if "mptcp" in name or not name.startswith(FILES_OF_DEBIAN)] == []
    assert container.sh("find /etc /run -nouser -o -nogroup") == "", "files of a deleted user or group are left"
    assert container.sh("stat --format='%U:%G %a' /run/xtables.lock", check=False) in ("", "root:root 600\n")
    assert "mptcp" not in container.sh(
        "cat /etc/passwd /etc/group; systemctl list-unit-files; ls -R /var/lib/systemd /run"
    )


def test_upgrade_from_an_earlier_package_succeeds(
    site: Site, package: Path, earlier_package: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The host uses proxy and throttler. New services are installed, but wait until they are enabled."""
    site.container.shut_down()
    container = Container(site.container.release, tmp_path)
    request.addfinalizer(container.shut_down)
    site = replace(site, container=container)
    # apt would treat a package of the same version as a reinstallation.
    earlier = repack(earlier_package, tmp_path, "0.0.1", [])
    first, second = (f"/shared/{each.name}" for each in (earlier, package))
    for each in (earlier, package):
        shutil.copy(each, container.shared)
    boot_with_downloads(site, first)
    container.sh(f"apt-get install --yes --quiet {first}")
    configure_throttler(container)
    container.sh(f"echo '{METERED_RULE}' >>/etc/mptcp-throttler/policy.yaml && systemctl reload mptcp-throttler")
    used_bytes = 0
    for step in (None, second, first):
        if step is not None:
            processes = main_processes(container, ENABLED)
            container.sh(f"apt-get install --yes --quiet --allow-downgrades {step}")
            wait_until(
                lambda: all(container.is_active(unit) for unit in ENABLED),
                "proxy and throttler are active after the upgrade",
            )
            assert not set(main_processes(container, ENABLED)) & set(processes), "a service was not restarted"
            assert container.failed_units() == ""
        assert metered_bytes(container) >= used_bytes, "the budget lost a part of its used volume"
        check_download_is_throttled(site)
        wait_until(
            partial(has_counted, container, used_bytes + FILE_BYTES // 2), "the download counts towards the budget"
        )
        used_bytes = metered_bytes(container)
        if step == second:
            assert enabled_units(container) == set(ENABLED)
            assert {unit for unit in UNITS if container.is_active(unit)} == set(ENABLED)
            # Files that an earlier version owned as root.
            others = "find /var/lib/mptcp-throttler /run/mptcp-throttler ! -user mptcp-throttler"
            assert container.sh(others) == ""
            container.sh("systemctl enable --now mptcp-console")
            check_console_shows_throttler_and_squid(site, "http://127.0.0.1:8610", throttler=1)
            # The earlier package may not have the console.
            container.sh("systemctl disable --now mptcp-console")


def test_package_build_is_reproducible(package: Path, other_users_package: Path) -> None:
    assert other_users_package.name == package.name
    ours, others = contents(package), contents(other_users_package)
    assert {
        name: (ours.get(name), others.get(name)) for name in ours | others if ours.get(name) != others.get(name)
    } == {}
    assert sha256(other_users_package) == sha256(package)


def check_mistakes_are_reported(container: Container) -> None:
    """Check a file with a mistake: systemctl fails, the status reports it, and systemd does not retry repeatedly."""
    directory = "/etc/mptcp-throttler"
    container.sh(f"cd {directory} && cp policy.yaml policy.good && printf 'version: 1\\nrules: 7\\n' >policy.yaml")
    assert container.run(["systemctl", "reload", "mptcp-throttler"], check=False).returncode != 0
    assert container.is_active("mptcp-throttler")
    assert "RELOAD REFUSED" in container.sh("mptcp-throttler status")
    assert f"{directory}/policy.yaml:2: rules" in journal(container, "--unit=mptcp-throttler", "--priority=warning")
    container.sh(f"cd {directory} && mv policy.good policy.yaml && systemctl reload mptcp-throttler")
    assert "RELOAD REFUSED" not in container.sh("mptcp-throttler status")

    container.sh(f"cd {directory} && cp throttler.yaml throttler.good && sed -i 's/wan0/wan7/' throttler.yaml")
    message = f"{directory}/throttler.yaml:7: interfaces: there is no interface wan7 on this host"
    assert message in container.sh("mptcp-throttler check", check=False)
    assert container.run(["systemctl", "restart", "mptcp-throttler"], check=False).returncode != 0
    properties = container.sh("systemctl show -p ActiveState -p ExecMainStatus -p NRestarts mptcp-throttler").split()
    assert sorted(properties) == ["ActiveState=failed", "ExecMainStatus=78", "NRestarts=0"]
    assert "mptcp-throttler.service" in container.failed_units()
    assert message in journal(container, "--unit=mptcp-throttler", "--priority=err")
    container.sh(f"cd {directory} && mv throttler.good throttler.yaml && systemctl start mptcp-throttler")

    answer = container.sh("runuser -u nobody -- mptcp-throttler status", check=False)
    assert "permission denied" in answer
    assert "Errno" not in answer


def check_tab_completion(container: Container) -> None:
    """Check that the TAB key completes commands, options and their values in each shell."""
    for shell in SHELLS:
        with TypingShell(container, shell) as typing:
            for typed, line in COMPLETIONS.items():
                assert typing.complete(typed)[0] == line, shell
            suggestions = typing.complete("mptcp-throttler ", tabs=2)[1]
            for command in ("check", "events", "explain", "quota", "replay", "status", "top"):
                assert command in suggestions, shell


def check_all_services(site: Site) -> None:
    check_download_is_throttled(site)
    with capped_client(site):
        check_console_shows_the_cap(site, f"http://{site.address}:8610", TOKEN)
    check_that_check_page_answers_only_clients(site)
    check_new_clients_are_served(site)
    check_relay_uses_both_uplinks(site)
    # The cap of the first download applied to one subflow: its journal line names the path.
    lines = journal(site.container, "--unit=mptcp-throttler", "MPTCP_RULE=spare-ethernet", "--output=json")
    assert "ethernet" in [json.loads(line).get("MPTCP_PATH") for line in lines.splitlines()], lines
    logs = journal(site.container) + site.container.sh("cat /var/log/mptcpproxy/* /var/log/mptcprelay/*")
    assert "Traceback" not in logs
    assert TOKEN not in logs
    restarts = site.container.sh(f"systemctl show --value -p NRestarts {' '.join(UNITS)}").split()
    assert restarts == ["0"] * len(UNITS)


def boot_with_downloads(site: Site, package: str) -> None:
    """Boot the container with all dependencies of *package* downloaded; then it has only the testbed's network."""
    site.container.run_with_host_network(
        f"apt-get update --quiet && apt-get install --yes --quiet --download-only {package}"
    )
    site.boot()


def enabled_units(container: Container) -> set[str]:
    states = container.sh(f"systemctl is-enabled {' '.join(UNITS)}", check=False).split()
    assert set(states) <= {"enabled", "disabled"}, states
    return {unit for unit, state in zip(UNITS, states, strict=True) if state == "enabled"}


def project_processes(container: Container) -> str:
    return container.sh("ps -eo args= | grep '[m]ptcp-\\|[s]quid'", check=False)


def main_processes(container: Container, units: Iterable[str] = UNITS) -> list[str]:
    return container.sh(f"systemctl show --value -p MainPID {' '.join(units)}").split()


def has_counted(container: Container, volume: int) -> bool:
    return metered_bytes(container) >= volume


def metered_bytes(container: Container) -> int:
    """Return the bytes that count towards the budget of :data:`METERED_RULE`."""
    return sum(each["used"] for each in json.loads(container.sh("mptcp-throttler quota show --json")))
