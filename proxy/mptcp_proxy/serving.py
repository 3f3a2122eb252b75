"""Whether Squid listens as it should, judged by look after look. Pure: times are arguments, in seconds of one clock.

A worker that ends again and again within seconds is started no more for a while, and the others, or the coordinator
alone, go on: Squid itself runs then, and nobody may be listening. So there is no end of looking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from .listening import Listening, may_be

INTERVAL: Final = 10.0
"""Between two looks where all is as it was."""
SOON: Final = 1.0
"""Between two looks where something is not as it should be and not yet told."""
CHANGING: Final = 30.0
"""In which Squid opens its ports after a start or a reload."""
PASSING: Final = 5.0
"""What lasts shorter than this is not told: a worker that ended is started again within it."""
DESERTED: Final = 15.0
"""Longer than this nobody is left without a listener while Squid lacks processes; it starts them anew before."""
UNOPENED: Final = 120.0
"""The same for a Squid that lacks none, never listened, or has just been told to reload: it may be reading a long file,
which takes a minute."""


@dataclass(frozen=True, slots=True)
class Picture:
    """How Squid listens at a moment."""

    ports: tuple[int, ...]
    plain: tuple[int, ...] = ()
    """Those with a listener that takes plain TCP alone."""
    missing: tuple[int, ...] = ()
    fewer: tuple[tuple[int, int, int], ...] = ()
    """Those with fewer listeners than there should be: a port, how many it has, and how many it should have."""

    @property
    def complete(self) -> bool:
        return not self.missing and not self.fewer

    @property
    def served(self) -> bool:
        """Whether clients come in on any port."""
        return len(self.missing) < len(self.ports)


def picture(
    wanted: Mapping[int, int],
    own: Collection[int],
    sockets: Iterable[Listening],
    hosts: Mapping[int, Collection[str]],
) -> Picture:
    """Compare the listeners of processes *own* with *wanted*: how many there are to be on each port.

    Whose a socket is takes CAP_SYS_PTRACE to know, which the unit does not give. At no address of ours was somebody
    else's before Squid was started; so one of nobody known is ours where it is at one of *hosts*, by port.
    """

    def is_at(socket: Listening) -> bool:
        return any(may_be(host, socket) for host in hosts.get(socket.port, ()))

    ours = [each for each in sockets if (any(pid in own for pid in each.pids) if each.pids else is_at(each))]
    there = Counter(each.port for each in ours)
    plain = {each.port for each in ours if not each.mptcp}
    ports = tuple(sorted(wanted))
    return Picture(
        ports,
        tuple(port for port in ports if port in plain),
        tuple(port for port in ports if not there[port]),
        tuple((port, there[port], wanted[port]) for port in ports if 0 < there[port] < wanted[port]),
    )


class Judge:
    """Decides which pictures are told, when the next look is due, and when there is nothing left to wait for."""

    def __init__(self, now: float) -> None:
        self.due = now
        self._told: Picture | None = None
        self._changing_until = now + CHANGING
        self._reloading_until = now
        """Who stops listening before then may do so for a reload."""
        self._wrong_since: float | None = now
        self._unserved_since: float | None = now
        self.ever_served = False
        """Clients came in at some time."""

    def expect_change(self, now: float) -> None:
        """Squid is to close its listeners and to open others: what it has then is told, changed or not."""
        self.due = now + SOON
        self._told = None
        self._wrong_since, self._changing_until = now, now + CHANGING
        self._reloading_until = self._changing_until

    def looked(self, seen: Picture, all_there: bool, now: float) -> bool:
        """Take what a look has *seen*, and say whether it is to be told. *all_there*: as below."""
        if seen.served:
            self.ever_served, self._unserved_since = True, None
        elif self._unserved_since is None:
            self._unserved_since = now
        self.due = now + (INTERVAL if seen.served else SOON)
        if seen == self._told:
            self._wrong_since = None
            return False
        if not seen.complete:
            if self._wrong_since is None:
                self._wrong_since = now
            if now < self._patient_until(self._wrong_since, all_there):
                self.due = now + SOON
                return False
        self._wrong_since = None
        self._told = seen
        return True

    def blind(self, now: float) -> bool:
        """Take that nobody could see how Squid listens, and say whether a start or a reload has had its time.

        What was not seen to be unserved does not count: a healthy Squid would be ended because ss is missing.
        """
        self._unserved_since = None
        self.due = now + INTERVAL
        return now >= self._changing_until

    def _patient_until(self, since: float, all_there: bool) -> float:
        """Return until when what is wrong *since* then is not told."""
        passing = since + PASSING
        return max(passing, self._changing_until) if all_there or not self.ever_served else passing

    def deserted(self, all_there: bool, now: float) -> bool:
        """Say whether no port has been served for so long that a new start is the best that is left.

        *all_there*: Squid lacks none of its processes.
        """
        if self._unserved_since is None:
            return False
        reading = all_there or not self.ever_served or self._unserved_since < self._reloading_until
        return now - self._unserved_since >= (UNOPENED if reading else DESERTED)


class Standstill:
    """Finds processes that do not run at all: stopped, or waiting for ever in the kernel.

    Squid's processes run once a second, whatever there is to do. One that computes for ever is not found.
    """

    LOOKS: Final = 3
    """So many looks with nothing in between are one too many."""

    def __init__(self) -> None:
        self._ran: dict[int, tuple[int, int]] = {}
        """What each had run when last looked at, nanoseconds, and how many looks saw just that."""

    def looked(self, ran: Mapping[int, int]) -> frozenset[int]:
        """Take for how long each process has run so far, in nanoseconds, and return those that stand still."""
        before = self._ran
        self._ran = {
            pid: (so_far, before[pid][1] + 1 if pid in before and before[pid][0] == so_far else 1)
            for pid, so_far in ran.items()
        }
        return frozenset(pid for pid, (_, looks) in self._ran.items() if looks > self.LOOKS)
