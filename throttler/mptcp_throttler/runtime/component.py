# SPDX-License-Identifier: GPL-2.0-or-later
"""The life cycle that all parts of the daemon share.

A reload first prepares all components for the new policy. If one refuses, all are rolled back to the old policy;
otherwise all are committed. So no policy is applied in part. Components close in reverse order of the list; if one
fails to close, the others still close (``AsyncExitStack``).
"""

from __future__ import annotations

import asyncio

from mptcp_throttler.policy.model import Policy


class Component:
    """A part of the daemon with state in the kernel or on disk, or a task on the event loop. By default, each step does
    nothing. Each *policy* here is a ``Policy.applied``. Each object in the kernel or on disk belongs to one component:
    docs/contract.md lists them."""

    repairs = 0  # number of objects that were found changed and repaired so far

    async def verify(self) -> None:
        """Compare this component's objects with the desired state, and repair differences. Raises KernelError."""

    async def prepare(self, policy: Policy) -> None:
        """Provide what *policy* needs, before it comes into force. Raises KernelError if that is impossible."""

    async def commit(self, policy: Policy) -> None:
        """Drop what the policy does not need. *policy* is now in force."""

    async def roll_back(self, policy: Policy) -> None:
        """Drop what a refused policy would have needed. *policy* stays in force."""

    async def run(self) -> None:
        """Work until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Remove everything from the kernel. Raises KernelError with all failures."""
