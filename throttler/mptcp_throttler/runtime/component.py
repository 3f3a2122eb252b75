"""The one life cycle of what the daemon is made of.

A reload prepares all components for the new policy, and where one refuses rolls all of them back to the old one; only
when all are prepared are they committed. So nothing is half applied. Components close in the reverse order of the list;
one that fails to close does not keep the others from it (``AsyncExitStack``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.policy.model import Policy

log = logging.getLogger(__name__)


class Component:
    """A part with something in the kernel, on disk or on the event loop. It inherits the steps that do nothing.

    Each object there is made and changed by one component: docs/contract.md names them all.
    """

    @property
    def repairs(self) -> int:
        """How many objects of this were found changed and put right so far."""
        return 0

    async def verify(self) -> None:
        """Compare what this put there with what is there, and put right what differs. Raises KernelError."""

    async def prepare(self, policy: Policy) -> None:
        """Provide what *policy* needs, before it comes into force. Raises KernelError where it cannot be provided."""

    async def commit(self, policy: Policy) -> None:
        """*policy* is in force: drop what it does not need."""

    async def roll_back(self, policy: Policy) -> None:
        """*policy* stays in force: drop what another one that was prepared would have needed."""

    async def run(self) -> None:
        """Work until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Take everything out of the kernel again. Raises KernelError with all that failed."""


async def prepare_all(components: Sequence[Component], wanted: Policy, present: Policy) -> None:
    """Prepare *components* for *wanted*. Where one refuses, all are as *present* needs them; raises KernelError."""
    try:
        for component in components:
            await component.prepare(wanted)
    except KernelError:
        for component in reversed(components):
            try:
                await component.roll_back(present)
            except KernelError as error:
                log.error("%s", error)
        raise


async def verify_all(owners: Iterable[Component], refused: dict[Component, str]) -> bool:
    """Have all *owners* verified; one that cannot put its objects right does not keep the others from it.

    Return whether all could. *refused* has for each of the others what was last said of it, so that it is said once.
    """
    for owner in owners:
        try:
            await owner.verify()
        except KernelError as error:
            if refused.get(owner) != str(error):
                log.error("verify: %s", error)
            refused[owner] = str(error)
        else:
            refused.pop(owner, None)
    return not refused
