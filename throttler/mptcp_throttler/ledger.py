"""What was used of each budget, in an SQLite database: the truth, for the daemon and for ``quota``.

A total and the socket counters that it was taken from are written in one transaction, so that after a crash at whatever
moment a byte is counted once: a daemon that comes back goes on from the counters that the total knows. Totals are added
to, never overwritten, so that ``quota reset`` beside a running daemon holds. Counters are of one boot of the host.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_WAIT_SECONDS = 5.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS used (
    rule TEXT, client TEXT, start INTEGER, octets INTEGER NOT NULL, PRIMARY KEY (rule, client, start)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (
    cookie INTEGER PRIMARY KEY, boot TEXT NOT NULL, acked INTEGER NOT NULL, received INTEGER NOT NULL
);
"""


class LedgerError(Exception):
    """The database cannot be used: the text says which and why."""


@dataclass(frozen=True, slots=True, order=True)
class Account:
    """Whose bytes: a rule's, of one client or of all ("")."""

    rule: str
    client: str
    start: int
    """Of the period, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What one socket has carried, bytes of payload."""

    acked: int = 0
    received: int = 0


class Ledger:
    """The database at *path*. All calls raise LedgerError."""

    def __init__(self, path: Path, create: bool = True) -> None:
        """Open it; with *create*, make what is not there."""
        self._path = path
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._database = sqlite3.connect(path, timeout=_WAIT_SECONDS)
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.executescript(_SCHEMA)
            else:
                if not path.exists():
                    raise LedgerError(f"{path}: there is no ledger yet; a throttler whose policy has budgets makes it")
                self._database = sqlite3.connect(path, timeout=_WAIT_SECONDS)
                self._database.execute("SELECT 1 FROM used LIMIT 1")
        except (sqlite3.Error, OSError) as error:
            raise self._error(error) from error

    def close(self) -> None:
        self._database.close()

    def used(self) -> dict[Account, int]:
        """Return the bytes of every account."""
        try:
            rows = self._database.execute("SELECT rule, client, start, octets FROM used").fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from error
        return {Account(rule, client, start): octets for rule, client, start, octets in rows}

    def counters(self, boot: str) -> dict[int, Counters]:
        """Return what the totals know of each socket of this *boot*."""
        try:
            rows = self._database.execute("SELECT cookie, acked, received FROM counter WHERE boot = ?", (boot,))
            return {cookie: Counters(acked, received) for cookie, acked, received in rows.fetchall()}
        except sqlite3.Error as error:
            raise self._error(error) from error

    def write(
        self, boot: str, added: Mapping[Account, int], counters: Mapping[int, Counters], closed: Iterable[int]
    ) -> None:
        """Add to totals, take over the counters they come from, and forget sockets that have closed: all or nothing."""
        try:
            with self._database as transaction:
                transaction.executemany(
                    "INSERT INTO used VALUES (?, ?, ?, ?) "
                    "ON CONFLICT (rule, client, start) DO UPDATE SET octets = octets + excluded.octets",
                    [(each.rule, each.client, each.start, octets) for each, octets in added.items()],
                )
                transaction.executemany(
                    "INSERT OR REPLACE INTO counter VALUES (?, ?, ?, ?)",
                    [(cookie, boot, each.acked, each.received) for cookie, each in counters.items()],
                )
                transaction.executemany("DELETE FROM counter WHERE cookie = ?", [(cookie,) for cookie in closed])
                transaction.execute("DELETE FROM counter WHERE boot <> ?", (boot,))
        except sqlite3.Error as error:
            raise self._error(error) from error

    def reset(self, chosen: Collection[tuple[str, str]]) -> int:
        """Forget what was used by pairs of rule and client; return how many there were."""
        gone = [each for each in self.used() if (each.rule, each.client) in chosen]
        try:
            with self._database as transaction:
                transaction.executemany(
                    "DELETE FROM used WHERE rule = ? AND client = ? AND start = ?",
                    [(each.rule, each.client, each.start) for each in gone],
                )
        except sqlite3.Error as error:
            raise self._error(error) from error
        return len(gone)

    def prune(self, before: int) -> None:
        """Forget periods that began before then."""
        try:
            with self._database as transaction:
                transaction.execute("DELETE FROM used WHERE start < ?", (before,))
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> LedgerError:
        return LedgerError(f"ledger {self._path}: {error}")
