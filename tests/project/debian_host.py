# SPDX-License-Identifier: GPL-2.0-or-later
"""A directory that represents a Debian machine, on which the script ``run`` is tested.

The script runs unchanged, except that system directories are replaced by directories of the test. The programs that
install and enable (apt-get, systemctl, update-rc.d, dpkg-query) are small stubs that change these directories as the
real programs change the system directories.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path

RUN = Path(__file__).resolve().parents[2] / "run"
DIRECTORIES = {
    "/usr/sbin/policy-rc.d": "sbin/policy-rc.d",
    "/etc/systemd/system": "systemd",
    "/etc/rc": "rc",
    "/var/lib/mptcp-steering-proxy": "state",
    "/var/lib/dpkg": "dpkg",
    "/usr/bin/python3": "bin/python3",
}
OPERATOR_UNIT = "systemd/multi-user.target.wants/mine.service"
ENABLED_BY_PACKAGES = ("systemd/multi-user.target.wants/squid.service", "rc2.d/S01squid")
TIMERS = ("systemd/timers.target.wants/mine.timer", "systemd/timers.target.wants/logrotate.timer")
"""Two timers: the first was enabled before, and the installation of a dependency enables the second."""
TIMEOUT = 60

PROGRAMS = {
    "id": "echo 0",
    "dpkg": "echo amd64",
    # The file "package-NAME" has the state of a package, one line for each architecture. dpkg-query prints each line in
    # the requested format, without a newline.
    "dpkg-query": """
for word; do
    case $word in -f=*) format=${word#-f=} ;; esac
    name=$word
done
if [ -e "$ROOT/package-$name" ]; then cat "$ROOT/package-$name"
elif [ ! -e "$ROOT/installed" ]; then exit 1
else echo installed all
fi | while read -r status architecture; do
    printf "$(printf %s "$format" | sed "s/[$]{db:Status-Status}/$status/; s/[$]{Architecture}/$architecture/")"
done
""",
    # If "hold" exists, apt-get enables the services and then waits until "go" exists, as in a running installation.
    "apt-get": """
case "$*" in
*update*)
    [ ! -e "$ROOT/offline" ] || { echo "W: Temporary failure resolving the archive" ; exit 0; }
    exit 0
    ;;
*--download-only*) [ ! -e "$ROOT/offline" ] || { echo "E: Unable to locate package squid" ; exit 100; } ;;
esac
case "$*" in
*--download-only*) echo "$*" >"$ROOT/requested" ; exit 0 ;;
esac
"$ROOT/sbin/policy-rc.d" && exit 9
[ $? = 101 ] || exit 9
ln -s /lib/x "$ROOT/systemd/multi-user.target.wants/squid.service"
ln -s ../init.d/squid "$ROOT/rc2.d/S01squid"
ln -s /lib/x "$ROOT/systemd/timers.target.wants/logrotate.timer"
if [ -e "$ROOT/fail" ]; then echo "E: no space" ; exit 100; fi
if [ -e "$ROOT/hold" ]; then
    touch "$ROOT/waiting"
    while [ ! -e "$ROOT/go" ]; do sleep 0.01; done
fi
touch "$ROOT/installed"
""",
    # This stub creates the virtual environment and runs its commands.
    "python3.11": """
case "$*" in
"-m venv .venv") mkdir -p .venv/bin && cp "$ROOT/bin/pip" .venv/bin ;;
*) echo "$*" >"$ROOT/ran" ;;
esac
""",
    "pip": """
for each in bench proxy; do
    printf '#!%s/bin/python3\\n' "$ROOT" >.venv/bin/mptcp-$each
    chmod 755 .venv/bin/mptcp-$each
done
""",
    "systemctl": """
