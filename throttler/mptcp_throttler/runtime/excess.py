"""Closes what subflows a connection has beyond those that are tracked: no cap would hold them.

The kernel's own path manager takes fewer than that; under the one in user space, which a policy that steers by order
needs, the kernel takes any number, and whoever is that path manager says which stay. Where that is not this daemon, in
a dry run for one, nothing is closed, and what there is beyond them is only logged. A client sees the subflow closed,
and its connection lives on with the others.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.mptcp.model import Connection, Event, EventKind
from mptcp_throttler.runtime.logs import about
from mptcp_throttler.runtime.path_manager import UserspacePathManager
from mptcp_throttler.telemetry.minute import Minute

log = logging.getLogger(__name__)

MOST_LINES: Final = 20
"""In a minute: a client can have as many closed as it likes."""


class ExcessSubflows:
    """Of one daemon."""

    def __init__(self, path_manager: UserspacePathManager, connections: Mapping[int, Connection]) -> None:
        """*connections* is the tracker's live view by token."""
        self._path_manager = path_manager
        self._connections = connections
        self._lines = Minute(MOST_LINES)

    def close(self, events: Iterable[Event]) -> None:
        """Close the subflows that *events* report as too many; one that the kernel keeps is logged, and so is one that
        is not ours to close, until a dump made under a policy that steers by order reports it again."""
        for event in events:
            if event.kind is not EventKind.SUBFLOW_EXCESS or event.four_tuple is None:
                continue
            if not self._path_manager.in_force:
                self._say(event, "left, for no policy in force steers by order; nothing caps it")
                continue
            try:
                self._path_manager.close_subflow(event.token, event.four_tuple)
            except KernelError as error:
                if error.errno == errno.EINVAL and event.token not in self._connections:
                    continue  # it ended meanwhile, with all its subflows
                self._say(event, f"{error}; nothing caps it")
            else:
                self._say(event, "closed")

    def _say(self, event: Event, outcome: str) -> None:
        if self._lines.has_room(event.time):
            fields = about(self._connections.get(event.token), token=event.token, subflow=event.four_tuple)
            log.warning("%s: too many subflows: %s: %s", event.four_tuple, event.detail, outcome, extra=fields)
