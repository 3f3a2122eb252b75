# SPDX-License-Identifier: GPL-2.0-or-later
"""The uplinks: the interfaces on which the tunnels' packets leave and arrive.

An uplink may appear after the daemon's start, disappear, and return as another device with the same name.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from mptcp_common.kernel_error import KernelError
from mptcp_tunnel.kernel.network import index_of
from mptcp_tunnel.kernel.packets import Receiver, Sender
from mptcp_tunnel.kernel.programs import Programs
from mptcp_tunnel.model import Ends

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Uplink:
    index: int
    sender: Sender
    scope: ExitStack


class Uplinks:
    """The uplinks of this host. The joiner is attached to them, and messages are sent and received on them."""

    def __init__(
        self,
        names: Iterable[str],
        programs: Programs,
        selector: selectors.BaseSelector,
        read: Callable[[Receiver], None],
    ) -> None:
        self._names, self._programs, self._selector, self._read = tuple(names), programs, selector, read
        self._present: dict[str, _Uplink] = {}
        self._missing_reasons: dict[str, str] = {}
        """For each missing uplink, why it is missing. Each reason is logged once."""

    def close(self) -> None:
        for name in list(self._present):
            self._remove(name)

    @property
    def indices(self) -> set[int]:
        """The interface indices of present uplinks."""
        return {each.index for each in self._present.values()}

    def update(self) -> bool:
        """Start to use new uplinks, and stop using removed ones; return whether anything changed."""
        has_changed = False
        for name in self._names:
            uplink = self._present.get(name)
            try:
                index = index_of(name)
                if uplink is not None and uplink.index == index:
                    continue
                has_changed |= self._remove(name)
                self._add(name, index)
            except KernelError as error:
                has_changed |= self._remove(name)
                if self._missing_reasons.get(name) != str(error):
                    self._missing_reasons[name] = str(error)
                    log.warning("uplink %s: %s; the daemon waits for it", name, error)
                continue
            has_changed = True
            if self._missing_reasons.pop(name, None):
                log.info("uplink %s is present", name)
        return has_changed

    def send(self, name: str, ends: Ends, payload: bytes, class_id: int) -> None:
        """Send a message on an uplink, in an HTB class. A message that cannot be sent counts as lost."""
        uplink = self._present.get(name)
        if uplink is not None:
            uplink.sender.send(ends, payload, class_id)

    def _add(self, name: str, index: int) -> None:
        with ExitStack() as scope:
            self._programs.attach_joiner(index)
            sender = Sender(name)
            scope.callback(sender.close)
            receiver = Receiver(name)
            scope.callback(receiver.close)
            self._selector.register(receiver, selectors.EVENT_READ, partial(self._read, receiver))
            scope.callback(self._selector.unregister, receiver)
            self._present[name] = _Uplink(index, sender, scope.pop_all())

    def _remove(self, name: str) -> bool:
        uplink = self._present.pop(name, None)
        if uplink is None:
            return False
        uplink.scope.close()
        return True
