# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of the Debian package in a copy of this machine's files: install, upgrade, remove, and purge without leftovers.

Nothing boots here and no service starts. ``./run deb --test`` does that, in containers of each release.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from chroots import Chroot
from deb_package import NAME, REPOSITORY, build, repack, unexpected_files
from packaging.utils import canonicalize_name

pytestmark = [pytest.mark.kernel, pytest.mark.nightly]

UNITS = {path.stem for path in (REPOSITORY / "systemd").glob("*.service")}
ENABLED = {"mptcp-proxy", "mptcp-throttler"}
COMMANDS = sorted(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"])
HOME = f"/usr/lib/{NAME}"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("package"))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Chroot]:
    yield from fresh_host(tmp_path / "host")


@pytest.fixture(scope="module")
def installed_host(tmp_path_factory: pytest.TempPathFactory, package: Path) -> Iterator[Chroot]:
    """Yield a host with the package, for tests that only read it."""
    for chroot in fresh_host(tmp_path_factory.mktemp("installed") / "host"):
        install(chroot, package)
        yield chroot


def fresh_host(directory: Path) -> Iterator[Chroot]:
    directory.mkdir()
    with Chroot(directory) as chroot:
        # The operator of this host uses Squid.
        chroot.run("systemctl", "enable", "--quiet", "squid.service")
        # Remove files that other tests have left on this machine.
        chroot.sh("rm -rf /var/lib/mptcp-throttler /var/lib/mptcpproxy /var/log/mptcpproxy /etc/mptcp-*")
        yield chroot


def install(host: Chroot, package: Path) -> str:
    return host.run("dpkg", "--install", host.copy_in(package)).stdout


def is_enabled(host: Chroot, unit: str) -> bool:
    (answer,) = host.sh(f"systemctl is-enabled {unit}", check=False).split()
    assert answer in ("enabled", "disabled"), answer
    return answer == "enabled"


def test_purge_leaves_nothing_behind(host: Chroot, package: Path, tmp_path: Path) -> None:
    before = unexpected_files(host.changed_paths())
    output = install(host, package)
    assert "mptcp-throttler waits for its configuration" in output
    assert {unit for unit in UNITS if is_enabled(host, unit)} == ENABLED
    assert host.sh("getent passwd mptcp-throttler").startswith("mptcp-throttler:")
    # Do what an operator does next, and create the files of running daemons.
    host.sh("sed -i 's/^http_port 3128/http_port 3129/' /etc/mptcp-proxy/squid.conf")
    host.sh(f"systemctl enable --quiet {' '.join(UNITS)}")
    host.sh("cd /etc && for each in mptcp-*/*.example; do cp $each ${each%.example}; done")
    # Let this user read the status.
    host.sh("usermod --append --groups mptcp-throttler nobody")
    host.sh("cd /var && mkdir lib/mptcp-throttler log/mptcpproxy && touch lib/mptcp-throttler/ledger.sqlite")
    # A running throttler owns this lock; without systemd, nothing resets the owner.
    host.sh("touch /run/xtables.lock && chown mptcp-throttler:root /run/xtables.lock && chmod 0660 /run/xtables.lock")
    assert "3129" in host.sh("mptcp-proxy check")
    # The example policy names this interface.
    host.sh("ip link add wan0 type veth peer name wan1")
    assert "1 rule, no errors" in host.sh("mptcp-throttler check")
    # The console's unit does this at its first start.
    assert "requires this token" in host.sh("mptcp-console make-token")
    assert host.sh("stat --format='%U:%G %a' /etc/mptcp-console/token") == "root:mptcp-throttler 640\n"
    for command in COMMANDS:
        assert host.sh(f"{command} check")
    assert "with a token" in host.sh("mptcp-console check")
    # The next version changes a file and has another version number.
    module = f"{HOME.lstrip('/')}/pyvenv.cfg"
    later = repack(package, tmp_path, "9.9", [(module, "home = /usr/bin", "home = /usr/bin/")])
    # Simulate an earlier version that had no token.
    host.sh("rm /etc/mptcp-console/token")
    assert "mptcp-console now requires a token" in install(host, later)
    assert host.sh(f"dpkg-query --show --showformat='${{Version}}' {NAME}") == "9.9"
    assert all(is_enabled(host, unit) for unit in UNITS), "a service that the operator enabled is disabled"
    assert "3129" in host.sh("mptcp-proxy check"), "the operator's squid.conf was replaced"
    assert host.sh("cat /var/lib/mptcp-throttler/ledger.sqlite", check=True) == ""

    host.run("dpkg", "--remove", NAME)
    assert host.sh(f"ls -d {HOME} /usr/bin/mptcp-* 2>/dev/null", check=False) == ""
    assert "3129" in host.sh("cat /etc/mptcp-proxy/squid.conf")
    assert host.sh("ls /etc/mptcp-throttler/*.yaml /var/lib/mptcp-throttler").count("\n") >= 3

    host.run("dpkg", "--purge", NAME)
    # Defect: the iptables lock would have belonged to the next user of the host that got this user id.
    assert host.sh("stat --format='%U:%G %a' /run/xtables.lock && rm /run/xtables.lock") == "root:root 600\n"
    assert unexpected_files(host.changed_paths()) == before
    assert "mptcp-throttler" not in host.sh("cat /etc/passwd /etc/group /etc/shadow /etc/gshadow")


