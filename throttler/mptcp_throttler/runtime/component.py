"""The life cycle that all parts of the daemon share.

A reload prepares all components for the new policy. If one refuses, all are rolled back to the old one; only when all
are prepared are they committed. So nothing is half applied. Components close in reverse order of the list; a failure to
close does not stop the others (``AsyncExitStack``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.policy.model import Policy

log = logging.getLogger(__name__)


class Component:
    """A part with something in the kernel, on disk or on the event loop. By default, each step does nothing. Each
    object there has one component that makes and changes it: docs/contract.md names them all."""

    @property
    def repairs(self) -> int:
        """How many objects were found changed and repaired so far."""
        return 0

    async def verify(self) -> None:
        """Compare this component's objects with the desired state, and repair differences. Raises KernelError."""

    async def prepare(self, policy: Policy) -> None:
        """Provide what *policy* needs, before it comes into force. Raises KernelError if that is impossible."""

    async def commit(self, policy: Policy) -> None:
        """*policy* is in force: drop what it does not need."""

    async def roll_back(self, policy: Policy) -> None:
        """*policy* stays in force: drop what another, prepared one would have needed."""

    async def run(self) -> None:
        """Work until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Remove everything from the kernel. Raises KernelError with all failures."""


async def prepare_all(components: Sequence[Component], wanted: Policy, present: Policy) -> None:
    """Prepare *components* for *wanted*. If one refuses, roll all back to *present* and raise KernelError."""
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
    """Verify all *owners*; a failed repair does not stop the others. Return whether all succeeded. *refused* has the
    last error of each owner that failed, so that it is logged once."""
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
