# SPDX-License-Identifier: GPL-2.0-or-later
"""Start processes with private mounts, and kill process trees, for namespaces and, in ``server``, for real hosts."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

TMPFS = "tmpfs"
"""This word in place of a source directory means a private empty file system."""


class MountError(Exception):
    """A private mount is not possible."""


def mount_script(mounts: Mapping[str, str | os.PathLike[str]]) -> str:
    """Return shell commands that mount *mounts* (target to source) and exec the program in ``"$@"``.

    The commands must run in their own mount namespace. If a target does not exist, a tmpfs is mounted over its closest
    existing parent, so that nothing is created on the host. A file can be mounted over a file.
    """
    lines = ["set -e"]
    covered: set[Path] = set()
    for name in sorted(mounts):
        target, source = Path(name), os.fspath(mounts[name])
        existing = target
        while not existing.exists():
            existing = existing.parent
        if existing == Path("/"):
            raise MountError(f"mount over {target}: none of its parent directories exists except /")
        if existing != target and existing not in covered:
            covered.add(existing)
            lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(existing))}")
        if not target.is_file():
            lines.append(f"mkdir -p {shlex.quote(name)}")
        if source == TMPFS:
            lines.append(f"mount -t tmpfs -o mode=1777 tmpfs {shlex.quote(name)}")
        else:
            lines.append(f"mount --bind {shlex.quote(source)} {shlex.quote(name)}")
    return "\n".join([*lines, 'exec "$@"'])


def with_mounts(argv: list[str], mounts: Mapping[str, str | os.PathLike[str]]) -> list[str]:
    """Return *argv* with a wrapper that mounts private *mounts*. The program keeps the process id of the wrapper."""
    return ["unshare", "--mount", "sh", "-c", mount_script(mounts), "sh", *argv] if mounts else argv


def descendants(pid: int) -> tuple[int, ...]:
    """Return the ids of all descendants of process *pid*, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for process in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            # proc(5): the name in parentheses may contain any characters. State and parent follow the last parenthesis.
            parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(process)
    tree = [pid]
    for parent in tree:
        tree += children.get(parent, [])
    return tuple(tree[1:])


def kill_tree(pid: int) -> None:
    """Kill *pid* and all its descendants with SIGKILL."""
    # First stop all processes. Otherwise a parent could replace a child that was just killed, and leave an orphan.
    stopped: set[int] = set()
    while running := {pid, *descendants(pid)} - stopped:
        for each in running:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
        stopped |= running
    for each in (*descendants(pid), pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def end_of(*outputs: Any) -> str:
    """Return the end of a command's output, which is text, bytes or None, indented, for an error message."""
    texts = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in outputs if each]
    lines = "\n".join(texts).strip().splitlines()[-12:]
    return "".join(f"\n    {line}" for line in lines)
