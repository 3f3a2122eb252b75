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
from mptcp_gateway.model import ParentAddress

log = logging.getLogger(__name__)

MAX_TARGETS: Final = 16
"""Maximum number of addresses of all parents together, because each has kernel rules."""
_INTERVAL: Final = 60.0
"""Seconds between two look-ups."""
_RETRY_INTERVAL: Final = 2.0
"""Seconds between two look-ups while a parent has no address."""


def look_up(host: str, port: int) -> tuple[ParentAddress, ...]:
    """Return the addresses of *host*, each with *port*. Raises OSError and UnicodeError."""
    found = (ip_address(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return tuple(dict.fromkeys(ParentAddress(each, port) for each in found if not each.is_link_local))


def try_look_up(host: str, port: int) -> tuple[ParentAddress, ...]:
    """Return the addresses of *host*, each with *port*; no addresses if the name server does not answer."""
    try:
        return look_up(host, port)
    except (OSError, UnicodeError):
        return ()


class Resolver:
    """The parents' addresses. The last answer of a name server is used until the next answer."""

    def __init__(
        self,
        parents: Sequence[tuple[str, int]],
        on_change: Callable[[], None],
        look_up: Callable[[str, int], Iterable[ParentAddress]] = look_up,
    ) -> None:
        """*on_change* is called in the resolver's thread when addresses have changed."""
        self._on_change, self._look_up = on_change, look_up
        self._addresses: dict[tuple[str, int], tuple[ParentAddress, ...]] = {}
        self._logged_failures: dict[str, str] = {}
        for host, port in parents:
            try:
                self._addresses[host, port] = (ParentAddress(ip_address(host), port),)
            except ValueError:
                self._addresses[host, port] = ()
        self._names = [each for each in parents if not self._addresses[each]]

    @property
    def targets(self) -> tuple[ParentAddress, ...]:
        found = (target for each in tuple(self._addresses.values()) for target in each)
        return tuple(dict.fromkeys(found))[:MAX_TARGETS]

    def start(self) -> None:
        """Start the thread, which looks up names until the process ends."""
        if self._names:
            threading.Thread(target=self._run, name="resolver", daemon=True).start()

    def look_up_all(self) -> None:
        """Look up all names once. This may take seconds."""
        for host, port in self._names:
            failure = ""
            try:
                found = tuple(self._look_up(host, port))
            except (OSError, UnicodeError) as error:
                found = ()
                failure = f"cannot look up parent {host}: {reason(error)}"
            if failure and failure != self._logged_failures.get(host):
                log.warning("%s", failure)
            self._logged_failures[host] = failure
            if found and set(found) != set(self._addresses[host, port]):
                self._addresses[host, port] = found
                log.info("addresses of parent %s: %s", host, ", ".join(str(each.address) for each in found))
                self._on_change()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self.look_up_all()
            pause.wait(_INTERVAL if all(self._addresses.values()) else _RETRY_INTERVAL)
