# SPDX-License-Identifier: GPL-2.0-or-later
"""A private copy of this machine's files: an overlay in a mount namespace, which ends with its last process."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

# Changes are kept in memory. Network, processes and systemd of the machine are hidden, so dpkg starts nothing.
_SETUP = """
mount -t tmpfs -o size=1g tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
for each in run tmp; do mount -t tmpfs tmpfs "$1/root/$each"; done
echo ready
exec sleep infinity
"""


class Chroot:
    """A copy of this machine's files for one test to change.

    *directory* is empty, and stays empty for other processes.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        isolated = ["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child"]
        self._holder = subprocess.Popen(
            [*isolated, "sh", "-ec", _SETUP, "setup", str(directory)], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", "the overlay was not mounted"
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.wait()

    def _run_inside(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        # unshare itself is outside of the PID namespace, but its only child is in all three namespaces.
        (init,) = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        command = ["nsenter", "--target", init, "--mount", "--net", "--pid", *argv]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

    def run(self, *argv: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the copy as its root. The result's stdout also contains standard error."""
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = [path, "DEBIAN_FRONTEND=noninteractive", *(f"{key}={value}" for key, value in environment.items())]
        result = self._run_inside(["chroot", f"{self.directory}/root", "env", "-i", *variables, *argv])
        assert result.returncode == 0 or not check, f"{' '.join(argv)}: {result.returncode}\n{result.stdout}"
        return result

    def sh(self, script: str, *, check: bool = True) -> str:
        return self.run("sh", "-c", script, check=check).stdout

    def copy_in(self, file: Path) -> str:
        """Copy *file* into the copy's /tmp and return its path there."""
        target = f"/tmp/{file.name}"
        assert self._run_inside(["cp", str(file), f"{self.directory}/root{target}"]).returncode == 0
        return target

    def changed_paths(self) -> list[str]:
        """Return the paths that were added, or whose content differs from this machine's."""
        script = """
        cd "$1/upper"
        find . -mindepth 1 | cut -c3- | while read -r name; do
            if [ -d "$name" ] && [ ! -L "$name" ]; then [ -d "/$name" ] || echo "$name"
            elif [ -L "$name" ]; then [ "$(readlink "$name")" = "$(readlink "/$name")" ] || echo "$name"
            else cmp --quiet "$name" "/$name" || echo "$name"; fi
        done
        """
        result = self._run_inside(["sh", "-c", script, "changed", str(self.directory)])
        assert result.returncode == 0, result.stdout
        return result.stdout.splitlines()