def test_package_leaves_an_enabled_squid_unchanged(host: Chroot, package: Path) -> None:
    output = install(host, package)
    assert "squid.service, which came as a dependency" not in output
    assert host.sh("systemctl is-enabled squid.service").strip() == "enabled"
    host.run("dpkg", "--purge", NAME)
    assert host.sh("systemctl is-enabled squid.service").strip() == "enabled"


def test_dpkg_triggers_the_package_after_a_squid_upgrade(installed_host: Chroot) -> None:
    """The units that run Squid restart then, see test_maintainer_scripts.py."""
    output = installed_host.sh("dpkg-trigger --by-package=squid /usr/sbin/squid && dpkg --triggers-only --pending")
    assert f"Processing triggers for {NAME} " in output
    assert installed_host.sh(f"dpkg-query --show --showformat='${{Status}}' {NAME}") == "install ok installed"


def test_upgrade_stops_no_unit_and_removal_stops_all(package: Path) -> None:
    """Read the maintainer scripts: on a host with systemd, an upgrade restarts only units that run."""
    scripts = {
        name: subprocess.check_output(["dpkg-deb", "--info", str(package), name], text=True)
        for name in ("preinst", "prerm", "postinst")
    }
    assert "deb-systemd-invoke stop" not in scripts["preinst"]
    stopped = re.findall(
        r"mptcp-\w+(?=\.service)", "".join(re.findall(r"deb-systemd-invoke stop (.*)", scripts["prerm"]))
    )
    assert sorted(stopped) == sorted(UNITS)
    for unit in UNITS - ENABLED:
        assert f"deb-systemd-invoke try-restart '{unit}.service'" in scripts["postinst"]


def test_commands_need_no_compiler_and_ignore_the_working_directory(installed_host: Chroot) -> None:
    host = installed_host
    host.sh(
        "mkdir /tmp/trap && cd /tmp/trap && for each in json argparse pydantic mptcp_proxy; do echo 1/0 >$each.py; done"
    )
    for command in ("mptcp-proxy check", *(f"{each} --version" for each in COMMANDS)):
        host.sh(f"cd /tmp/trap && PYTHONPATH=/tmp/trap {command}")
    # The doctor starts programs that test the kernel and query the throttler. It may find problems here.
    for role in ("proxy", "relay"):
        found = host.sh(f"cd /tmp/trap && PYTHONPATH=/tmp/trap mptcp-proxy doctor --role {role}", check=False)
        assert "ZeroDivisionError" not in found, found
        assert "Traceback" not in found, found
        assert "Squid" in found, found
    listen, turns = host.sh("PATH= /usr/bin/mptcp-proxy build-shim").split()
    assert listen == f"{HOME}/lib/{Path(listen).parents[2].name}/site-packages/mptcp_proxy/mptcp_listen.so"
    assert turns == str(Path(listen).with_name("squid_turns.so"))


