# SPDX-License-Identifier: GPL-2.0-or-later
"""Containers (systemd-nspawn(1)) of a Debian release that boot systemd in a testbed node's network namespace."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deb_package import LOW_PRIORITY

CACHE: Final = Path("/var/cache/mptcp-steering-proxy")
"""Cache of each release's root file system and downloaded packages. If it is removed, the tests download newer ones."""
TIMEOUT: Final = 300
"""Maximum number of seconds for a step in a container on a busy machine."""
# Privileges that systemd-nspawn drops by default and that throttler and proxy need.
_PRIVILEGES: Final = (
    "--capability=CAP_NET_ADMIN,CAP_NET_RAW,CAP_BPF,CAP_PERFMON,CAP_SYS_NICE,CAP_SYS_RESOURCE",
    "--system-call-filter=bpf perf_event_open",
)
_ENVIRONMENT: Final = (
    *("env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    *("LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "TERM=xterm"),
)


def wait_until(condition: Callable[[], bool], description: str, timeout: float = TIMEOUT) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {description}"
        time.sleep(0.2)


@contextmanager
def exclusive_cache() -> Iterator[None]:
    """Wait until no other run uses the cache: both would write the same archive, and apt does not wait for another
    apt."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _base_archive(release: str) -> Path:
    """Return the archive of *release*'s smallest root file system that boots. Create it if the cache has none."""
    archive = CACHE / f"{release}.tar"
    if not archive.exists():
        new_archive = archive.with_suffix(".new.tar")
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            "--include=systemd-sysv,dbus",
            release,
            str(new_archive),
        ]
        subprocess.run(command, check=True, timeout=1800)
        new_archive.rename(archive)
    return archive


class Container:
    """A root file system, booted or not."""

    def __init__(self, release: str, directory: Path) -> None:
        self.release = release
        self.directory = directory
        self.root = directory / "root"
        self.root.mkdir()
        self.shared = directory / "shared"
        """Directory that the container mounts as /shared."""
        self.shared.mkdir()
        subprocess.run(
            ["tar", "--extract", "--file", str(_base_archive(release)), "--directory", str(self.root)], check=True
        )
        # Write these files as Debian's installer does. If Squid cannot resolve its own host name, it waits for minutes.
        (self.root / "etc/hostname").write_text("proxy\n")
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 proxy.example.net proxy\n")
        self._archives = CACHE / f"{release}-archives"
        (self._archives / "partial").mkdir(parents=True, exist_ok=True)
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._init = 0

    def _command(self, *arguments: str) -> list[str]:
        mounts = [f"--bind={self._archives}:/var/cache/apt/archives", f"--bind={self.shared}:/shared"]
        options = ["--quiet", "--register=no", "--keep-unit", f"--directory={self.root}", "--hostname=proxy"]
        return [*LOW_PRIORITY, "systemd-nspawn", *options, *mounts, *arguments]

    def run_with_host_network(self, script: str) -> str:
        """Run *script* in the container while it is not booted, with this machine's network."""
        return self._run(script, "--resolv-conf=copy-host")

    def run_isolated(self, script: str) -> str:
        """Run *script* in the container while it is not booted, with a private network and the daemons' privileges."""
        return self._run(script, "--private-network", *_PRIVILEGES)

    def _run(self, script: str, *options: str) -> str:
        result = subprocess.run(
            self._command("--pipe", *options, *_ENVIRONMENT, "sh", "-ec", script),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=3600,
        )
        assert result.returncode == 0, f"{script}\n" + "\n".join(result.stdout.splitlines()[-60:])
        return result.stdout

    def boot(self, namespace: str, other_namespaces: Mapping[str, str] | None = None) -> None:
        """Boot the container in the network namespace *namespace*; return when systemd has finished starting.

        *other_namespaces*: further network namespaces for services, by their paths in the container.
        """
        log = (self.directory / "console").open("ab")
        networks = [f"--network-namespace-path=/run/netns/{namespace}"]
        networks += [f"--bind=/run/netns/{other}:{file}" for file, other in (other_namespaces or {}).items()]
        command = self._command("--boot", "--console=pipe", "--kill-signal=SIGRTMIN+4", *networks, *_PRIVILEGES)
        self._nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(
            lambda: self._find_init() and Path(f"/proc/{self._init}/comm").read_text() == "systemd\n", "systemd runs"
        )
        wait_until(
            lambda: self.sh("systemctl is-system-running", check=False).strip() in ("running", "degraded"),
            "systemd has booted",
        )

    def _find_init(self) -> bool:
        """Find the process that has PID 1 in the container."""
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, (self.directory / "console").read_text()
        for child in Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split():
            status = Path(f"/proc/{child}/status").read_text()
            if any(line.split()[1:] == [child, "1"] for line in status.splitlines() if line.startswith("NSpid:")):
                self._init = int(child)
                return True
        return False

    def command_inside(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs *argv* in the booted container."""
        nsenter = ["nsenter", f"--target={self._init}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd"]
        return [*nsenter, *_ENVIRONMENT, *argv]

    def run(self, argv: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the booted container."""
        result = subprocess.run(
            self.command_inside(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=1800,
        )
        assert result.returncode == 0 or not check, f"{' '.join(argv)}: {result.returncode}\n{result.stdout}"
        return result

    def sh(self, script: str, *, check: bool = True) -> str:
        return self.run(["sh", "-c", script], check=check).stdout

    def is_active(self, unit: str) -> bool:
        return self.sh(f"systemctl is-active {unit}", check=False).strip() == "active"

    def restart_after_failure(self, *units: str) -> None:
        """Stop and start *units*. Reset the counters of their start limits first."""
        names = " ".join(units)
        self.sh(f"systemctl stop {names} && systemctl reset-failed {names}")
        started = self.run(["systemctl", "start", *units], check=False)
        assert started.returncode == 0, started.stdout + self.sh("journalctl --no-pager --lines=40")
        assert all(self.is_active(unit) for unit in units)

    def failed_units(self) -> str:
        """Return systemctl's lines about the failed units."""
        return self.sh("systemctl --failed --no-legend").strip()

    def main_process(self, unit: str) -> str:
        """Return the PID of the unit's main process within the container, or "0" if there is none."""
        return self.sh(f"systemctl show --value -p MainPID {unit}").strip()

    def files(self) -> set[str]:
        """Return the paths of all files and directories of the root file system."""
        return set(self.sh("find / -xdev -mindepth 1 | cut -c2-").splitlines())

    def shut_down(self) -> None:
        """Shut the container down as a host is shut down."""
        if self._nspawn is None:
            return
        if self._init and self._nspawn.poll() is None:
            os.kill(self._init, signal.SIGRTMIN + 4)  # systemd(1): poweroff.target
        try:
            self._nspawn.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait()
        self._nspawn, self._init = None, 0