echo "systemctl $*" >>"$ROOT/log"
for unit; do :; done
rm "$ROOT"/systemd/*.wants/"$unit"
""",
    "update-rc.d": """
echo "update-rc.d $*" >>"$ROOT/log"
mv "$ROOT/rc2.d/S01$1" "$ROOT/rc2.d/K01$1"
""",
}


class Host:
    """A directory that represents a machine; its checkout is set up, but the packages are missing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in (
            "sbin",
            "systemd/multi-user.target.wants",
            "systemd/timers.target.wants",
            "rc2.d",
            "bin",
            "dpkg",
            "checkout/.venv/bin",
        ):
            (root / name).mkdir(parents=True)
        (root / OPERATOR_UNIT).symlink_to("/lib/mine")
        (root / TIMERS[0]).symlink_to("/lib/mine")
        (root / "rc2.d/S01mine").symlink_to("../init.d/mine")
        for name, text in PROGRAMS.items():
            self.write_program(root / "bin" / name, text)
        (root / "bin/python3").symlink_to("python3.11")
        self.write_program(root / "checkout/.venv/bin/mptcp-bench", 'echo "$@" >"$ROOT/ran"')
        script = RUN.read_text()
        for real, replacement in DIRECTORIES.items():
            # Without the replacement the test would change this machine.
            assert real in script
            script = script.replace(real, str(root / replacement))
        checkout = root / "checkout"
        (checkout / "pyproject.toml").write_text("")
        (checkout / "throttler/mptcp_throttler/kernel/sockets/programs").mkdir(parents=True)
        (checkout / "throttler/mptcp_throttler/kernel/sockets/programs/build").write_text("")
        (checkout / "tunnel/mptcp_tunnel/resequencer").mkdir(parents=True)
        (checkout / "tunnel/mptcp_tunnel/resequencer/build").write_text("")
        (checkout / "bench").mkdir()
        (checkout / "bench/pyproject.toml").write_text("")
        self.write_program(checkout / "run", script, shebang="")
        self.stamp(checkout)

    def stamp(self, checkout: Path) -> None:
        """Mark the virtual environment of *checkout* as complete."""
        content = (checkout / "run").read_text() + f"{checkout.resolve()}\n{(self.root / 'bin/python3').resolve()}\n"
        stamp = hashlib.sha256(content.encode()).hexdigest()[:16]
        (checkout / ".venv" / f"stamp-{stamp}").touch()

    @staticmethod
    def write_program(path: Path, text: str, shebang: str = "#!/bin/sh\n") -> None:
        path.write_text(f"{shebang}{text}\n" if shebang else text)
        path.chmod(0o755)

    def start(self, *arguments: str, checkout: str = "checkout") -> subprocess.Popen[str]:
        environment = {"PATH": f"{self.root / 'bin'}:/usr/bin:/bin", "ROOT": str(self.root), "CDPATH": "/usr"}
        # Use another working directory and a relative name, a separate session as on a terminal, and default signal
        # handlers even if nohup(1) started the tests.
        return subprocess.Popen(
            ["env", "--default-signal", "sh", f"{checkout}/run", *arguments],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_end(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        output, errors = process.communicate(timeout=TIMEOUT)
        return process.returncode, output, errors

    def has(self, name: str) -> bool:
        return os.path.lexists(self.root / name)

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not self.has(name):
            assert time.monotonic() < deadline, name
            time.sleep(0.005)

    def touch(self, name: str) -> None:
        (self.root / name).touch()

    @property
    def log(self) -> list[str]:
        return (self.root / "log").read_text().splitlines() if self.has("log") else []

    def assert_unchanged(self, *, disabled: bool = True) -> None:
        """*disabled*: whether ``run`` had to disable services that the installation enabled."""
        assert not self.has("sbin/policy-rc.d")
        assert not self.has("state")
        assert not any(self.has(name) for name in ENABLED_BY_PACKAGES)
        assert self.has(OPERATOR_UNIT)
        assert self.has("rc2.d/S01mine")
        expected = ["systemctl disable --quiet squid.service", "update-rc.d squid disable"]
        assert sorted(self.log) == (expected if disabled else [])
