# SPDX-License-Identifier: GPL-2.0-or-later
"""Looks up the parents' addresses in a thread, so that a silent name server does not delay the checks of uplinks."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Final

from mptcp_common.reasons import reason
from mptcp_gateway.model import Goal

log = logging.getLogger(__name__)

MAX_GOALS: Final = 16
"""Maximum number of addresses of all parents together, because each has kernel rules."""
_INTERVAL: Final = 60.0
"""Seconds between two look-ups."""
_RETRY_INTERVAL: Final = 2.0
"""Seconds between two look-ups while a parent has no address."""


def look_up(host: str, port: int) -> tuple[Goal, ...]:
    """Return the addresses of *host*, each with *port*. Raises OSError and UnicodeError."""
    found = (ip_address(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return tuple(dict.fromkeys(Goal(each, port) for each in found if not each.is_link_local))


def known(host: str, port: int) -> tuple[Goal, ...]:
    """Return the addresses of *host*, each with *port*; no addresses if the name server does not answer."""
    try:
        return look_up(host, port)
    except (OSError, UnicodeError):
        return ()


class Resolver:
    """The parents' addresses. A name server's last answer counts until the next one."""

    def __init__(
        self,
        parents: Sequence[tuple[str, int]],
        changed: Callable[[], None],
        look_up: Callable[[str, int], Iterable[Goal]] = look_up,
    ) -> None:
        """*changed* is called in the resolver's thread when addresses have changed."""
        self._changed, self._look_up = changed, look_up
        self._known: dict[tuple[str, int], tuple[Goal, ...]] = {}
        self._logged: dict[str, str] = {}
        for host, port in parents:
            try:
                self._known[host, port] = (Goal(ip_address(host), port),)
            except ValueError:
                self._known[host, port] = ()
        self._names = [each for each in parents if not self._known[each]]

    @property
    def goals(self) -> tuple[Goal, ...]:
        found = (goal for each in tuple(self._known.values()) for goal in each)
        return tuple(dict.fromkeys(found))[:MAX_GOALS]

    def start(self) -> None:
        """Start the thread, which looks up names until the process ends."""
        if self._names:
            threading.Thread(target=self._run, name="resolver", daemon=True).start()

    def look(self) -> None:
        """Look up all names once. It may take seconds."""
        for host, port in self._names:
            failure = ""
            try:
                found = tuple(self._look_up(host, port))
            except (OSError, UnicodeError) as error:
                found = ()
                failure = f"no address of parent {host}: {reason(error)}"
            if failure and failure != self._logged.get(host):
                log.warning("%s", failure)
            self._logged[host] = failure
            if found and set(found) != set(self._known[host, port]):
                self._known[host, port] = found
                log.info("parent %s is %s", host, ", ".join(str(each.address) for each in found))
                self._changed()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self.look()
            pause.wait(_INTERVAL if all(self._known.values()) else _RETRY_INTERVAL)
