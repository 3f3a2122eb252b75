# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the state of processes from /proc (proc(5))."""

from __future__ import annotations

from pathlib import Path


def pid_in(pid_file: Path, program: str) -> int | None:
    """Return the PID in *pid_file* if this process is alive and runs *program*. After a crash, the file stays, and
    another program may have the same PID."""
    try:
        pid = int(pid_file.read_text().strip())
    except (OSError, ValueError):
        return None
    return pid if is_program(pid, program) else None


def is_program(pid: int, program: str) -> bool:
    """Return whether the process *pid* exists and runs *program*."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == program
    except (OSError, ValueError):
        return False


def start_time(pid: int) -> int:
    """Return when process *pid* started, in clock ticks since boot; 0 if it has ended. A different value means that
    the PID was reused."""
    try:
        # The second field, the name in parentheses, may contain any characters.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def children(pid: int) -> tuple[int, ...]:
    """Return the children of process *pid*; none if the process has ended."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return tuple(int(child) for task in tasks for child in (task / "children").read_text().split())
    except OSError:
        return ()


def command(pid: int) -> bytes:
    """Return the process's command line, each word ended by a NUL; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def first_thread_nanoseconds(pid: int) -> int | None:
    """Return the processor time of the process's first thread; None if it is unknown."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def catches(pid: int, signal_number: int) -> bool:
    """Return whether the process has a handler for the signal, so that the signal does not end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal_number - 1) & 1)
    return False
