# SPDX-License-Identifier: GPL-2.0-or-later
"""Aims of the experiment ``console``, and whether the measurements meet them. Pure.

If a program was dead or never acted, the measured value is infinite, NaN or an empty list, and misses its aim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..statistics import median
from .aims import Aim
from .scale_judging import DEAD_MB, PAUSE, TRICKLED

BEFORE, WITH, AFTER = "without a console", "with it", "after it ended"
HUNG, KILLED = "while it hangs", "after it was killed"
ALONE = (BEFORE, AFTER)
"""The phases without a console. The other phases are compared with them."""
PHASES = (BEFORE, WITH, AFTER, HUNG, KILLED)
GROWTH, ALLOWANCE = 1.25, 0.005
"""Limit of the loop's longest lag with a console: this factor times the lag without one, plus these seconds. Each query
makes the throttler fork, which takes 8 ms with 10,000 connections, whichever program asks; the experiment itself
queries in every phase. The added seconds allow for a fork that coincides with another delay."""
MOVING = 1e-9
"""Least lag in seconds that a working gauge shows. If it shows less, it is stuck."""
MORE_LATE = 0.5
"""How many more times per reload the loop may be more than 0.05 s late than in the same reloads without a console. A
reload takes about a second of computing, and other load on the machine sometimes makes the loop late."""
UPDATES = 0.5
"""Least number of updates per second that each browser must receive. The console queries every 0.7 s."""
PUSHED = 50_000.0
"""Most bytes per second that the console may push to each browser."""
SHOWN = 1.0
"""Most seconds from the last entry in the kernel until each browser shows every cap."""
SCRAPE, SLOWEST_SCRAPE = 0.5, 2.0
"""Most seconds for a scrape: by the median, and for the slowest. The latter is the least ``scrape_timeout`` that
docs/metrics.md allows."""
ROWS = 100_000.0
"""Most bytes of a table page: 2 kB for each of 50 connections with two subflows."""
EMPTY_ROWS = 1_000.0
TABLE = 3.0
"""Most seconds until the table is complete, in a browser or in the terminal."""
REFRESH = 3.0
"""Most seconds between two tables in the terminal. ``top`` requests one every second."""
RESIDENT = 100.0
"""Most memory of the console (RSS), in MB."""
STOP = 10.0
"""Most seconds until the console has ended after SIGTERM: TimeoutStopSec of its unit."""


SPAN = 10.0
"""Seconds for which the throttler's gauge keeps its longest lag."""
SCRAPE_SECONDS = 5.0
"""Seconds between two scrapes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much the experiment measures, as its options say."""

    tunnels: int
    spans: int
    """Spans of ten seconds per phase."""
    browsers: int
    reloads: int
    pages: int
    refreshes: int

    @property
    def scrapes(self) -> int:
        """Least number of scrapes during the phase with a console."""
        return math.floor(self.spans * SPAN / SCRAPE_SECONDS)


@dataclass(frozen=True, slots=True)
class Phase:
    """Measurements of throttler and crowd during one phase."""

    lags: tuple[float, ...]
    """The throttler's longest loop lag in each ten seconds, by its gauge; infinite if it gave none."""
    late: int | None
    """How often the loop was late since the throttler started, read at the end of the phase."""
    fewest: int
    """Fewest caps in the kernel of all samples of the phase; :attr:`most` is the highest number."""
    most: int
    trickled: float
    """Bytes that the crowd's client received, as a share of what the origin should send."""
    machine: float
    """Processor cores that all programs of the machine used."""

    @property
    def longest(self) -> float:
        return max(self.lags, default=math.inf)


