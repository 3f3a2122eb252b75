# SPDX-License-Identifier: GPL-2.0-or-later
"""Protocols by which reconcilers, sampler and rate transitions use the kernel. Adapters and test fakes implement them.

Adapters raise KernelError, which names the operation, if the kernel refuses. All calls are idempotent: an
upsert of an existing object and a delete of a missing one succeed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, Sockets
from mptcp_throttler.shaping.model import ClassSpec, Target


class TrafficControl(Protocol):
    """HTB: one root, one default class and one leaf class per cap, on every interface."""

    async def prepare(self) -> None:
        """Adopt our root qdisc if it exists; otherwise save the present root and replace it.

        If the kernel refuses an interface at the start, restore the others. If it refuses an interface later, omit that
        interface, unless all are refused or that interface already has our root: then raise KernelError.
        """

    @property
    def left_out(self) -> Mapping[str, str]:
        """Interfaces whose root :meth:`prepare` could not replace, and why; the other methods skip them."""

    @property
    def settled(self) -> bool:
        """Whether the kernel has all settings other than root and classes."""

    async def settle(self) -> None:
        """Apply the settings other than root and classes."""

    async def read(self) -> tuple[list[str], dict[int, ClassSpec] | None]:
        """Return deviations from :meth:`prepare`, as texts; and our leaf classes by minor number, or None without an
        interface. A class that is not the same on all interfaces has rate 0. Yields to the event loop."""

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None: ...

    async def delete_classes(self, minors: Iterable[int]) -> None: ...

    async def restore(self) -> None:
        """Restore what :meth:`prepare` replaced, and remove all our objects."""


class Netfilter(Protocol):
    """Static rules that look up a packet's subflow in a set; only the set's entries change."""

    async def prepare(self) -> None:
        """Create or adopt the sets and the rules."""

    async def check(self) -> list[str]:
        """Return deviations from :meth:`prepare`, as texts; do not compare entries. Yields to the event loop."""

    async def read_entries(self) -> dict[FourTuple, Target]:
        """Return all entries. Yields to the event loop; changes may happen during the read."""

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None: ...

    def upsert_at_once(self, entries: Mapping[FourTuple, Target]) -> bool:
        """Upsert a few entries without yielding to the event loop; return False if that is impossible now."""

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None: ...

    async def remove(self) -> None:
        """Remove the rules and sets."""

    def close(self) -> None:
        """Release sockets and libraries, without any change in the kernel."""


class KernelSockets(Protocol):
    """The current MPTCP subflows of our listening ports."""

    def batches(self) -> Iterator[Sequence[KernelSubflow]]:
        """Yield all subflows in pieces, so that the caller can do other work in between."""

    def look_up(self, four_tuples: Sequence[FourTuple]) -> Sockets:
        """Return the subflows that have a socket."""

    def close_sockets(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, str]:
        """Close the subflows that have a socket, at both ends. Return those that stay open, with the reason."""

    def close(self) -> None: ...
