# SPDX-License-Identifier: GPL-2.0-or-later
"""The interface of all stages: a stage gets verdicts and samples, and returns verdicts and actions. Pure.

The policy decides first. Then each stage, in the order of a tuple in ``runtime.engine``, may change the verdicts, based
on earlier samples and the time. A stage never acts itself: it returns actions for the runtime (``Action``). Samples of
a socket may be 20 ms or, with many connections, several seconds apart. So a stage computes with the times when the
sockets were read (``KernelSubflow.read``), which also differ between the sockets of one sweep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from mptcp_throttler.mptcp.model import Connection, FourTuple, Sockets
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.policy.verdict import Verdict

Action = tuple[object, ...]  # an action that a stage requests, a named tuple
SLICE = 64  # connections that a stage observes at a time: this takes 0.3 ms, or 3 ms if all of them are backlogged


class Samples(NamedTuple):
    """Samples of the sockets of some subflows."""

    time: float  # end of the sweep or look-up that read them, monotonic seconds
    sockets: Sockets
    complete: bool  # whether all watched subflows were sampled, so that a missing subflow has no socket
    requested: Collection[FourTuple] = ()  # the subflows to sample; ``sockets`` may contain others, too


class SampledSubflows(dict[FourTuple, int]):
    """The subflows that a stage samples, each with the token of its connection."""

    def remove(self, token: int, four_tuples: Iterable[FourTuple]) -> None:
        """Stop sampling *four_tuples*, except those that now belong to another connection."""
        for each in four_tuples:
            if self.get(each) == token:
                del self[each]

    def tokens(self, samples: Samples, all_tokens: Iterable[int]) -> list[int]:
        """Return the connections with subflows in *samples*, or *all_tokens* if the samples are complete."""
        if samples.complete:
            return list(all_tokens)
        return list(dict.fromkeys([self[each] for each in samples.sockets if each in self]))


class Outcome(NamedTuple):
    """The result of a stage's evaluation of samples."""

    changed: Collection[int] = ()  # tokens of the connections to decide again
    actions: Sequence[Action] = ()


class Consumer(Protocol):
    """Processes samples. Subclasses override the methods that they need."""

    interval: float  # seconds between two samples of a subflow that is :meth:`urgent`
    period: float  # minimum seconds between two sweeps
    urgent_share: float = 0.1  # share of a processor for look-ups of its urgent subflows
    by_request: bool = False  # whether it uses only samples that it requested; if so, look-ups go on during a sweep

    def watches_any(self) -> bool:
        """Return whether :meth:`watched` returns any subflow; called often."""
        return bool(self.watched())

    def watched(self) -> Collection[FourTuple]:
        """Return the subflows to sample every ``period``."""
        return ()

    def urgent(self) -> Collection[FourTuple]:
        """Return the active subflows, to sample every ``interval``."""
        return ()

    def observe(self, samples: Samples) -> Iterator[Outcome | None]:
        """Process *samples*; yield so that the caller can do other work in between."""
        ...

    def sampling_failed(self, now: float) -> None:
        """Note that the sockets could not be read."""
        return


class Stage(Consumer, Protocol):
    needs_sockets: bool = True
    """Whether the stage reads or changes the state of sockets. If so, it is skipped for tunnels, which have none."""
    is_applied: bool = True
    """Whether caps and actions are applied, so False in a dry run; set before :meth:`set_policy`."""

    def set_policy(self, policy: Policy) -> None:
        """Adopt *policy*, which is now in force; calls of :meth:`apply` for every connection follow."""

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return the verdicts after this stage. *now* is seconds since the epoch."""

    def forget(self, token: int) -> None:
        """Drop a connection that has ended."""
        return

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        """Process *samples*; yield every ``SLICE`` connections. The caller may then call :meth:`apply` and
        :meth:`forget`."""
        yield from ()
