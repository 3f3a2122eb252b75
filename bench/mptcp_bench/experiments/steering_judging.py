# SPDX-License-Identifier: GPL-2.0-or-later
"""Judge one transfer of the experiment ``steering``: in a mode, in an outage, and where it overflowed. Pure.

Rates of paths count what arrives at the client, on the wire. The application's bytes are the ones that it has read in
order. Times are seconds on the samples' clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from mptcp_lab.testbed.recorder import Sample, longest_gap, mean_rate, rates, windows

from ..statistics import fmean
from .columns import for_pictures
from .devices import DEVICES

BEGUN = 1.0
"""Seconds from the start of the client's program until both subflows exist and the mode controls them."""
WINDOW = 10.0
"""Seconds over which a path's share is computed."""


@dataclass(frozen=True, slots=True)
class Download:
    """One download in a mode with its samples. Something happens to it from *event* to *event_end*."""

    samples: tuple[Sample, ...]
    event: float
    event_end: float

    def share(self, device: str, start: float, end: float) -> float:
        """Return *device*'s share of all bytes that came between two times."""
        each = {name: mean_rate(self.samples, name, start, end) for name in DEVICES}
        return each[device] / max(1.0, sum(each.values()))

    def total(self, start: float, end: float) -> float:
        """Return the rate of both paths together, in Mbit/s, between two times."""
        return sum(mean_rate(self.samples, device, start, end) for device in DEVICES) / 1e6

    def findings(self, kind: str, wifi: float) -> dict[str, float]:
        """Return the findings of the mode *kind* by name, over Wi-Fi of *wifi* Mbit/s.

        The time of an event that never happened is infinite. Raises ValueError if there are too few samples.
        """
        end = self.samples[-1].time
        if kind == "active-standby":
            return {
                "standby's share before": self.share("eth0", BEGUN, self.event),
                "taken over after s": self._first("eth0", self.event, lambda rate: rate > 1e6),
                "back after s": self._first("wlan0", self.event_end, lambda rate: rate > 0.8e6 * wifi),
                "standby's share after": self.share("eth0", end - 2, end),
            }
        if kind == "priority-based":
            slow = self.event_end
            return {
                "Mbit/s while Wi-Fi is not enough": self.total(2.5, self.event),
                "second's share while it is": self.share("eth0", slow - 3, slow),
                "Mbit/s while it is": self.total(slow - 3, slow),
                "Mbit/s afterwards": self.total(end - 3, end),
            }
        if kind.startswith("load-balancing"):
            wanted = int(kind.split()[1].split("/", maxsplit=1)[0]) / 100
            seconds = [self.share("eth0", second, second + 1) for second in range(3, int(end) - 1)]
            starts = [sample.time for sample in self.samples if sample.time + WINDOW < end]
            shares = [self.share("eth0", start, start + WINDOW) for start in starts]
            return {
                "Ethernet's share": self.share("eth0", 0, end),
                "worst over 10 s, points": max(100 * abs(share - wanted) for share in shares),
                "least share in 1 s": min(seconds),
                "greatest share in 1 s": max(seconds),
                "Mbit/s": self.total(2, end),
            }
        return {"Ethernet's share": self.share("eth0", 0, end), "Mbit/s": self.total(2, end)}

    def _first(self, device: str, start: float, holds: Callable[[float], bool]) -> float:
        later = (rate for rate in rates(self.samples) if rate.time > start + 0.1)
        return next((rate.time - start for rate in later if holds(rate.bits[device])), inf)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a download in a mode."""

    value: float
    event: float
    """When something happened to it."""
    samples: tuple[Sample, ...] = for_pictures()


APPLICATION = "application"
"""Name of the counter of the bytes that the application has got."""
MIN_PROGRESS = 1_000_000
"""Bits/s. If the application gets less in 0.1 s, it stands still."""
SETTLE = 2.0
"""Seconds after the failure that are left out of the rate, if the outage is at least twice as long."""
SWITCHED = 1.0
"""Most seconds that the application may stand still."""
BACK = 0.5
"""If the failed path carries this share of its earlier rate, it is back."""
BACK_WINDOW = 0.5
"""Seconds for which the failed path must carry that share."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The recorded transfer. Times are in seconds on the samples' clock."""

    samples: tuple[Sample, ...]
    flags: tuple[tuple[float, Mapping[str, bool]], ...]
    """Each sample's time and, by path, whether the proxy had made the path's subflow a backup."""
    failed: float
    restored: float
    lost: str
    """The client's device on the path that failed."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The judged values of one transfer with an outage."""

    before: float
    """Rate of the application before the outage, Mbit/s."""
    during: float
    """Rate of the application in the outage, Mbit/s; without its first ``SETTLE`` seconds if it is long."""
    still: float
    """Longest time in seconds that the application stood still, beginning in the outage or lasting into it."""
    back: float
    """Seconds from the end of the outage until the failed path carries data again; infinite if never."""
    after: float
    """Rate of the application after the outage, Mbit/s."""
    flips: int
    """Number of changes since the failure of the backup flag that changed most often."""


