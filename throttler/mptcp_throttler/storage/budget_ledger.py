"""What was used of each budget, in an SQLite database: what the daemon begins with, what ``quota`` shows and resets.

A total and the socket counters that it was taken from are written in one transaction, so that after a crash at whatever
moment a byte is counted once: a daemon that comes back goes on from the counters that the total knows. Totals are added
to, never overwritten, so that ``quota reset`` beside a running daemon holds. Counters are of one boot of the host.

Whom a client's address belongs to and what it carried is nobody's business: the file is the owner's alone.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mptcp_common.trust import distrust
from mptcp_throttler.policy.budget import Account, Usage

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_WAIT_SECONDS = 5.0
_OWNER_ALONE = 0o600
_DIRECTORY_MODE = 0o700
_SCHEMA = """
CREATE TABLE IF NOT EXISTS used (
    rule TEXT, client TEXT, start INTEGER, octets INTEGER NOT NULL, PRIMARY KEY (rule, client, start)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (
    cookie INTEGER PRIMARY KEY, boot TEXT NOT NULL, acked INTEGER NOT NULL, received INTEGER NOT NULL
);
"""
"""The column *rule* has the name of a budget, which is that of its rule where it has none of its own."""


class LedgerError(Exception):
    """The database cannot be used: the text says which and why."""


class Ledger:
    """The database at *path*. All calls raise LedgerError, and come from the thread that opened it."""

    def __init__(self, path: Path, create: bool = True) -> None:
        """Open it; with *create*, make what is not there."""
        self._path = path
        self._version = -1
        with self._errors():
            if create:
                _make(path)
            elif not path.exists():
                raise LedgerError(f"{path}: there is no ledger yet; a throttler whose policy has budgets makes it")
            _check(path)
            self._database = sqlite3.connect(path, timeout=_WAIT_SECONDS)
            if create:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.executescript(_SCHEMA)
            else:
                self._database.execute("SELECT 1 FROM used LIMIT 1")

    def close(self) -> None:
        self._database.close()

    def used(self, periods: Iterable[tuple[str, int]]) -> dict[Account, int]:
        """Return the bytes of every account of the budgets and beginnings of periods in *periods*."""
        found: dict[Account, int] = {}
        with self._errors():
            for budget, start in periods:
                rows = self._database.execute(
                    "SELECT client, octets FROM used WHERE rule = ? AND start = ?", (budget, start)
                )
                found |= {Account(budget, client, start): octets for client, octets in rows}
        return found

    def counters(self, boot: str) -> dict[int, tuple[int, int]]:
        """Return the acked and received bytes that the totals have of each socket of this *boot*; forget others."""
        with self._errors(), self._database as transaction:
            transaction.execute("DELETE FROM counter WHERE boot <> ?", (boot,))
            rows = transaction.execute("SELECT cookie, acked, received FROM counter")
            return {cookie: (acked, received) for cookie, acked, received in rows}

    def write(self, boot: str, usage: Usage) -> None:
        """Add to totals, take over the counters they come from, and forget sockets that have closed: all or nothing."""
        with self._errors(), self._database as transaction:
            transaction.executemany(
                "INSERT INTO used VALUES (?, ?, ?, ?) "
                "ON CONFLICT (rule, client, start) DO UPDATE SET octets = octets + excluded.octets",
                [(*account, octets) for account, octets in usage.added.items()],
            )
            transaction.executemany(
                "INSERT OR REPLACE INTO counter VALUES (?, ?, ?, ?)",
                ((cookie, boot, acked, received) for cookie, (acked, received) in usage.counters.items()),
            )
            transaction.executemany("DELETE FROM counter WHERE cookie = ?", ((each,) for each in usage.closed))

    def changed_by_others(self) -> bool:
        """Return whether another process has written since the last call; at the first call, True."""
        with self._errors():
            ((version,),) = self._database.execute("PRAGMA data_version").fetchall()
        before, self._version = self._version, version
        return bool(before != version)

    def reset(self, chosen: Collection[Account]) -> int:
        """Forget what was used of accounts; return of how many something was."""
        delete = "DELETE FROM used WHERE rule = ? AND client = ? AND start = ?"
        with self._errors(), self._database as transaction:
            return transaction.executemany(delete, list(chosen)).rowcount if chosen else 0

    def credit(self, account: Account, octets: int) -> None:
        """Let an account use so many bytes more: they are taken off what was used, which may be negative then."""
        with self._errors(), self._database as transaction:
            transaction.execute(
                "INSERT INTO used VALUES (?, ?, ?, ?) "
                "ON CONFLICT (rule, client, start) DO UPDATE SET octets = octets + excluded.octets",
                (*account, -octets),
            )

    def prune(self, before: int) -> None:
        """Forget periods that began before then."""
        with self._errors(), self._database as transaction:
            transaction.execute("DELETE FROM used WHERE start < ?", (before,))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            raise LedgerError(f"ledger {self._path}: {why or error}") from error


def _check(path: Path) -> None:
    """See that nobody else could have written the database. Raises LedgerError, OSError."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise LedgerError(f"ledger {path} is no regular file; remove it")
    if found.st_nlink > 1:
        raise LedgerError(f"ledger {path} has a second name in the file system; remove it")
    for each, what in ((path.parent.stat(), path.parent), (found, path)):
        if why := distrust(each):
            raise LedgerError(f"ledger: {what} {why}")


def _make(path: Path) -> None:
    """Make the file and its directory where they are not there; see that nobody but its owner can read the file.

    SQLite gives the files beside it (-wal, -shm) the mode of the database, but leaves those alone that are there.
    """
    path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        _check(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWNER_ALONE))
    for each in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
        with suppress(FileNotFoundError):
            if stat.S_IMODE(each.stat().st_mode) & ~_OWNER_ALONE:
                each.chmod(_OWNER_ALONE)
