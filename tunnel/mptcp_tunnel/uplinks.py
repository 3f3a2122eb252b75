# SPDX-License-Identifier: GPL-2.0-or-later
"""The interfaces of tunnels' packets, while they exist.

An uplink may come after the daemon, go, and come back as another device of the same name.
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
    """One host's uplinks: the joiner is attached to them, and messages go and come by them."""

    def __init__(
        self,
        names: Iterable[str],
        programs: Programs,
        selector: selectors.BaseSelector,
        read: Callable[[Receiver], None],
    ) -> None:
        self._names, self._programs, self._selector, self._read = tuple(names), programs, selector, read
        self._there: dict[str, _Uplink] = {}
        self._missing: dict[str, str] = {}
        """Why an uplink is missing, logged once."""

    def close(self) -> None:
        for name in list(self._there):
            self._leave(name)

    @property
    def indices(self) -> set[int]:
        """The interface indices of present uplinks."""
        return {each.index for each in self._there.values()}

    def follow(self) -> bool:
        """Take up new uplinks, and leave those that have gone; return whether anything changed."""
        changed = False
        for name in self._names:
            uplink = self._there.get(name)
            try:
                index = index_of(name)
                if uplink is not None and uplink.index == index:
                    continue
                changed |= self._leave(name)
                self._take(name, index)
            except KernelError as error:
                changed |= self._leave(name)
                if self._missing.get(name) != str(error):
                    self._missing[name] = str(error)
                    log.warning("uplink %s: %s; waiting for it", name, error)
                continue
            changed = True
            if self._missing.pop(name, None):
                log.info("uplink %s is there", name)
        return changed

    def send(self, name: str, ends: Ends, payload: bytes, class_id: int) -> None:
        """Send a message by an uplink, in an HTB class. What cannot leave counts as lost."""
        uplink = self._there.get(name)
        if uplink is not None:
            uplink.sender.send(ends, payload, class_id)

    def _take(self, name: str, index: int) -> None:
        with ExitStack() as scope:
            self._programs.attach_joiner(index)
            sender = Sender(name)
            scope.callback(sender.close)
            receiver = Receiver(name)
            scope.callback(receiver.close)
            self._selector.register(receiver, selectors.EVENT_READ, partial(self._read, receiver))
            scope.callback(self._selector.unregister, receiver)
            self._there[name] = _Uplink(index, sender, scope.pop_all())

    def _leave(self, name: str) -> bool:
        uplink = self._there.pop(name, None)
        if uplink is None:
            return False
        uplink.scope.close()
        return True
