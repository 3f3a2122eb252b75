# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims of the experiment ``console``, and which of them the measurements meet. Pure.

What could not be measured, because a program was dead or never acted, is infinite, NaN, or an empty list, and misses
its aim.
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
"""The phases without a console, with which the others are compared."""
PHASES = (BEFORE, WITH, AFTER, HUNG, KILLED)
GROWTH, ALLOWANCE = 1.25, 0.005
"""Factor on the loop's longest lag, and seconds on top. Each query costs a fork, 8 ms with 10,000 connections, whoever
asks; the experiment itself queries in every phase. The excess allows for a fork that meets another delay."""
MOVING = 1e-9
"""Seconds of lag: a gauge that shows less is stuck."""
MORE_LATE = 0.5
"""How many more times per reload the loop may be late above 0.05 s than in the same reloads without a console. A reload
computes for about a second, and other load on the machine makes it late now and then."""
UPDATES = 0.5
"""Per second and browser; the console queries every 0.7 s."""
PUSHED = 50_000.0
"""Bytes per second and browser."""
SHOWN = 1.0
"""Most seconds from the last entry in the kernel until each browser has every cap."""
SCRAPE, SLOWEST_SCRAPE = 0.5, 2.0
"""Seconds: the median, and the least ``scrape_timeout`` that docs/metrics.md allows."""
ROWS = 100_000.0
"""Bytes of a table page: 2 kB for each of 50 connections with two subflows."""
EMPTY_ROWS = 1_000.0
TABLE = 3.0
"""Seconds until the table is complete, in a browser or in the terminal."""
REFRESH = 3.0
"""Seconds between two tables in the terminal, which are requested once a second."""
RESIDENT = 100.0
"""MB."""
STOP = 10.0
"""Seconds: TimeoutStopSec of the unit."""


SPAN = 10.0
"""Seconds over which the throttler's gauge keeps its longest lag."""
SCRAPE_SECONDS = 5.0
"""Seconds between two scrapes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the options ask for."""

    tunnels: int
    spans: int
    """Per phase."""
    browsers: int
    reloads: int
    pages: int
    refreshes: int

    @property
    def scrapes(self) -> int:
        """Least number of scrapes while the console is watched."""
        return math.floor(self.spans * SPAN / SCRAPE_SECONDS)


@dataclass(frozen=True, slots=True)
class Phase:
    """Throttler and crowd over one span of time."""

    lags: tuple[float, ...]
    """The throttler's longest loop lag within each ten seconds, by its gauge; infinite where it gave none."""
    late: int | None
    """How often the loop was late since its start, read at the end."""
    fewest: int
    """Caps in the kernel, in the sample with the fewest; :attr:`most` is the same for the most."""
    most: int
    trickled: float
    """What the crowd's client received, as a share of what the origin should send."""
    machine: float
    """Cores, of everything."""

    @property
    def longest(self) -> float:
        return max(self.lags, default=math.inf)


DEAD = Phase((), None, 0, 0, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Reloads:
    """The throttler's loop while every cap is lifted and set again, several times."""

    lags: tuple[float, ...]
    """The longest lag within the ten seconds before each reload's end, by the gauge; infinite where it gave none."""
    late: int | None
    """How often the loop was late during the reloads."""


NO_RELOADS = Reloads((), None)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What the browsers received."""

    octets: tuple[float, ...]
    """Bytes per second, of each."""
    updates: tuple[float, ...]
    """Per second, of each."""


@dataclass(frozen=True, slots=True)
class Top:
    """``mptcp-throttler top`` in a terminal."""

    first: float
    """Seconds until the first table."""
    gaps: tuple[float, ...]
    """Seconds between two tables."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The console's end after SIGTERM."""

    seconds: float
    code: int | None


NOTHING_PUSHED = Pushed((), ())
NO_TABLE = Top(math.inf, ())
NEVER_ENDED = Ended(math.inf, None)


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """All measurements."""

    tunnels: int
    two_subflows: int
    phases: dict[str, Phase]
    reloads: dict[str, Reloads]
    """Without a console, and with it."""
    pushed: Pushed
    """Under the trickle only."""
    reloading: Pushed
    """In the seconds around a reload that caps every tunnel."""
    shown: tuple[float, ...]
    """Seconds from the last entry of such a reload until all browsers have all caps; infinite if one never does."""
    scrapes: tuple[float, ...]
    """Seconds; infinite for an incomplete one."""
    rows: tuple[float, ...]
    """Seconds for a table page over HTTP; infinite for a wrong one."""
    largest: float
    """Bytes of the largest page."""
    pages: tuple[float, ...] | None
    """Seconds until the table is complete in Chromium; None without Chromium."""
    top: Top
    resident: float
    """MB, the console's greatest."""
    ended: Ended
    tunnels_ended: int
    """Ended by themselves."""


def judge(load: UnderLoad, asked: Plan) -> list[Aim]:
    """Return all aims of the *asked* plan. Raises ValueError if nothing was held."""
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
    # Without anything to compare with, the absolute limit of the loop.
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
    """Compare reloads with a console with the same reloads without one: their own cost is not the console's."""
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
