"""The addresses of a relay's parents, written where the preload library reads them at each connect.

Squid looks names up by itself, and keeps an answer for as long as its time to live says, six hours at most
(positive_dns_ttl). So they are looked up here once a minute, in a thread of their own because a name server may be
slow, and an address that a name had stays in the list for six hours: Squid may still connect to it.
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

MOST = 64
"""What fits into what the library reads of the list (LIST_SIZE in shim/listen/listen.h), whatever the addresses."""
_INTERVAL = 60.0
"""Seconds between two looks. A look costs some 400 bytes a name, 17 MB a month."""
_AGAIN = 2.0
"""Seconds until the next look while a parent has no address at all."""
_LINGER = 6 * 3600.0
_FIRST = 5.0
"""Seconds for which a start waits for name servers: what Squid connects to before is reached by plain TCP."""


def goals(host: str, port: int) -> frozenset[str]:
    """Return the addresses of *host* with *port*, each as the preload library writes it. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(goal(family, str(address[0]), port) for family, _, _, _, address in found)


def is_address(host: str) -> bool:
    """Say whether *host* is known without a name server."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def goal(family: int, address: str, port: int) -> str:
    """Return *address* and *port* in the words of inet_ntop(3); what is behind a % is left out."""
    text = socket.inet_ntop(family, socket.inet_pton(family, address.partition("%")[0]))
    if family == socket.AF_INET6 and text.startswith("::ffff:") and "." in text:
        return f"{text.removeprefix('::ffff:')}:{port}"
    return f"{text}:{port}" if family == socket.AF_INET else f"[{text}]:{port}"


def render(present: Collection[str], lingering: Collection[str]) -> str:
    """Return the list for the library: first what there is now, as much as it reads."""
    ordered = [*sorted(present), *sorted(set(lingering) - set(present))]
    return "".join(f"{each}\n" for each in ordered[:MOST])


class Addresses:
    """What is known of the parents' addresses. Pure: times and answers are arguments."""

    def __init__(self, linger: float = _LINGER) -> None:
        self._lingering: Lingering[str] = Lingering(linger)
        self._of: dict[str, frozenset[str]] = {}
        """By parent, as it was answered the last time."""

    def follow(self, parents: Iterable[str]) -> None:
        """From now on these are the parents; what others had lingers."""
        self._of = {parent: self._of.get(parent, frozenset()) for parent in parents}

    def answered(self, parent: str, found: frozenset[str]) -> None:
        """Take the answer for *parent*."""
        self._of[parent] = found

    @property
    def complete(self) -> bool:
        """Whether each parent has an address."""
        return all(self._of.values())

    def list(self, now: float) -> str:
        """Return the list for the library at *now*, seconds of any clock."""
        present = frozenset[str]().union(*self._of.values())
        return render(present, self._lingering.wanted(present, now)[0])


class Follower:
    """Keeps the list up to date, in a thread that ends with the process."""

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
        self._said: dict[str, str] = {}
        self._written: str | None = None
        self._changed = threading.Event()
        self._looked = threading.Event()

    def start(self, parents: Iterable[Parent]) -> None:
        """Begin, and wait a moment for the first answers."""
        self.follow(parents)
        self._write("")
        threading.Thread(target=self._run, name="parents", daemon=True).start()
        self._looked.wait(_FIRST)

    def follow(self, parents: Iterable[Parent]) -> None:
        """From now on these are the parents."""
        self._parents = tuple(parents)
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.clear()
            self._look()
            self._looked.set()
            self._changed.wait(_INTERVAL if self._addresses.complete else _AGAIN)

    def _look(self) -> None:
        # An address is known at once, and a name server may be silent for long.
        parents = sorted(self._parents, key=lambda parent: not is_address(parent.host))
        self._addresses.follow(map(str, parents))
        for parent in parents:
            try:
                found = self._look_up(parent.host, parent.port)
            except (OSError, UnicodeError) as error:
                # The old addresses stay: that a name server does not answer says nothing about the parent.
                text = f"no address of parent {parent.host}: {reason(error) if isinstance(error, OSError) else error}"
                self._say(str(parent), text, WARNING)
                continue
            self._addresses.answered(str(parent), found)
            # Also where it is what it was before there was no answer: the next time that is news again.
            self._say(str(parent), f"parent {parent.host} is {', '.join(sorted(found))}")
            self._write(self._addresses.list(time.monotonic()))
        self._write(self._addresses.list(time.monotonic()))
        if counts := self._kernel.in_force():
            # Once for each time that it gives up: the text says which.
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
        """Say it unless it was the last that was said of *parent*."""
        if self._said.get(parent) != text:
            self._said[parent] = text
            say(text, *priority)
