# SPDX-License-Identifier: GPL-2.0-or-later
"""Loads a certificate that is renewed while a server runs, so that new connections use it.

A renewal replaces two files, one after the other, and between both steps the certificate does not match the key. So the
files are first loaded into a new context, and new connections use it once it is complete. If the files were loaded into
the server's context, that context could be left without a key. And a certificate with another kind of key (RSA after
ECDSA, for example) would only be added to it, so that clients that prefer the old kind would still get the expiring
certificate.
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


class _ContextWithNewest(ssl.SSLContext):
    """A server's context for asyncio that starts each connection with the context ``newest``.

    OpenSSL's callback for this (``sni_callback``) is not used, because Python prints a traceback if the requested
    server name is not ASCII, so any client could fill the journal.
    """

    newest: ssl.SSLContext

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*arguments, **named)


class Renewal:
    """Keeps a certificate up to date. A server whose TLS context is ``context`` uses the current files for new
    connections."""

    def __init__(self, program: str, context: ssl.SSLContext, certificate: str, key: str) -> None:
        """*program*: name of the server, for the journal. *context*: a context with the files' current content."""
        self._program = program
        self._certificate, self._key = certificate, key
        self._context = _ContextWithNewest(ssl.PROTOCOL_TLS_SERVER)
        self._context.newest = context
        self._loaded_stamps: list[_Stamp | None] | None = None
        """Stamps of the files in use."""
        self._failures = 0
        """Failed checks since the files were last usable."""
        # The files may have changed after *context* was created.
        stamps = self._stamps()
        with suppress(Unusable):
            self._context.newest, self._loaded_stamps = load_certificate(certificate, key), stamps

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the server to use instead of its own."""
        return self._context

    def check(self) -> None:
        """Load the files if they have changed, and log this. If they are unusable, keep the old certificate, and warn
        once after several failed checks."""
        stamps = self._stamps()
        if stamps == self._loaded_stamps:
            self._failures = 0
            return
        try:
            newest = load_certificate(self._certificate, self._key)
        except Unusable as error:
            self._failures += 1
            if self._failures == TOLERATED_FAILURES:
                text = "the certificate's files have changed, but new connections still use the old certificate"
                journal.say(f"{self._program}: {text}: {error}", journal.WARNING)
            return
        if self._stamps() != stamps:
            return  # the files are still being replaced: the next check loads them
        self._context.newest, self._loaded_stamps, self._failures = newest, stamps, 0
        journal.say(f"{self._program}: new connections use the renewed certificate {self._certificate}")

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