def test_manual_pages_completion_and_sbom_cover_the_commands(installed_host: Chroot, package: Path) -> None:
    host = installed_host
    for command in COMMANDS:
        word = {"mptcp-proxy": "doctor", "mptcp-throttler": "quota"}.get(command, "check")
        # Read the page from the package: with path-exclude, dpkg may not install manual pages on this machine.
        page = host.sh(
            f"dpkg-deb --fsys-tarfile /tmp/{package.name} | tar -xO ./usr/share/man/man8/{command}.8.gz | zcat"
        )
        assert f"{command} {word}" in page.replace("\\-", "-")
        assert {f".SH {each}" for each in ("EXAMPLES", "FILES", "EXIT STATUS")} <= set(page.splitlines())
        assert bash_completion(host, command, word[:2]) == word
    assert bash_completion(host, "mptcp-throttler", "check", "--policy", "/etc/debian_ver") == "/etc/debian_version"
    assert bash_completion(host, "mptcp-throttler", "events", "--rule", "spare") == ""
    host.sh("cd /etc/mptcp-throttler && for each in *.yaml.example; do cp $each ${each%.example}; done")
    assert bash_completion(host, "mptcp-throttler", "events", "--rule", "spare") == "spare-ethernet"
    assert bash_completion(host, "mptcp-throttler", "top", "--path", "wi") == "wifi"
    host.sh("rm /etc/mptcp-throttler/*.yaml")
    bill = json.loads(
        host.sh(f"dpkg-deb --fsys-tarfile /tmp/{package.name} | tar -xO ./usr/share/doc/{NAME}/sbom.cdx.json")
    )
    installed_packages = [
        path.removesuffix(".dist-info").split("-")
        for path in host.sh(f"cd {HOME}/lib/python3*/site-packages && ls -d *.dist-info").split()
    ]
    listed = [bill["metadata"]["component"], *bill["components"]]
    vendored = {path.parent.name for path in REPOSITORY.glob("*/mptcp_*/**/vendor/*/LICENSE")}
    assert {each["name"] for each in listed if each.get("purl", "").startswith("pkg:npm/")} == vendored
    listed = [each for each in listed if each["name"] not in vendored]
    assert listed[0]["name"] == NAME
    assert sorted((canonicalize_name(each["name"]), each["version"]) for each in listed) == sorted(
        (canonicalize_name(name), version) for name, version in installed_packages
    )
    assert [each["name"] for each in listed if not each.get("licenses")] == []


def test_fish_completes_commands_options_and_files(installed_host: Chroot) -> None:
    host = installed_host
    if not host.run("sh", "-c", "command -v fish", check=False).stdout:
        pytest.skip("NOT TESTED: this host has no fish")
    for command in COMMANDS:
        word = {"mptcp-proxy": "doctor", "mptcp-throttler": "quota"}.get(command, "check")
        assert word in fish_completions(host, f"{command} {word[:2]}")
    assert "--config" in fish_completions(host, "mptcp-throttler check --co")
    assert "/etc/debian_version" in fish_completions(host, "mptcp-throttler check --policy /etc/debian_ver")


def fish_completions(host: Chroot, typed: str) -> list[str]:
    """Return fish's completions of the last word of *typed*."""
    output = host.run("env", "HOME=/nonexistent", "fish", "-c", f"complete --do-complete '{typed}'").stdout
    return [line.partition("\t")[0] for line in output.splitlines()]


def bash_completion(host: Chroot, command: str, *words: str) -> str:
    """Return bash's completion of the last of *words*."""
    script = f"""
    . /usr/share/bash-completion/completions/{command}
    COMP_WORDS=({command} {" ".join(words)}) COMP_CWORD={len(words)}
    _shtab_{command.replace("-", "_")}
    echo $COMPREPLY
    """
    return host.run("bash", "-c", script).stdout.strip()
