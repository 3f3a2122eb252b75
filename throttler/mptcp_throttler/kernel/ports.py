"""What the reconciler needs of the kernel. Adapters implement these; fakes for the tests do too.

Every adapter raises :class:`KernelError` for whatever the kernel refuses, naming what was attempted. All
calls may be repeated: an upsert of what is there and a delete of what is gone succeed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ..mptcp.model import FourTuple
from ..shaping.model import ClassSpec, SocketLimit, Target


class KernelError(Exception):
    """The kernel refused an operation. The text says which object, which operation, and the errno."""


class TrafficControl(Protocol):
    """HTB on the egress interfaces: one root, one default class, one leaf class for each cap, on every one."""

    async def prepare(self) -> None:
        """Adopt our root qdisc where it is there; else save what is there and put ours in its place."""

    async def read_classes(self) -> dict[int, ClassSpec]:
        """Return our leaf classes by minor number; one that is missing or differs on an interface is left out."""

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None: ...

    async def delete_classes(self, minors: Iterable[int]) -> None: ...

    async def restore(self) -> None:
        """Put back what :meth:`prepare` replaced. Nothing of ours is left afterwards."""


class Netfilter(Protocol):
    """One static rule per family that looks the packet's subflow up in a set; all churn is in the set."""

    async def prepare(self) -> None:
        """Make the sets and the rule, or adopt them."""

    async def read_entries(self) -> dict[FourTuple, Target]: ...

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None: ...

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None: ...

    async def remove(self) -> None:
        """Remove rule and sets. Nothing of ours is left afterwards."""

    def close(self) -> None:
        """Release sockets and libraries; nothing in the kernel changes."""


class SocketPacing(Protocol):
    """Limits on single subflows' sockets, each named by its cookie."""

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        """Set limits, in force about a round trip later. The map keeps them until they are forgotten."""

    def forget(self, cookies: Iterable[int]) -> None:
        """Set nothing more on these sockets; what is set stays."""

    def close(self) -> None:
        """End all setting."""
