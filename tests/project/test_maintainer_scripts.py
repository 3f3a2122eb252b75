"""What the package's scripts do at moments that no test of the package itself can bring about without systemd and Squid.

They run as they are, except that the system's directories are rewritten to ones of the test; what they call are small
programs that note it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

DEBIAN = Path(__file__).resolve().parents[2] / "debian"
DIRECTORIES = ("/etc/", "/run/", "/usr/lib/mptcp-steering-proxy/")


class Host:
    """A directory that stands for a machine that was booted by systemd."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("bin", "run/systemd/system", "usr/lib/mptcp-steering-proxy/bin"):
            (root / name).mkdir(parents=True)
        for name in ("deb-systemd-invoke", "deb-systemd-helper", "systemctl"):
            self.program(f"bin/{name}", f'echo "{name} $*" >>"$ROOT/log"')
        self.program("usr/lib/mptcp-steering-proxy/bin/python3", ":")

    def program(self, name: str, text: str) -> None:
        (self.root / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.root / name).chmod(0o755)

    def run(self, script: str, *arguments: str) -> str:
        """Run a maintainer script as dpkg does; return what it says."""
        text = (DEBIAN / script).read_text()
        for real in DIRECTORIES:
            text = text.replace(real, f"{self.root}{real}")
        environment = {"PATH": f"{self.root / 'bin'}:/usr/bin:/bin", "ROOT": str(self.root)}
        command = ["sh", "-c", text, script, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    @property
    def log(self) -> list[str]:
        log = self.root / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_another_squid_has_those_that_run_by_it_start_anew(host: Host) -> None:
    """Defect: after a security update of Squid proxy and relay went on with the old one, for months perhaps."""
    assert "interest-noawait /usr/sbin/squid" in (DEBIAN / "triggers").read_text().splitlines()
    host.run("postinst", "triggered", "/usr/sbin/squid")
    assert host.log == ["deb-systemd-invoke try-restart mptcp-proxy.service mptcp-relay.service"]


def test_without_systemd_nothing_is_started_anew(host: Host) -> None:
    (host.root / "run/systemd/system").rmdir()
    host.run("postinst", "triggered", "/usr/sbin/squid")
    assert host.log == []
