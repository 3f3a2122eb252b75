# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the addresses of a relay's parents to the file that the preload library reads at each connect.

Squid itself resolves the names of parents, and caches an answer for its time to live, at most for six hours
(positive_dns_ttl). This module resolves the same names once a minute, in its own thread, because a name server may be
slow. A former address of a parent stays in the list for six hours, because Squid may still connect to it.
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
from .reporter import say

MAX_ENTRIES = 64
"""Maximum number of entries in the file. The library reads only LIST_SIZE bytes (shim/listen/listen.h), which suffice
for this number even if all entries have the maximum length."""
_LOOK_UP_INTERVAL = 60.0
"""Seconds between look-ups. Each look-up takes about 400 bytes per name, in total 17 MB per month."""
_RETRY_SECONDS = 2.0
"""Seconds until the next look-up while a parent has no address."""
_KEEP_SECONDS = 6 * 3600.0
"""Seconds for which a former address stays in the list."""
_START_SECONDS = 5.0
"""Maximum seconds for which a start waits for name servers. Squid uses plain TCP to parents whose address is
unknown."""


def targets(host: str, port: int) -> frozenset[str]:
    """Return the addresses of *host* with *port*, in the preload library's notation. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(target(family, str(address[0]), port) for family, _, _, _, address in found)


def is_address(host: str) -> bool:
    """Return whether *host* is an address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def target(family: int, address: str, port: int) -> str:
    """Return *address* and *port* in the preload library's notation: that of inet_ntop(3), without a zone (%)."""
    text = socket.inet_ntop(family, socket.inet_pton(family, address.partition("%")[0]))
    if family == socket.AF_INET6 and text.startswith("::ffff:") and "." in text:
        return f"{text.removeprefix('::ffff:')}:{port}"
    return f"{text}:{port}" if family == socket.AF_INET else f"[{text}]:{port}"


def render(current: Collection[str], all_known: Collection[str]) -> str:
    """Return the list for the library: the *current* addresses first, then the others of *all_known*, at most
    MAX_ENTRIES."""
    ordered = [*sorted(current), *sorted(set(all_known) - set(current))]
    return "".join(f"{each}\n" for each in ordered[:MAX_ENTRIES])


class ParentAddresses:
    """The known addresses of the parents. Pure: times and answers are arguments."""

    def __init__(self, keep_seconds: float = _KEEP_SECONDS) -> None:
        self._lingering: Lingering[str] = Lingering(keep_seconds)
        self._by_parent: dict[str, frozenset[str]] = {}

    def set_parents(self, parents: Iterable[str]) -> None:
        """Replace the parents. The addresses of former parents stay in the list for some time."""
        self._by_parent = {parent: self._by_parent.get(parent, frozenset()) for parent in parents}

    def set_addresses(self, parent: str, found: frozenset[str]) -> None:
        """Replace the addresses of *parent*."""
        self._by_parent[parent] = found

    @property
    def complete(self) -> bool:
        """Whether each parent has an address."""
        return all(self._by_parent.values())

    def list(self, now: float) -> str:
        """Return the list for the library at the time *now*, in seconds of any clock."""
        present = frozenset[str]().union(*self._by_parent.values())
        return render(present, self._lingering.update(present, now)[0])


class ParentsFile:
    """Keeps the file up to date in a daemon thread, and logs if the kernel stops using Multipath TCP to parents."""

    def __init__(
        self,
        places: Places,
        look_up: Callable[[str, int], frozenset[str]] = targets,
        read_counts: Callable[[], given_up.GivenUpCounts] = given_up.current_counts,
    ) -> None:
        self._places = places
        self._look_up = look_up
        self._addresses = ParentAddresses()
        self._given_up_watch = given_up.Watch(read_counts)
        self._parents: tuple[Parent, ...] = ()
        self._logged: dict[str, str] = {}
        self._written: str | None = None
        self._changed = threading.Event()
        self._first_look_up_done = threading.Event()

    def start(self, parents: Iterable[Parent]) -> None:
        """Start the thread, and wait up to _START_SECONDS for the first answers."""
        self.set_parents(parents)
        self._write("")
        threading.Thread(target=self._run, name="parents", daemon=True).start()
        self._first_look_up_done.wait(_START_SECONDS)

    def set_parents(self, parents: Iterable[Parent]) -> None:
        """Replace the parents, and look up their addresses at once."""
        self._parents = tuple(parents)
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.clear()
            self._look_up_all()
            self._first_look_up_done.set()
            self._changed.wait(_LOOK_UP_INTERVAL if self._addresses.complete else _RETRY_SECONDS)

    def _look_up_all(self) -> None:
        # Parents given as addresses come first, because they do not wait for a name server.
        parents = sorted(self._parents, key=lambda parent: not is_address(parent.host))
        self._addresses.set_parents(map(str, parents))
        for parent in parents:
            try:
                found = self._look_up(parent.host, parent.port)
            except (OSError, UnicodeError) as error:
                # Keep the old addresses: a parent may be reachable although no name server answers.
                text = f"cannot look up parent {parent.host}: {reason(error) if isinstance(error, OSError) else error}"
                self._say(str(parent), text, WARNING)
                continue
            self._addresses.set_addresses(str(parent), found)
            # After an error, this also logs unchanged addresses, so that the next error is logged again.
            self._say(str(parent), f"addresses of parent {parent.host}: {', '.join(sorted(found))}")
            self._write(self._addresses.list(time.monotonic()))
        self._write(self._addresses.list(time.monotonic()))
        if counts := self._given_up_watch.new_counts():
            # The text contains the count, so it is logged again each time the kernel gives up.
            text = (
                f"the kernel has given up Multipath TCP for now ({given_up.TIMES_COUNTER} {counts.times}): parents are"
                " reached over plain TCP, over one uplink; to make the kernel try again at once:"
                f" sysctl -w {given_up.SYSCTL}=0"
            )
            self._say("", text, WARNING)

    def _write(self, text: str) -> None:
        if text == self._written:
            return
        try:
            write(self._places.parents, text.encode(), 0o644)
        except OSError as error:
            say(f"{self._places.parents}: {reason(error)}; new addresses are reached over plain TCP", WARNING)
            return
        self._written = text

    def _say(self, parent: str, text: str, *priority: int) -> None:
        """Log *text* unless it was the last text about *parent*."""
        if self._logged.get(parent) != text:
            self._logged[parent] = text
            say(text, *priority)
