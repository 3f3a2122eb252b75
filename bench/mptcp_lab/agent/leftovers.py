"""What servers that were killed left on this host: ``agent.leftovers DIRECTORY PREFIX RUN``.

Looks at the directories PREFIX… below DIRECTORY. Where the journal of one is not locked, its programs are ended, its
changes undone, last made first, and the directory is removed. A change whose undoing fails stays in the journal, and
the journal where it is, so that the next call tries again. Prints a JSON object: ``removed``, the directories;
``left``, what could not be undone; ``live``, the process ids of servers of other runs than RUN.

A directory is believed only if it belongs to the user who asks (root), because its journal is carried out.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .processes import marked
from .server import GRACE, JOURNAL, MARK, UNDOING, Refused, boot_and_network, undo
from .server import remove as remove_directory


def entries(journal: Path) -> list[dict[str, Any]]:
    """Return what *journal* says; a last line that was cut short says nothing."""
    found = []
    for line in journal.read_text(errors="replace").splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def locked(journal: Path) -> bool:
    """Say whether the server that writes *journal* lives."""
    with journal.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def end(mark: str) -> None:
    """End what was started with *mark*: SIGTERM, so that the throttler puts the qdisc back, SIGKILL after a while."""
    signalled: set[int] = set()
    deadline = time.monotonic() + GRACE
    while running := marked(mark):
        late = time.monotonic() > deadline
        for pid in running if late else set(running) - signalled:
            signalled.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.05)


def remove(directory: Path, noted: list[dict[str, Any]]) -> list[str]:
    """End and undo what the journal of a dead server says; return what could not be undone."""
    end(f"{MARK}={directory}")
    left = []
    changes: dict[int, list[str]] = {}
    for entry in noted:
        if "change" in entry:
            changes[entry["change"]] = entry["undo"]
        elif "undone" in entry:
            changes.pop(entry["undone"], None)
    with (directory / JOURNAL).open("a") as journal:
        for number in sorted(changes, reverse=True):
            try:
                undo(changes[number], UNDOING)
            except Refused as reason:
                words = " ".join(str(reason).split())
                left.append(f"{' '.join(changes[number])}: {words}; once it is undone by hand, remove {directory}")
            else:
                journal.write(json.dumps({"undone": number}) + "\n")
                journal.flush()
    remove_directory(directory, keep_journal=bool(left))
    return left


def main(arguments: list[str]) -> int:
    parent, prefix, run_id = arguments
    here = boot_and_network()
    removed: list[str] = []
    left: list[str] = []
    live: list[int] = []
    for journal in sorted(Path(parent).glob(f"{prefix}*/{JOURNAL}")):
        directory = journal.parent
        if any(path.is_symlink() or path.stat().st_uid != os.geteuid() for path in (directory, journal)):
            continue
        noted = entries(journal)
        first = noted[0] if noted else {}
        if locked(journal):
            if first.get("run") != run_id and first.get("network") == here["network"]:
                live.append(first.get("pid", 0))
        elif first.get("boot") != here["boot"]:
            # What it did went with the boot in which it did it.
            shutil.rmtree(directory, ignore_errors=True)
            removed.append(str(directory))
        elif first.get("network") == here["network"]:
            failures = remove(directory, noted)
            left += failures
            removed += [] if failures else [str(directory)]
    print(json.dumps({"removed": removed, "left": left, "live": live}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
