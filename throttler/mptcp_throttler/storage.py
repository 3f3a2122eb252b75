# SPDX-License-Identifier: GPL-2.0-or-later
"""The state that outlives the daemon on disk: the usage of budgets, in an SQLite database, and the grants, in a file
in the same directory. The daemon reads both at its start. The commands ``quota`` and ``grant`` show and change them,
whether a daemon runs or not.

One transaction writes a total together with the socket counters that it comes from. So each byte counts once even after
a crash: a restarted daemon continues from these counters. Writers add to totals and never overwrite them, so ``quota
reset`` works while a daemon runs. Counters belong to one boot of the host. For privacy, only the owner can access the
files.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from mptcp_common.kernel_error import KernelError
from mptcp_common.state_file import open_lock, read_state, state_directory, write_state
from mptcp_throttler.policy.budget import Account, Grant, Usage

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
GRANTS = "grants.json"  # file name of the grants, in the ledger's directory
_MAX_GRANTS = 10_000
_MAX_TIME = 1 << 33  # seconds since the epoch, in the year 2242: later times are invalid
_LOCK_TIMEOUT = 5.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS used (
    rule TEXT, client TEXT, start INTEGER, octets INTEGER NOT NULL, PRIMARY KEY (rule, client, start)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (
    cookie INTEGER PRIMARY KEY, boot TEXT NOT NULL, acked INTEGER NOT NULL, received INTEGER NOT NULL
);
"""
"""The column *rule* has the name of the budget, by default the name of its rule."""
_ADD_USAGE = (
    "INSERT INTO used VALUES (?, ?, ?, ?) "
    "ON CONFLICT (rule, client, start) DO UPDATE SET octets = octets + excluded.octets"
)


class Ledger:
    """The database at *path*. All calls raise KernelError, and must come from the thread that opened it."""

    def __init__(self, path: Path, create: bool = True) -> None:
        self._path = path
        self._version = -1
        with self._errors():
            if not create and not path.exists():
                raise KernelError(f"{path}: there is no ledger yet; a throttler whose policy has budgets creates it")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                os.close(open_lock(path))
            except KernelError as error:
                raise KernelError(f"ledger {error}") from error
            # SQLite creates -wal and -shm with the mode of the database, but does not change existing ones.
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    path.with_name(path.name + suffix).chmod(0o600)
            self._database = sqlite3.connect(path, timeout=_LOCK_TIMEOUT)
            if create:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.executescript(_SCHEMA)
            else:
                self._database.execute("SELECT 1 FROM used LIMIT 1")

    def close(self) -> None:
        self._database.close()

    def read_usage(self, periods: Iterable[tuple[str, int]]) -> dict[Account, int]:
        """Return the bytes used of every account; *periods*: budget and start of each period."""
        usage: dict[Account, int] = {}
        query = "SELECT client, octets FROM used WHERE rule = ? AND start = ?"
        with self._errors():
            for budget, start in periods:
                rows = self._database.execute(query, (budget, start))
                usage |= {Account(budget, client, start): octets for client, octets in rows}
        return usage

    def counters(self, boot: str) -> dict[int, tuple[int, int]]:
        """Return acked and received bytes of sockets in this *boot*, by cookie; delete the counters of other boots."""
        with self._transaction() as database:
            database.execute("DELETE FROM counter WHERE boot <> ?", (boot,))
            rows = database.execute("SELECT cookie, acked, received FROM counter")
            return {cookie: (acked, received) for cookie, acked, received in rows}

    def write(self, boot: str, usage: Usage) -> None:
        """In one transaction, add to totals, store the counters that they include, and delete closed sockets."""
        with self._transaction() as database:
            database.executemany(_ADD_USAGE, [(*account, octets) for account, octets in usage.added.items()])
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

    def reset(self, accounts: Collection[Account]) -> int:
        """Delete the usage of *accounts*; return the number of accounts that had usage."""
        delete = "DELETE FROM used WHERE rule = ? AND client = ? AND start = ?"
        with self._transaction() as database:
            return database.executemany(delete, list(accounts)).rowcount if accounts else 0

    def credit(self, account: Account, octets: int) -> None:
        """Subtract bytes from the usage of an account, which may become negative."""
        with self._transaction() as database:
            database.execute(_ADD_USAGE, (*account, -octets))

    def prune(self, earliest: int) -> None:
        """Delete the usage of periods that began before *earliest*."""
        with self._transaction() as database:
            database.execute("DELETE FROM used WHERE start < ?", (earliest,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors(), self._database as database:
            yield database

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            text = error.strerror if isinstance(error, OSError) else None
            raise KernelError(f"ledger {self._path}: {text or error}") from error


def read_grants(path: Path) -> tuple[Grant, ...]:
    """Return the grants in *path*, none if it is missing. Raises KernelError."""
    text = read_state(path)
    if text is None:
        return ()
    try:
        grants = msgspec.json.decode(text, type=tuple[Grant, ...])
        for each in grants:
            if not 0 <= each.since <= each.until <= _MAX_TIME:
                raise ValueError(f"{each.since} to {each.until} is invalid")
            if not each.budget:
                _ = each.network
    except (msgspec.MsgspecError, ValueError) as error:
        raise KernelError(f"grants: {path}: {error}; remove the file, and grant again") from error
    return grants


def change_grants(path: Path, edit: Callable[[Sequence[Grant]], Sequence[Grant]]) -> None:
    """Atomically replace the grants in *path* with the result of *edit*, which gets those that have not ended. Raises
    KernelError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with state_directory(path.parent) as directory:
        fcntl.flock(directory, fcntl.LOCK_EX)  # excludes a concurrent command
        grants = edit([each for each in read_grants(path) if each.until > time.time()])[-_MAX_GRANTS:]
        write_state(path, msgspec.json.encode(grants).decode())
