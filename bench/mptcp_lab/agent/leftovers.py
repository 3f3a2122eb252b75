# SPDX-License-Identifier: GPL-2.0-or-later
"""Clean up after killed agents on this host: ``agent.leftovers DIRECTORY PREFIX RUN``.

The program examines each directory PREFIX… in DIRECTORY. If the directory's journal is not locked, its agent is dead.
The program then ends that agent's programs, undoes its changes, the last one first, and removes the directory. If a
change cannot be undone, it stays in the journal and the journal stays, so that the next call tries again. A damaged
line may be a change; it is reported and stays. The first line names the boot and the network in which the changes were
made; if it is damaged, nothing in that journal is undone. The program prints a JSON object: ``removed``, the
directories; ``left``, what could not be undone or removed, or is damaged; ``live``, the process ids of agents of runs
other than RUN.

Only directories that belong to the calling user (root) are trusted, because commands in their journals are executed.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .processes import marked
from .server import GRACE, JOURNAL, MARK, UNDOING, Refused, boot_and_network, undo
from .server import remove as remove_directory


class Noted(NamedTuple):
    """The parsed content of a journal."""

    of: dict[str, Any] | None
    """The first line, which identifies the run; None if it is damaged."""
    entries: tuple[dict[str, Any], ...]
    """The other lines, without damaged ones."""
    damaged: tuple[int, ...]
    """Numbers of the damaged lines."""


def noted(journal: Path) -> Noted:
    """Parse *journal*. A last line without newline is ignored, because its change was not made yet."""
    found = [_entry(line) for line in journal.read_bytes().split(b"\n")[:-1]]
    damaged = tuple(number for number, entry in enumerate(found, 1) if entry is None)
    first = found[0] if found else None
    of = first if first is not None and {"run", "pid", "boot", "network"} <= first.keys() else None
    if of is None and 1 not in damaged:
        damaged = (1, *damaged)
    return Noted(of, tuple(entry for entry in found[1:] if entry is not None), damaged)


def _entry(line: bytes) -> dict[str, Any] | None:
    """Parse *line*; None if it is damaged."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    match entry:
        case {"change": int(), "undo": [_, *_] as argv} if all(isinstance(word, str) for word in argv):
            return dict(entry)
        case {"run": str()} | {"undone": int()}:
            return dict(entry)
    return None


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


def remove(directory: Path, found: Noted) -> list[str]:
    """End the programs and undo the changes of a dead agent. Return what could not be undone or removed."""
    end(f"{MARK}={directory}")
    left = [
        f"line {number} of {directory / JOURNAL} is damaged and may be a change: look for it, then remove {directory}"
        for number in found.damaged
    ]
    changes: dict[int, list[str]] = {}
    for entry in found.entries:
        if "change" in entry:
            changes[entry["change"]] = entry["undo"]
        elif "undone" in entry:
            changes.pop(entry["undone"], None)
    with (directory / JOURNAL).open("r+b", buffering=0) as journal:
        # Remove a truncated last line, so that new lines do not continue it.
        journal.truncate(journal.seek(journal.read().rfind(b"\n") + 1))
        for number in sorted(changes, reverse=True):
            try:
                undo(changes[number], UNDOING)
            except Refused as reason:
                words = " ".join(str(reason).split())
                left.append(f"{' '.join(changes[number])}: {words}; once it is undone by hand, remove {directory}")
            else:
                _note(journal, json.dumps({"undone": number}).encode() + b"\n")
    return left + remove_directory(directory, keep_journal=bool(left))


def _note(journal: io.FileIO, line: bytes) -> None:
    """Append *line* to *journal*, or nothing of it. A full disk is ignored, so that other changes are still undone."""
    end = journal.seek(0, os.SEEK_END)
    written = 0
    with suppress(OSError):
        written = journal.write(line)
    if written < len(line):
        journal.truncate(end)


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
            is_locked, found = locked(journal), noted(journal)
        except FileNotFoundError:
            # The agent ended meanwhile and removed its journal.
            continue
        if is_locked:
            if found.of and found.of["run"] != run_id and found.of["network"] == here["network"]:
                live.append(found.of["pid"])
            continue
        if found.of is None:
            left.append(
                f"the first line of {journal} is damaged and does not say of what boot and network the others are: "
                f"undo by hand what is of these, then remove {directory}"
            )
            continue
        if found.of["boot"] != here["boot"]:
            # The changes were lost when the host restarted.
            failures = remove_directory(directory, keep_journal=False)
        elif found.of["network"] == here["network"]:
            failures = remove(directory, found)
        else:
            continue
        left += failures
        removed += [] if failures else [str(directory)]
    print(json.dumps({"removed": removed, "left": left, "live": live}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
