# SPDX-License-Identifier: GPL-2.0-or-later
"""Clean up after killed agents on this host: ``agent.leftovers DIRECTORY PREFIX RUN``.

The program examines each directory PREFIX… in DIRECTORY. If the directory's journal is not locked, its agent is dead.
The program then ends that agent's programs, undoes its changes, the last one first, and removes the directory. If a
change cannot be undone, the journal stays, so that the next call tries again. Nothing in a damaged journal is undone.
The program prints a JSON object: ``removed``, the directories; ``left``, what could not be undone or removed, or is
damaged; ``live``, the process ids of agents of runs other than RUN.

Only directories that belong to the calling user (root) are trusted, because commands in their journals are executed.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .processes import marked
from .server import GRACE, JOURNAL, MARK, UNDOING, Refused, boot_and_network, undo
from .server import remove as remove_directory


def noted(journal: Path) -> list[dict[str, Any]] | None:
    """Return the lines of *journal*, the first of which names the run; None if it is damaged.

    A last line without newline is ignored, because its change was not made yet.
    """
    try:
        found = [dict(json.loads(line)) for line in journal.read_bytes().split(b"\n")[:-1]]
    except (ValueError, TypeError):
        return None
    return found if found and {"run", "pid", "boot", "network"} <= found[0].keys() else None


def locked(journal: Path) -> bool:
    """Return whether the agent that writes *journal* is alive."""
    with journal.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def end(mark: str) -> None:
    """End all programs that have *mark*: by SIGTERM, so that the throttler restores the qdisc; later by SIGKILL."""
    signalled: set[int] = set()
    deadline = time.monotonic() + GRACE
    while running := marked(mark):
        late = time.monotonic() > deadline
        for pid in running if late else set(running) - signalled:
            signalled.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.05)


def remove(directory: Path, lines: list[dict[str, Any]]) -> list[str]:
    """End the programs and undo the changes of a dead agent. Return what could not be undone or removed."""
    end(f"{MARK}={directory}")
    left = []
    changes = {line["change"]: line["undo"] for line in lines if "change" in line}
    for line in lines:
        changes.pop(line.get("undone"), None)
    with (directory / JOURNAL).open("r+b", buffering=0) as journal:
        # Remove a truncated last line, so that new lines do not continue it.
        journal.seek(journal.truncate(journal.read().rfind(b"\n") + 1))
        for number in sorted(changes, reverse=True):
            try:
                undo(changes[number], UNDOING)
            except Refused as reason:
                words = " ".join(str(reason).split())
                left.append(f"{' '.join(changes[number])}: {words}; once it is undone by hand, remove {directory}")
            else:
                # If the disk is full, the other changes are still undone.
                with suppress(OSError):
                    journal.write(json.dumps({"undone": number}).encode() + b"\n")
    return left + remove_directory(directory, keep_journal=bool(left))


def main(arguments: list[str]) -> int:
    parent, prefix, run_id = arguments
    here = boot_and_network()
    removed: list[str] = []
    left: list[str] = []
    live: list[int] = []
    for journal in sorted(Path(parent).glob(f"{prefix}*/{JOURNAL}")):
        directory = journal.parent
        try:
            if any(path.is_symlink() or path.stat().st_uid != os.geteuid() for path in (directory, journal)):
                continue
            is_locked, lines = locked(journal), noted(journal)
        except FileNotFoundError:
            # The agent ended meanwhile and removed its journal.
            continue
        of = lines[0] if lines else {}
        if is_locked:
            if of and of["run"] != run_id and of["network"] == here["network"]:
                live.append(of["pid"])
            continue
        if lines is None:
            left.append(f"{journal} is damaged: undo by hand what it has, then remove {directory}")
        elif of["boot"] != here["boot"] or of["network"] == here["network"]:
            # The changes of an earlier boot were lost when the host restarted.
            earlier = of["boot"] != here["boot"]
            failures = remove_directory(directory, keep_journal=False) if earlier else remove(directory, lines)
            left += failures
            removed += [] if failures else [str(directory)]
    print(json.dumps({"removed": removed, "left": left, "live": live}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
