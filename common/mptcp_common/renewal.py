# SPDX-License-Identifier: GPL-2.0-or-later
"""A certificate that is renewed while a server runs: later connections get the new one.

A renewal replaces two files, one after the other, and in between a certificate does not match the key. So the files are
first loaded into a new context, which new connections use once it is complete. Loading them into the server's context
could leave that context without a key. A certificate with another kind of key (RSA after ECDSA, for example) would only
be added to the context, and clients that prefer the old kind would still get the expiring certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from mptcp_common import journal
from mptcp_common.certificates import Unusable, load_certificate

CHECK_INTERVAL = 60.0
"""Seconds between two checks of the files."""
TOLERATED_FAILURES = 5
"""Number of consecutive failed checks before a warning: a renewal in progress does not last several minutes."""

_Stamp = tuple[int, int, int]
"""Modification time, inode and size of a file. A replaced file has another inode; a rewritten file has another time."""


class _Newest(ssl.SSLContext):
    """A server's context for asyncio that starts each connection with the context ``newest``.

    OpenSSL's callback for this (``sni_callback``) is not used: Python passes it the requested server name, and prints a
    traceback if that is not ASCII, so any client could fill the journal.
    """

    newest: ssl.SSLContext

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*arguments, **named)


class Renewal:
    """Makes new connections of a server use the current files; the server gets ``context``."""

    def __init__(self, program: str, context: ssl.SSLContext, certificate: str, key: str) -> None:
        """*program*: name of the server, for the journal. *context*: a context with the files' current content."""
        self._program = program
        self._certificate, self._key = certificate, key
        self._context = _Newest(ssl.PROTOCOL_TLS_SERVER)
        self._context.newest = context
        self._seen: list[_Stamp | None] | None = None
        """Stamps of the files in use."""
        self._refused = 0
        """Failed checks since the files were last usable."""
        # The files may have changed since *context* was made.
        seen = self._stamps()
        with suppress(Unusable):
            self._context.newest, self._seen = load_certificate(certificate, key), seen

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the server to use instead of its own."""
        return self._context

    def check(self) -> None:
        """Load the files if they changed, and log it. If they are unusable, keep the old certificate until the next
        check, and warn once if several checks fail."""
        seen = self._stamps()
        if seen == self._seen:
            self._refused = 0
            return
        try:
            newest = load_certificate(self._certificate, self._key)
        except Unusable as error:
            self._refused += 1
            if self._refused == TOLERATED_FAILURES:
                text = "the certificate was changed, and clients are still shown the one before"
                journal.say(f"{self._program}: {text}: {error}", journal.WARNING)
            return
        if self._stamps() != seen:
            return  # the files are still being replaced: the next check loads them
        self._context.newest, self._seen, self._refused = newest, seen, 0
        journal.say(f"{self._program}: new connections are shown the renewed certificate of {self._certificate}")

    def _stamps(self) -> list[_Stamp | None]:
        return [_stamp(Path(each)) for each in (self._certificate, self._key)]


async def keep_checking(renewal: Renewal) -> None:
    """Check repeatedly, until cancelled."""
    while True:
        await asyncio.sleep(CHECK_INTERVAL)
        renewal.check()


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
