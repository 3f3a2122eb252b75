# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the addresses of a relay's parents to the file that the preload library reads at each connect.

Squid resolves names itself and caches an answer for its time to live, but at most for six hours (positive_dns_ttl).
This module resolves the same names once a minute, in its own thread, because a name server may be slow. A former
address of a name stays in the list for six hours, because Squid may still connect to it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address

from mptcp_common.journal import WARNING
from mptcp_common.reasons import reason

from . import given_up
from .configuration.parents import Parent
from .installation import write
from .own_addresses import Lingering
from .places import Places
from .reported import say

MAX_PARENTS = 64
"""Maximum number of entries: the library reads a limited part of the file (LIST_SIZE in shim/listen/listen.h), into
which these fit even if all have the maximum length."""
_INTERVAL = 60.0
"""Seconds between look-ups. Each look-up takes some 400 bytes per name, which adds up to 17 MB a month."""
_RETRY_SECONDS = 2.0
"""Seconds until the next look-up while a parent has no address."""
_LINGER = 6 * 3600.0
_START_PATIENCE = 5.0
"""Maximum seconds that a start waits for name servers. Connections that Squid opens before an answer are plain TCP."""


def goals(host: str, port: int) -> frozenset[str]:
    """Return the addresses of *host* with *port*, in the preload library's notation. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(goal(family, str(address[0]), port) for family, _, _, _, address in found)


def is_address(host: str) -> bool:
    """Return whether *host* is an address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def goal(family: int, address: str, port: int) -> str:
    """Return *address* and *port* in the notation of inet_ntop(3), without a zone (%)."""
    text = socket.inet_ntop(family, socket.inet_pton(family, address.partition("%")[0]))
    if family == socket.AF_INET6 and text.startswith("::ffff:") and "." in text:
        return f"{text.removeprefix('::ffff:')}:{port}"
    return f"{text}:{port}" if family == socket.AF_INET else f"[{text}]:{port}"


def render(present: Collection[str], lingering: Collection[str]) -> str:
    """Return the library's list, with present addresses first, cut to the length that the library reads."""
    ordered = [*sorted(present), *sorted(set(lingering) - set(present))]
    return "".join(f"{each}\n" for each in ordered[:MAX_PARENTS])


class Addresses:
    """The known addresses of the parents. Pure: times and answers are arguments."""

    def __init__(self, linger: float = _LINGER) -> None:
        self._lingering: Lingering[str] = Lingering(linger)
        self._of: dict[str, frozenset[str]] = {}

    def follow(self, parents: Iterable[str]) -> None:
        """Replace the parents. Addresses of former parents stay for some time."""
        self._of = {parent: self._of.get(parent, frozenset()) for parent in parents}

    def answered(self, parent: str, found: frozenset[str]) -> None:
        """Store the answer for *parent*."""
        self._of[parent] = found

    @property
    def complete(self) -> bool:
        """Whether each parent has an address."""
        return all(self._of.values())

    def list(self, now: float) -> str:
        """Return the library's list at *now*, in seconds of any clock."""
        present = frozenset[str]().union(*self._of.values())
        return render(present, self._lingering.wanted(present, now)[0])


class Follower:
    """Keeps the list up to date in a daemon thread."""

    def __init__(
        self,
        places: Places,
        look_up: Callable[[str, int], frozenset[str]] = goals,
        look: Callable[[], given_up.GivenUp] = given_up.given_up,
    ) -> None:
        self._places = places
        self._look_up = look_up
        self._addresses = Addresses()
        self._kernel = given_up.Watch(look)
        self._parents: tuple[Parent, ...] = ()
        self._logged: dict[str, str] = {}
        self._written: str | None = None
        self._changed = threading.Event()
        self._looked = threading.Event()

    def start(self, parents: Iterable[Parent]) -> None:
        """Start, and wait up to _START_PATIENCE seconds for the first answers."""
        self.follow(parents)
        self._write("")
        threading.Thread(target=self._run, name="parents", daemon=True).start()
        self._looked.wait(_START_PATIENCE)

    def follow(self, parents: Iterable[Parent]) -> None:
        """Replace the parents."""
        self._parents = tuple(parents)
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.clear()
            self._look()
            self._looked.set()
            self._changed.wait(_INTERVAL if self._addresses.complete else _RETRY_SECONDS)

    def _look(self) -> None:
        # Parents that are given by their address come first: they need no name server, which may be slow to answer.
        parents = sorted(self._parents, key=lambda parent: not is_address(parent.host))
        self._addresses.follow(map(str, parents))
        for parent in parents:
            try:
                found = self._look_up(parent.host, parent.port)
            except (OSError, UnicodeError) as error:
                # Keep the old addresses: a silent name server does not mean that the parent is unreachable.
                text = f"no address of parent {parent.host}: {reason(error) if isinstance(error, OSError) else error}"
                self._say(str(parent), text, WARNING)
                continue
            self._addresses.answered(str(parent), found)
            # Also log this if the addresses are unchanged after an error, so that the next error is logged again.
            self._say(str(parent), f"parent {parent.host} is {', '.join(sorted(found))}")
            self._write(self._addresses.list(time.monotonic()))
        self._write(self._addresses.list(time.monotonic()))
        if counts := self._kernel.in_force():
            # As the text contains the count, it is logged once for each time that the kernel gives up.
            text = (
                f"the kernel has given up Multipath TCP for now ({given_up.TIMES} {counts.times}): parents are reached"
                f" by plain TCP, over one uplink; it tries again at once after: sysctl -w {given_up.SYSCTL}=0"
            )
            self._say("", text, WARNING)

    def _write(self, text: str) -> None:
        if text == self._written:
            return
        try:
            write(self._places.parents, text.encode(), 0o644)
        except OSError as error:
            say(f"{self._places.parents}: {reason(error)}; new addresses are reached by plain TCP", WARNING)
            return
        self._written = text

    def _say(self, parent: str, text: str, *priority: int) -> None:
        """Log *text* unless it was the last text about *parent*."""
        if self._logged.get(parent) != text:
            self._logged[parent] = text
            say(text, *priority)
