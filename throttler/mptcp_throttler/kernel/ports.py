"""The kernel interfaces of reconcilers, sampler and rate transitions. Adapters and test fakes implement them.

Adapters raise :class:`KernelError`, which names the operation, if the kernel refuses. All calls are idempotent: an
upsert of an existing object and a delete of a missing one succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.mptcp.model import ClosedSocket, FourTuple, KernelSubflow, SocketDetails
from mptcp_throttler.policy.values import Network
from mptcp_throttler.shaping.model import Birth, ClassSpec, SocketLimit, Target


class InterfaceDownError(KernelError):
    """The interface exists but is down: nothing can be captured until it is up."""


class TrafficControl(Protocol):
    """HTB: one root, one default class and one leaf class per cap, on every interface."""

    async def prepare(self) -> None:
        """Adopt our root qdisc if it exists; otherwise save the present root and replace it.

        At the start, if the kernel refuses one interface, restore those already taken. Later, leave it out, unless all
        are refused or it already has our root: then raise KernelError after the others were taken.
        """

    @property
    def left_out(self) -> Mapping[str, str]:
        """Interfaces that :meth:`prepare` could not take, and why: read, settle and the class methods skip them."""

    @property
    def settled(self) -> bool:
        """Tell whether the kernel has all settings other than root and classes."""

    async def settle(self) -> None:
        """Apply the settings other than root and classes."""

    async def read(self) -> tuple[list[str], dict[int, ClassSpec] | None]:
        """Return deviations from :meth:`prepare`, as texts, and our leaf classes by minor number.

        A class that is missing or differs on an interface has rate 0. The classes are None if there is no interface, or
        only left-out ones. Yields to the event loop; changes may happen during the read.
        """

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None: ...

    async def delete_classes(self, minors: Iterable[int]) -> None: ...

    async def restore(self) -> None:
        """Put back what :meth:`prepare` replaced, and remove everything of ours."""


class EgressTrafficControl(TrafficControl, Protocol):
    """Traffic control on interfaces that other programs use too."""

    @property
    def prepared(self) -> bool:
        """Tell whether our root is in place, so that :meth:`restore` has work to do."""

    def want_gso(self, limit: Callable[[int], int]) -> None:
        """Let the next :meth:`settle` or :meth:`prepare` set the GSO limits, in bytes, to *limit* of the original."""


class Netfilter(Protocol):
    """One static rule per family that looks up the packet's subflow in a set; only the set's entries change."""

    async def prepare(self) -> None:
        """Create or adopt the sets and the rule."""

    async def check(self) -> list[str]:
        """Return deviations from :meth:`prepare`, except entries, as texts; repair none. Yields to the event loop."""

    async def read_entries(self) -> dict[FourTuple, Target]:
        """Return all entries. Yields to the event loop; changes may happen during the read."""

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None: ...

    def upsert_at_once(self, entries: Mapping[FourTuple, Target]) -> bool:
        """Upsert a few entries without yielding to the event loop; return False if that is impossible now."""

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None: ...

    async def remove(self) -> None:
        """Remove rule and sets."""

    def close(self) -> None:
        """Release sockets and libraries, without any change in the kernel."""


class KernelSockets(Protocol):
    """The current MPTCP subflows of our listening ports."""

    def pieces(self) -> Iterator[Sequence[KernelSubflow]]:
        """Yield all subflows in pieces, so that the caller can do other work in between."""

    def look_up(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, KernelSubflow]:
        """Return the subflows that have a socket."""

    def details(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, SocketDetails]:
        """Return the values that samples omit, for the subflows that have a socket."""

    def close_sockets(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, str]:
        """Close the subflows that have a socket, at both ends. Return those that stay open, with the reason."""

    def close(self) -> None: ...


class SocketPacing(Protocol):
    """Limits on the sockets of single subflows, by socket cookie."""

    has_buffers: bool
    """Whether sockets can have larger send buffers."""

    def set_births(self, changes: Mapping[Network, Birth | None]) -> bool:
        """Set initial options of future subflows by client prefix (longest match; None removes). False: unsupported."""

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        """Set limits, which apply about one round trip later. The map keeps them until :meth:`forget`."""

    def limit_at_once(self) -> bool:
        """Apply all limits now, also on sockets that send nothing; return False if unsupported.

        Takes about 1 µs per TCP socket of the namespace; may run in a thread.
        """

    def can_rest(self) -> bool:
        """Tell whether :meth:`limit_at_once` can make a socket with rate 0 send again."""

    async def check(self) -> list[str]:
        """Repair programs and maps that differ from what was set; return the differences as texts."""

    def forget(self, cookies: Iterable[int]) -> None:
        """Remove the sockets' limits from the map; the sockets keep the options already set."""

    def close(self) -> None:
        """Stop setting limits."""


class SocketMeter(Protocol):
    """Byte counters of the sockets that the proxy accepts while this object exists."""

    def closed(self) -> Iterable[ClosedSocket]:
        """Return the closed sockets, each once. Raises KernelError."""

    def check(self) -> list[str]:
        """Repair changes by others; return them as texts. Raises KernelError."""

    def close(self) -> None:
        """Stop metering."""