DEAD = Phase((), None, 0, 0, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Reloads:
    """The throttler's loop while every cap is lifted and set again several times."""

    lags: tuple[float, ...]
    """The longest lag within the ten seconds before each reload's end, by the gauge; infinite if it gave none."""
    late: int | None
    """How often the loop was late during the reloads."""


NO_RELOADS = Reloads((), None)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What the browsers received per second."""

    octets: tuple[float, ...]
    """Bytes per second of each browser."""
    updates: tuple[float, ...]
    """Updates per second of each browser."""


@dataclass(frozen=True, slots=True)
class Top:
    """Times of the tables that ``mptcp-throttler top`` showed in a terminal."""

    first: float
    """Seconds until the first table."""
    gaps: tuple[float, ...]
    """Seconds between two tables."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the console ended after SIGTERM: the seconds it took, and its exit status."""

    seconds: float
    code: int | None


NOTHING_PUSHED = Pushed((), ())
NO_TABLE = Top(math.inf, ())
NEVER_ENDED = Ended(math.inf, None)


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """All measurements of the experiment."""

    tunnels: int
    two_subflows: int
    phases: dict[str, Phase]
    reloads: dict[str, Reloads]
    """The reloads without a console and those with it, by phase."""
    pushed: Pushed
    """What browsers received while the tunnels carried only their trickle of data."""
    reloading: Pushed
    """What browsers received around reloads that lift and cap every tunnel."""
    shown: tuple[float, ...]
    """Seconds from the last kernel entry of such a reload until all browsers show all caps; infinite if one never
    does."""
    scrapes: tuple[float, ...]
    """Seconds of each scrape; infinite for an incomplete one."""
    rows: tuple[float, ...]
    """Seconds for a table page over HTTP; infinite for a wrong one."""
    largest: float
    """Bytes of the largest table page."""
    pages: tuple[float, ...] | None
    """Seconds until the table is complete in Chromium; None without Chromium."""
    top: Top
    resident: float
    """The console's greatest resident memory in MB."""
    ended: Ended
    tunnels_ended: int
    """Number of tunnels that ended during the experiment; none should."""


def judge(load: UnderLoad, asked: Plan) -> list[Aim]:
    """Return all aims of the *asked* plan. Raises ValueError if no tunnel was held."""
    if not load.tunnels:
        raise ValueError("no tunnels were held")
    aims = [
        Aim("tunnels with two subflows", load.two_subflows, least=load.tunnels),
        Aim("tunnels that ended", load.tunnels_ended, most=0),
        *_phases(load),
        *_reloads(load, asked.reloads),
        *_browsers(load, asked.browsers, asked.reloads),
        Aim("scrapes that had it all", len(_finite(load.scrapes)), least=asked.scrapes),
        Aim("scrape, median", median(load.scrapes, default=math.inf), " s", most=SCRAPE),
        Aim("scrape, slowest", max(load.scrapes, default=math.inf), " s", most=SLOWEST_SCRAPE),
        Aim("a page of the table, over HTTP, median", median(load.rows, default=math.inf), " s", most=TABLE),
        Aim("a page of the table, largest", load.largest, " bytes", least=EMPTY_ROWS, most=ROWS),
    ]
    if load.pages is not None:
        aims.append(Aim("the table in Chromium, times", len(_finite(load.pages)), least=asked.pages))
        aims.append(Aim("the table in Chromium, slowest", max(load.pages, default=math.inf), " s", most=TABLE))
    return [
        *aims,
        Aim("top: first table", load.top.first, " s", most=TABLE),
        Aim("top: refreshes", len(load.top.gaps), least=asked.refreshes),
        Aim("top: longest between two", max(load.top.gaps, default=math.inf), " s", most=REFRESH),
        Aim("the console's RSS, greatest", load.resident, " MB", least=DEAD_MB, most=RESIDENT),
        Aim("the console ends upon SIGTERM", load.ended.seconds, " s", most=STOP),
        Aim("the console's exit status", math.nan if load.ended.code is None else abs(load.ended.code), most=0),
    ]


def _phases(load: UnderLoad) -> list[Aim]:
    phases = {name: load.phases.get(name, DEAD) for name in PHASES}
    alone = max(phases[name].longest for name in ALONE)
    # If no phase without a console gave a lag, use the absolute limit of the loop.
    bound = round(GROWTH * alone + ALLOWANCE, 4) if math.isfinite(alone) else PAUSE
    aims = []
    for name, phase in phases.items():
        most = PAUSE if name in ALONE else bound
        aims += [
            Aim(f"{name}: loop lag, longest", phase.longest, " s", least=MOVING, most=most),
            Aim(f"{name}: loop lag, longest of each ten seconds, median", median(phase.lags, default=math.inf), " s"),
            Aim(f"{name}: how often above 0.05 s", math.nan if phase.late is None else phase.late),
            Aim(f"{name}: caps in the kernel, fewest", phase.fewest, least=load.tunnels),
            Aim(f"{name}: caps in the kernel, most", phase.most, most=load.tunnels),
            Aim(f"{name}: trickled, of what it should", phase.trickled, least=TRICKLED),
            Aim(f"{name}: cores, of everything", phase.machine),
        ]
    return aims


def _reloads(load: UnderLoad, reloads: int) -> list[Aim]:
    """Compare reloads with a console and without one, because a reload itself delays the loop."""
    alone, beside = (load.reloads.get(name, NO_RELOADS) for name in (BEFORE, WITH))
    usual = median(alone.lags, default=math.inf)
    bound = round(GROWTH * usual + ALLOWANCE, 4) if math.isfinite(usual) else PAUSE
    most = math.nan if alone.late is None else alone.late + MORE_LATE * reloads
    aims = []
    for name, found in ((BEFORE, alone), (WITH, beside)):
        with_it = name == WITH
        aims += [
            Aim(f"reloads {name}: told of the loop", len(_finite(found.lags)), least=reloads),
            Aim(
                f"reloads {name}: loop lag, longest around each, median",
                median(found.lags, default=math.inf),
                " s",
                least=MOVING,
                most=bound if with_it else None,
            ),
            Aim(f"reloads {name}: loop lag, longest", max(found.lags, default=math.inf), " s"),
            Aim(
                f"reloads {name}: how often above 0.05 s",
                math.nan if found.late is None else found.late,
                most=most if with_it and not math.isnan(most) else None,
            ),
        ]
    return aims


def _browsers(load: UnderLoad, browsers: int, reloads: int) -> list[Aim]:
    return [
        Aim("browsers with a stream", sum(rate > 0 for rate in load.pushed.updates), least=browsers),
        Aim("updates a second, where fewest", min(load.pushed.updates, default=0.0), least=UPDATES),
        Aim("pushed to each, most", max(load.pushed.octets, default=math.inf), " bytes/s", most=PUSHED),
        Aim("pushed to each in a reload, most", max(load.reloading.octets, default=math.inf), " bytes/s", most=PUSHED),
        Aim("reloads that were shown", len(_finite(load.shown)), least=reloads),
        Aim(
            "all caps in browsers, after the last entry, median", median(load.shown, default=math.inf), " s", most=SHOWN
        ),
        Aim("all caps in browsers, latest", max(load.shown, default=math.inf), " s", most=SHOWN),
    ]


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
