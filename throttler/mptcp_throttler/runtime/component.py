# SPDX-License-Identifier: GPL-2.0-or-later
"""The life cycle that all parts of the daemon share.

A reload prepares all components for the new policy. If one refuses, all are rolled back to the old one; only when all
are prepared are they committed. So nothing is half applied. Components close in reverse order of the list; a failure to
close does not stop the others (``AsyncExitStack``).
"""

from __future__ import annotations

import asyncio

from mptcp_throttler.policy.model import Policy


class Component:
    """A part with something in the kernel, on disk or on the event loop. By default, each step does nothing. Each
    object there has one component that makes and changes it: docs/contract.md names them all."""

    repairs = 0
    """How many objects were found changed and repaired so far."""

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
