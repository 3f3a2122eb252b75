"""Closes what is beyond what is tracked, for no cap would hold it: subflows of a connection, connections of a client.

The kernel's own path manager takes fewer subflows than are tracked; under the one in user space, which a policy that
steers by order needs, the kernel takes any number, and whoever is that path manager says which stay. Where that is not
this daemon, in a dry run for one, nothing is closed, and what there is beyond them is only logged. A client sees the
subflow closed, and its connection lives on with the others.

A connection that is more than its client may have (:mod:`mptcp_throttler.mptcp.shares`) is closed by the kernel, which
resets its subflows; a dry run only logs it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.mptcp.model import Connection, Event, EventKind, FourTuple
from mptcp_throttler.runtime.logs import about
from mptcp_throttler.runtime.path_manager import UserspacePathManager
from mptcp_throttler.telemetry.minute import Minute

log = logging.getLogger(__name__)

MOST_LINES: Final = 20
"""In a minute, of each kind: a client can have as many closed as it likes."""


class Excess:
    """Of one daemon."""

    def __init__(
        self,
        path_manager: UserspacePathManager,
        connections: Mapping[int, Connection],
        close_sockets: Callable[[Sequence[FourTuple]], Mapping[FourTuple, str]],
        is_dry_run: Callable[[], bool],
    ) -> None:
        """*connections* is the tracker's live view by token; *close_sockets* returns why which stay."""
        self._path_manager = path_manager
        self._connections = connections
        self._close_sockets = close_sockets
        self._is_dry_run = is_dry_run
        self._lines = {"subflows": Minute(MOST_LINES), "connections of its client": Minute(MOST_LINES)}

    def close(self, events: Iterable[Event]) -> None:
        """Close what *events* report as too many; what the kernel keeps is logged, and so is what is not ours to close,
        until a dump reports it again."""
        connections = []
        for event in events:
            if event.kind is EventKind.SUBFLOW_EXCESS:
                self._close_subflow(event)
            elif event.kind is EventKind.CONNECTION_EXCESS:
                connections.append(event)
        if connections:
            self._close_connections(connections)

    def _close_subflow(self, event: Event) -> None:
        if event.four_tuple is None:
            return
        if not self._path_manager.in_force:
            self._say("subflows", event, "left, for no policy in force steers by order; nothing caps it")
            return
        try:
            self._path_manager.close_subflow(event.token, event.four_tuple)
        except KernelError as error:
            if error.errno == errno.EINVAL and event.token not in self._connections:
                return  # it ended meanwhile, with all its subflows
            self._say("subflows", event, f"{error}; nothing caps it")
        else:
            self._say("subflows", event, "closed")

    def _close_connections(self, events: Sequence[Event]) -> None:
        if self._is_dry_run():
            for event in events:
                self._say("connections of its client", event, "left, for this is a dry run; nothing caps it")
            return
        # Some 13 µs each, of 500 at most: what an observer read at once, or a step of a resync.
        stayed = self._close_sockets([event.four_tuple for event in events if event.four_tuple is not None])
        for event in events:
            why = None if event.four_tuple is None else stayed.get(event.four_tuple)
            outcome = "closed" if why is None else f"{why}; nothing caps it"
            self._say("connections of its client", event, outcome)

    def _say(self, what: str, event: Event, outcome: str) -> None:
        if self._lines[what].has_room(event.time):
            fields = about(self._connections.get(event.token), token=event.token, subflow=event.four_tuple)
            log.warning("%s: too many %s: %s: %s", event.four_tuple, what, event.detail, outcome, extra=fields)
