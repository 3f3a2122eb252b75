# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the package's maintainer scripts on a host with systemd, on which Squid is installed and removed.

The scripts run unchanged, except that system directories are replaced by directories of the test. The programs they
call are small stubs that log their arguments.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

DEBIAN = Path(__file__).resolve().parents[2] / "debian"
DIRECTORIES = ("/etc/", "/run/", "/usr/lib/mptcp-steering-proxy/")


class Host:
    """A directory that represents a machine booted by systemd."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("bin", "run/systemd/system", "usr/lib/mptcp-steering-proxy/bin"):
            (root / name).mkdir(parents=True)
        for name in ("deb-systemd-invoke", "deb-systemd-helper", "systemctl"):
            self.write_program(f"bin/{name}", f'echo "{name} $*" >>"$ROOT/log"')
        self.write_program("usr/lib/mptcp-steering-proxy/bin/python3", ":")
        # dpkg installs Squid together with the package and configures it later; until then it has no state.
        self.report_squid("", "")

    def report_squid(self, state: str, conffiles: str) -> None:
        """Let dpkg-query(1) report this state and these conffiles of Squid."""
        script = f"case $* in *Status*) echo '{state}' ;; *squid-openssl) ;; *) echo '{conffiles}' ;; esac"
        self.write_program("bin/dpkg-query", script)

    def write_squid_conf(self) -> str:
        """Write squid.conf as in Debian's package; return the conffile line that dpkg then has."""
        file = self.root / "etc/squid/squid.conf"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("http_port 3128\n")
        return f" {file} {hashlib.md5(file.read_bytes()).hexdigest()}"

    def write_program(self, name: str, text: str) -> None:
        (self.root / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.root / name).chmod(0o755)

    def run(self, script: str, *arguments: str) -> str:
        """Run a maintainer script as dpkg does; return its messages."""
        text = (DEBIAN / script).read_text()
        for real in DIRECTORIES:
            text = text.replace(real, f"{self.root}{real}")
        environment = {"PATH": f"{self.root / 'bin'}:/usr/bin:/bin", "ROOT": str(self.root)}
        command = ["sh", "-c", text, script, *arguments]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr
        return result.stderr

    @property
    def log(self) -> list[str]:
        log = self.root / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_squid_upgrade_restarts_proxy_and_relay(host: Host) -> None:
    """Defect: after a security update of Squid, proxy and relay kept running the old version, perhaps for months."""
    assert "interest-noawait /usr/sbin/squid" in (DEBIAN / "triggers").read_text().splitlines()
    host.run("postinst", "triggered", "/usr/sbin/squid")
    assert host.log == ["deb-systemd-invoke try-restart mptcp-proxy.service mptcp-relay.service"]


def test_squid_upgrade_without_systemd_restarts_nothing(host: Host) -> None:
    (host.root / "run/systemd/system").rmdir()
    host.run("postinst", "triggered", "/usr/sbin/squid")
    assert host.log == []


REINSTALLED_VERSIONS = ("0.1.0+deb12", "0.1.0+deb12")
"""Arguments that dpkg passes if the package was removed but not purged: the former and the new version."""


@pytest.mark.parametrize("versions", [(), REINSTALLED_VERSIONS], ids=["new", "reinstalled"])
def test_squid_installed_as_a_dependency_is_stopped(host: Host, versions: tuple[str, ...]) -> None:
    """Defect: after "apt autoremove --purge" and a new installation Squid kept the port, and the proxy failed."""
    host.run("preinst", "install", *versions)
    host.report_squid("installed 5.7", host.write_squid_conf())
    output = host.run("postinst", "configure", *versions[:1])
    assert "squid.service, which came as a dependency, is stopped and disabled" in output
    # Defect: the installation waited half a minute for clients of a Squid that had none.
    stopping = host.log.index("deb-systemd-invoke stop squid.service")
    assert host.log[stopping - 1] == "systemctl kill --signal=INT squid.service"
    assert "deb-systemd-helper disable squid.service" in host.log
    assert list((host.root / "run").glob("mptcp-*")) == []


def test_configured_squid_keeps_running_with_a_message(host: Host) -> None:
    """Defect: if a tool had written squid.conf before Squid was installed, the script gave no message, and the proxy
    failed."""
    host.run("preinst", "install")
    conffiles = host.write_squid_conf()
    (host.root / "etc/squid/squid.conf").write_text("http_port 3128\n# ours\n")
    host.report_squid("installed 5.7", conffiles)
    output = host.run("postinst", "configure", "")
    assert "the squid.service of this host is not changed" in output
    # Defect: the message named only the port in squid.conf, so that the throttler did not watch the new port.
    for key, file in (("listen_ports", "throttler"), ("squid: ", "console"), ("port: ", "portal")):
        assert key in output
        assert f"/etc/mptcp-{file}/{file}.yaml" in output
    assert [line for line in host.log if "kill" in line or "stop" in line or "disable" in line] == []


@pytest.mark.parametrize("state", ["installed 5.7", "config-files 5.7"])
def test_squid_installed_before_keeps_running(host: Host, state: str) -> None:
    host.report_squid(state, host.write_squid_conf())
    host.run("preinst", "install")
    assert "is not changed" in host.run("postinst", "configure", "")
    assert [line for line in host.log if "kill" in line or "stop" in line or "disable" in line] == []


def test_enabled_units_run_after_a_new_installation(host: Host) -> None:
    """Defect: enabled units (console, portal, relay) did not run until the host booted."""
    units = (f"mptcp-{name}.service" for name in ("console", "portal", "relay", "tunnel", "gateway"))
    start = f"deb-systemd-invoke start {' '.join(units)}"
    host.run("preinst", "install", *REINSTALLED_VERSIONS)
    host.run("postinst", "configure", REINSTALLED_VERSIONS[0])
    # deb-systemd-invoke starts only the enabled units.
    assert start in host.log
    (host.root / "log").unlink()
    host.run("preinst", "upgrade", *REINSTALLED_VERSIONS)
    host.run("postinst", "configure", REINSTALLED_VERSIONS[0])
    assert start not in host.log