def outage(watched: Watched) -> Outage:
    """Judge one transfer.

    Raises ValueError if there are too few samples, or if the application got nothing before the failure: a comparison
    of two transfers without a byte would find neither slower.
    """
    samples, failed, restored = watched.samples, watched.failed, watched.restored
    end = samples[-1].time
    begin = failed + SETTLE if restored - failed >= 2 * SETTLE else failed
    before = mean_rate(samples, APPLICATION, max(0.5, failed - 3), failed) / 1e6
    if before <= 0:
        raise ValueError("the application had nothing before the failure")
    return Outage(
        before,
        mean_rate(samples, APPLICATION, begin, restored) / 1e6,
        longest_gap(samples, [APPLICATION], MIN_PROGRESS, failed, restored + SWITCHED),
        _back(watched),
        mean_rate(samples, APPLICATION, restored, end) / 1e6,
        _flips(watched),
    )


def _back(watched: Watched) -> float:
    samples, restored = watched.samples, watched.restored
    before = mean_rate(samples, watched.lost, max(0.5, watched.failed - 3), watched.failed)
    there = [each for each in rates(samples) if each.time > restored]
    for number, each in enumerate(there):
        window = [later.bits[watched.lost] for later in there[number:] if later.time <= each.time + BACK_WINDOW]
        if each.bits[watched.lost] >= BACK * before and fmean(window) >= BACK * before:
            return each.time - restored
    return inf


def _flips(watched: Watched) -> int:
    def changes(path: str) -> int:
        flags = [(time, there[path]) for time, there in watched.flags if path in there]
        return sum(before != flag for (_, before), (time, flag) in pairwise(flags) if time > watched.failed)

    return max(map(changes, ("ethernet", "wifi")))


SETTLED, END = 5.0, 14.0
"""Begin and end in seconds of the time over which shares of an overflow are measured."""
STEP = 0.5
OPEN, OVER = 0.3, 0.02
"""The later path is open if it carries this share of the overflow, and closed if it carries less than this share of
everything."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """The judged values of one download."""

    first: float
    """Rate of the first path, as a share of the rate that it could have carried."""
    excess: float
    """Rate of the later path beyond the overflow, in percentage points of the total rate."""
    opened: float
    """Seconds until the later path carried its part; 0 without an overflow."""
    closed: float
    """Seconds from the end of the demand until the later path carried nothing."""


def overflow(samples: Sequence[Sample], links: tuple[float, float], demand: float, changed: float) -> Overflow:
    """Judge a download of *demand* over *links* (Mbit/s). *changed* is when the demand was halved."""

    def rate(path: int, start: float, end: float) -> float:
        return mean_rate(samples, DEVICES[path], start, end) / 1e6

    first, later = rate(0, SETTLED, END), rate(1, SETTLED, END)
    total = first + later
    due = max(0.0, min(demand, sum(links)) - links[0])
    steps = zip(*(windows(samples, (device,), STEP) for device in DEVICES), strict=True)
    over_time = [(begin + STEP, on_first / 1e6, on_later / 1e6) for (begin, on_first), (_, on_later) in steps]
    opens = (time for time, _, carried in over_time if carried > OPEN * due)
    closes = (
        time - changed
        for time, other, carried in over_time
        if time >= changed + STEP and carried < OVER * (other + 0.1)
    )
    return Overflow(
        first / min(total, links[0]),
        100 * max(0.0, later - max(0.0, total - links[0])) / total,
        next(opens, inf) if due else 0.0,
        next(closes, inf),
    )
