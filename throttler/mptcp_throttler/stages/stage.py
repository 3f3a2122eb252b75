"""The one shape of all stages: verdicts and samples in, verdicts and effects out. Pure.

The policy decides first; then each stage, in the order of one tuple (``runtime.engine``), may change the verdicts. A
stage keeps what it learnt from samples, so that its answer for a connection is a function of the verdicts it is given,
the samples it has seen and the time. What it wants done is returned as data (:class:`Effect`), and done elsewhere.

Samples of one socket may be 20 ms or several seconds apart: with many connections a sweep takes longer. A stage
computes with the time that its samples span (``KernelSubflow.read``) and never assumes that they come at its nominal
interval, nor that the sockets of one sweep were read at the same moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.policy.verdict import Verdict

SLICE = 64
"""Connections that a stage observes at a time: a third of a millisecond, or three where all of them are backlogged."""


class Samples(NamedTuple):
    """What the sockets of some subflows were like."""

    time: float
    """When the sweep or the look-up ended that read them, monotonic seconds."""
    sockets: Mapping[FourTuple, KernelSubflow]
    complete: bool
    """All that is watched was sampled: a watched subflow that is missing from it has no socket."""
    asked: Collection[FourTuple] = ()
    """What the consumer watches, or what is urgent to it, of which these are the samples: those of others come too."""


class Sampled:
    """The subflows that a stage wants sampled, and the connection of each."""

    def __init__(self) -> None:
        self._token_of: dict[FourTuple, int] = {}

    @property
    def four_tuples(self) -> Set[FourTuple]:
        return self._token_of.keys()

    def add(self, token: int, four_tuples: Iterable[FourTuple]) -> None:
        """Have those of connection *token* sampled."""
        self._token_of |= dict.fromkeys(four_tuples, token)

    def remove(self, token: int, four_tuples: Iterable[FourTuple]) -> None:
        """Have them sampled no longer, but for those that are by now of another connection."""
        for each in four_tuples:
            if self.is_of(token, each):
                del self._token_of[each]

    def is_of(self, token: int, four_tuple: FourTuple) -> bool:
        return self._token_of.get(four_tuple) == token

    def tokens(self, samples: Samples, every: Iterable[int]) -> list[int]:
        """Return the connections of which something is in *samples*: of a complete one, *every* one."""
        if samples.complete:
            return list(every)
        return list(dict.fromkeys([self._token_of[each] for each in samples.sockets if each in self._token_of]))


class Effect:
    """Base of what a stage wants done: frozen dataclasses."""

    __slots__ = ()


class Outcome(NamedTuple):
    """What a stage made of samples."""

    changed: Collection[int] = ()
    """Tokens of the connections whose verdicts are to be made anew."""
    effects: Sequence[Effect] = ()


class Consumer(Protocol):
    """Who needs samples. A class that inherits from it need not say what it does not do."""

    interval: float
    """Seconds between two samples of a subflow that is :meth:`urgent`."""
    period: float
    """Seconds between two sweeps, where sweeping takes little."""
    urgent_share: float = 0.1
    """Share of a processor that look-ups of urgent subflows for it may take."""
    by_request: bool = False
    """It takes samples only of what was asked for, so that look-ups go on while a sweep does: each subflow's samples
    still come in the order of their times."""

    def watches_any(self) -> bool:
        """Tell whether :meth:`watched` would return any: asked often."""
        return bool(self.watched())

    def watched(self) -> Collection[FourTuple]:
        """Return the subflows to be sampled every ``period``."""
        return ()

    def urgent(self) -> Collection[FourTuple]:
        """Return those on which something happens, to be sampled every ``interval``."""
        return ()

    def observe(self, samples: Samples) -> Iterator[Outcome | None]:
        """Take *samples*. Yields where the caller may do something else in between."""
        ...

    def failed(self, now: float) -> None:
        """Samples could not be taken."""
        return


class Stage(Consumer, Protocol):
    """One stage."""

    of_sockets: bool = True
    """It goes by how sockets are doing, or acts on them: nothing for tunnels, which have none."""

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force; :meth:`apply` follows for every connection."""

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return what holds after this stage. *now* is seconds since the epoch."""

    def forget(self, token: int) -> None:
        """The connection has ended."""

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        """Take *samples*; yields after every ``SLICE`` connections. What :meth:`apply` and :meth:`forget` change
        meanwhile counts."""
        ...
