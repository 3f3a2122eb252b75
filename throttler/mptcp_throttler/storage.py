# SPDX-License-Identifier: GPL-2.0-or-later
"""The state that outlives the daemon on disk: the usage of budgets, in an SQLite database, and the grants, in a file
in the same directory. The daemon reads both at its start. The commands ``quota`` and ``grant`` show and change them,
whether a daemon runs or not.

One transaction writes a total together with the socket counters that it comes from. So each byte counts once even after
a crash: a restarted daemon continues from these counters. Totals are added to, never overwritten, so that ``quota
reset`` works while a daemon runs. Counters belong to one boot of the host. For privacy, only the owner can access the
files.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from mptcp_common.reasons import reason
from mptcp_common.trust import distrust
from mptcp_throttler.policy.budget import Account, Grant, Usage

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
GRANTS = "grants.json"  # file name of the grants, in the ledger's directory
_MOST_GRANTS = 10_000
_LATEST = 1 << 33  # seconds since the epoch: beyond, some calendars have no dates
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
"""The column *rule* has the name of the budget, by default the name of its rule."""
_ADD = (
    "INSERT INTO used VALUES (?, ?, ?, ?) "
    "ON CONFLICT (rule, client, start) DO UPDATE SET octets = octets + excluded.octets"
)


class LedgerError(Exception):
    """The database cannot be used: the text says which and why."""


class GrantsError(Exception):
    """The file cannot be used: the text says which and why."""


class Ledger:
    """The database at *path*. All calls raise LedgerError, and must come from the thread that opened it."""

    def __init__(self, path: Path, create: bool = True) -> None:
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
        """Return the bytes used of every account; *periods*: budget and start of each period."""
        found: dict[Account, int] = {}
        query = "SELECT client, octets FROM used WHERE rule = ? AND start = ?"
        with self._errors():
            for budget, start in periods:
                rows = self._database.execute(query, (budget, start))
                found |= {Account(budget, client, start): octets for client, octets in rows}
        return found

    def counters(self, boot: str) -> dict[int, tuple[int, int]]:
        """Return acked and received bytes in the totals, by cookie, for this *boot*; delete those of other boots."""
        with self._transaction() as database:
            database.execute("DELETE FROM counter WHERE boot <> ?", (boot,))
            rows = database.execute("SELECT cookie, acked, received FROM counter")
            return {cookie: (acked, received) for cookie, acked, received in rows}

    def write(self, boot: str, usage: Usage) -> None:
        """Add to totals, store the counters they come from, and delete closed sockets, in one transaction."""
        with self._transaction() as database:
            database.executemany(_ADD, [(*account, octets) for account, octets in usage.added.items()])
            database.executemany(
                "INSERT OR REPLACE INTO counter VALUES (?, ?, ?, ?)",
                ((cookie, boot, acked, received) for cookie, (acked, received) in usage.counters.items()),
            )
            database.executemany("DELETE FROM counter WHERE cookie = ?", ((each,) for each in usage.closed))

    def changed_by_others(self) -> bool:
        """Return whether another process has written since the last call; True at the first call."""
        with self._errors():
            ((version,),) = self._database.execute("PRAGMA data_version").fetchall()
        before, self._version = self._version, version
        return bool(before != version)

    def reset(self, chosen: Collection[Account]) -> int:
        """Delete the usage of the accounts *chosen*; return how many had any."""
        delete = "DELETE FROM used WHERE rule = ? AND client = ? AND start = ?"
        with self._transaction() as database:
            return database.executemany(delete, list(chosen)).rowcount if chosen else 0

    def credit(self, account: Account, octets: int) -> None:
        """Subtract bytes from the usage of an account, which may become negative."""
        with self._transaction() as database:
            database.execute(_ADD, (*account, -octets))

    def prune(self, before: int) -> None:
        """Delete periods that began earlier."""
        with self._transaction() as database:
            database.execute("DELETE FROM used WHERE start < ?", (before,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors(), self._database as database:
            yield database

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            raise LedgerError(f"ledger {self._path}: {why or error}") from error


def _check(path: Path) -> None:
    """Check that no other user can have written the database. Raises LedgerError, OSError."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise LedgerError(f"ledger {path} is no regular file; remove it")
    if found.st_nlink > 1:
        raise LedgerError(f"ledger {path} has a second name in the file system; remove it")
    for each, what in ((path.parent.stat(), path.parent), (found, path)):
        if why := distrust(each):
            raise LedgerError(f"ledger: {what} {why}")


def _make(path: Path) -> None:
    """Make the file and its directory if they are missing; let only the owner read the file. SQLite creates -wal and
    -shm with the mode of the database, but does not change existing ones."""
    path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        _check(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWNER_ALONE))
    for each in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
        with suppress(FileNotFoundError):
            if stat.S_IMODE(each.stat().st_mode) & ~_OWNER_ALONE:
                each.chmod(_OWNER_ALONE)


def read_grants(path: Path) -> tuple[Grant, ...]:
    """Return the grants in *path*, none if it is missing. Raises GrantsError."""
    try:
        with path.open("rb") as file:
            if why := distrust(os.fstat(file.fileno())):
                raise GrantsError(f"grants: {path} {why}")
            grants = msgspec.json.decode(file.read(), type=tuple[Grant, ...])
        for each in grants:
            if not 0 <= each.since <= each.until <= _LATEST:
                raise ValueError(f"{each.since} to {each.until} is no time")
            if not each.budget:
                _ = each.network
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise GrantsError(f"grants: {path}: {reason(error)}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise GrantsError(f"grants: {path}: {error}; remove it, and grant anew") from error
    return grants


def change_grants(path: Path, edit: Callable[[Sequence[Grant]], Sequence[Grant]]) -> None:
    """Replace the grants in *path* by what *edit* returns, atomically. Raises GrantsError."""
    try:
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)  # excludes a concurrent command
            grants = edit(read_grants(path))[-_MOST_GRANTS:]
            fresh = path.with_name(f".{path.name}.new")
            fresh.unlink(missing_ok=True)
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ALONE)
            with open(file, "wb") as opened:
                opened.write(msgspec.json.encode(grants))
                owner = os.fstat(directory)
                if os.geteuid() == 0:
                    os.fchown(file, owner.st_uid, owner.st_gid)  # to the daemon's user, who must read it
                opened.flush()
                os.fsync(file)
            fresh.rename(path)
        finally:
            os.close(directory)
    except OSError as error:
        raise GrantsError(f"grants: {path}: {reason(error)}") from error
