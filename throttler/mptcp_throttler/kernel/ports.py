"""What reconcilers, sampler and rate transitions need of the kernel. Adapters and the tests' fakes implement these.

Every adapter raises :class:`KernelError` for whatever the kernel refuses, naming what was attempted. All
calls may be repeated: an upsert of what is there and a delete of what is gone succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.mptcp.model import ClosedSocket, FourTuple, KernelSubflow, SocketDetails
from mptcp_throttler.policy.values import Network
from mptcp_throttler.shaping.model import Birth, ClassSpec, SocketLimit, Target


class InterfaceDownError(KernelError):
    """The interface is there, and down: there is nothing to see before it is up."""


class TrafficControl(Protocol):
    """HTB: one root, one default class, one leaf class for each cap, on every interface."""

    async def prepare(self) -> None:
        """Adopt our root qdisc where it is there; else save what is there and put ours in its place.

        Where one interface is refused at the start, those taken before it are put back. Later it is left out, unless
        all are refused; one that has our root already is not, and raises KernelError after the others were taken.
        """

    @property
    def left_out(self) -> Mapping[str, str]:
        """By name, interfaces that :meth:`prepare` could not take, and why.

        There nothing is compared or changed: :meth:`read`, :meth:`settle` and all that concerns classes pass over
        them.
        """

    @property
    def settled(self) -> bool:
        """What is wanted besides root and classes is in the kernel."""

    async def settle(self) -> None:
        """Bring it there."""

    async def read(self) -> tuple[list[str], dict[int, ClassSpec] | None]:
        """Return in words what is not as :meth:`prepare` left it, and our leaf classes by minor number.

        A class that is missing or differs on an interface has rate 0. No classes, None, where no interface is there
        now, or none but what is left out: there is nothing to compare before one returns.

        It gives way to the event loop, and changes may go on meanwhile.
        """

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None: ...

    async def delete_classes(self, minors: Iterable[int]) -> None: ...

    async def restore(self) -> None:
        """Put back what :meth:`prepare` replaced. Nothing of ours is left afterwards."""


class EgressTrafficControl(TrafficControl, Protocol):
    """The same on interfaces that others use too."""

    @property
    def prepared(self) -> bool:
        """Our root is there, so that there is something to put back."""

    def want_gso(self, limit: Callable[[int], int]) -> None:
        """Let the interfaces build GSO segments of *limit* bytes, given what they built before we came.

        It comes about by :meth:`settle`, and by :meth:`prepare`.
        """


class Netfilter(Protocol):
    """One static rule per family that looks the packet's subflow up in a set; all churn is in the set."""

    async def prepare(self) -> None:
        """Make the sets and the rule, or adopt them."""

    async def check(self) -> list[str]:
        """Return in words what is not as :meth:`prepare` left it, entries aside; it changes nothing and gives way."""

    async def read_entries(self) -> dict[FourTuple, Target]:
        """Return what is in the sets; it gives way to the event loop, and changes may go on meanwhile."""

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None: ...

    def upsert_at_once(self, entries: Mapping[FourTuple, Target]) -> bool:
        """Do as :meth:`upsert_entries` without giving way, for a few; return False where that cannot be done now."""

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None: ...

    async def remove(self) -> None:
        """Remove rule and sets. Nothing of ours is left afterwards."""

    def close(self) -> None:
        """Release sockets and libraries; nothing in the kernel changes."""


class KernelSockets(Protocol):
    """The MPTCP subflows of our listening ports, as their sockets are now."""

    def pieces(self) -> Iterator[Sequence[KernelSubflow]]:
        """Yield all of them, some at a time, so that the caller can do something else in between."""

    def look_up(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, KernelSubflow]:
        """Return those of *four_tuples* that have a socket."""

    def details(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, SocketDetails]:
        """Return of those of *four_tuples* that have a socket what samples leave out."""

    def close_sockets(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, str]:
        """Close those of *four_tuples* that have a socket, at both ends. Return those that stay, with the reason."""

    def close(self) -> None: ...


class SocketPacing(Protocol):
    """Limits on single subflows' sockets, each named by its cookie."""

    has_buffers: bool
    """Sockets may have larger send buffers."""

    def set_births(self, changes: Mapping[Network, Birth | None]) -> bool:
        """Give the subflows to come from client prefixes what they have from the start; None takes that away.

        The longest prefix decides. Return False where this kernel cannot.
        """

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        """Set limits, in force about a round trip later. The map keeps them until they are forgotten."""

    def limit_at_once(self) -> bool:
        """Have all that :meth:`limit` set in force now, also on sockets that send nothing; False where that cannot be.

        It may be called in a thread, for it takes a microsecond or so for each TCP socket of the namespace.
        """

    def can_rest(self) -> bool:
        """Tell whether a socket with a rate of 0 can be made to send again by :meth:`limit_at_once`."""

    async def check(self) -> list[str]:
        """Compare programs and maps with what was set, put right what differs and return it in words."""

    def forget(self, cookies: Iterable[int]) -> None:
        """Set nothing more on these sockets; what is set stays."""

    def close(self) -> None:
        """End all setting."""


class SocketMeter(Protocol):
    """What sockets carried that the proxy accepted while this was there."""

    def closed(self) -> Iterable[ClosedSocket]:
        """Return those that have closed, each once. Raises KernelError."""

    def check(self) -> list[str]:
        """Put right what somebody did to it; return it in words. Raises KernelError."""

    def close(self) -> None:
        """Meter nothing more."""
