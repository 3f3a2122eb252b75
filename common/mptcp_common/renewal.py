"""A certificate that is renewed while a server runs: connections that come after it are shown the new one.

What renews a certificate replaces two files, one after the other, and whoever looks in between finds a certificate
without its key. So the files are loaded into a context of their own first, which new connections are given when it is
whole. Loading them into the context of the server would leave it without a key where they changed
meanwhile; and one of another kind of key, RSA after ECDSA say, would only be added there, so that clients that like
the kind before better were still shown the certificate that runs out.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from mptcp_common import journal
from mptcp_common.certificates import Unusable, loaded

SECONDS = 60.0
"""From one look at the files to the next."""
PATIENCE = 5
"""Looks that find files which cannot be used before that is said: half of a renewal takes no minutes."""

_Stamp = tuple[int, int, int]
"""Of a file: time of its last change, number, size. One that is replaced has another number; one that is written
again another time."""


class _Newest(ssl.SSLContext):
    """Begins connections with another context, as asyncio asks a server's to.

    Not by a callback that OpenSSL has for it (``sni_callback``): Python calls that with the name of the server that the
    client wants, and for a name that is no ASCII prints a traceback, so that any client could fill the journal.
    """

    newest: ssl.SSLContext

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*arguments, **named)


class Renewal:
    """Has new connections of a server begin with what is in the two files: of one that is given ``context``."""

    def __init__(self, program: str, context: ssl.SSLContext, certificate: str, key: str) -> None:
        """*program*: who says so. *context*: what the server has of the files by now."""
        self._program = program
        self._certificate, self._key = certificate, key
        self._context = _Newest(ssl.PROTOCOL_TLS_SERVER)
        self._context.newest = context
        self._seen: list[_Stamp | None] | None = None
        """Of the files that are in use."""
        self._refused = 0
        """Looks since the files could be used last."""
        # The files may have changed since *context* was given them.
        seen = self._stamps()
        with suppress(Unusable):
            self._context.newest, self._seen = loaded(certificate, key), seen

    @property
    def context(self) -> ssl.SSLContext:
        """What the server is to have in place of its own."""
        return self._context

    def look(self) -> None:
        """Take the files where they have changed, and say so. Where they cannot be used, all stays until the next look;
        that they cannot for long is said once."""
        seen = self._stamps()
        if seen == self._seen:
            self._refused = 0
            return
        try:
            newest = loaded(self._certificate, self._key)
        except Unusable as error:
            self._refused += 1
            if self._refused == PATIENCE:
                text = "the certificate was changed, and clients are still shown the one before"
                journal.say(f"{self._program}: {text}: {error}", journal.WARNING)
            return
        if self._stamps() != seen:
            return  # who replaces them is not done: the next look takes them, and says so once
        self._context.newest, self._seen, self._refused = newest, seen, 0
        journal.say(f"{self._program}: new connections are shown the renewed certificate of {self._certificate}")

    def _stamps(self) -> list[_Stamp | None]:
        return [_stamp(Path(each)) for each in (self._certificate, self._key)]


async def keep_looking(renewal: Renewal) -> None:
    """Look again and again, until this is cancelled."""
    while True:
        await asyncio.sleep(SECONDS)
        renewal.look()


def _stamp(path: Path) -> _Stamp | None:
    """Return the stamp of the file that *path* leads to; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
