# SPDX-License-Identifier: GPL-2.0-or-later
"""Aims of the experiment ``scale``, and whether the measurements meet them. Pure.

If the throttler was dead or never acted, the measured value is infinite, NaN or an empty list, and misses its aim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from ..statistics import mean_or_nan, median, percentile
from .aims import Aim, coloured
from .tables import new_table

RELOAD = 5.0
"""Most seconds from SIGHUP until the last set entry is added, and until the last one is removed."""
GROWTH = 12.0
"""Most growth of the reload time when there are ten times as many tunnels."""
PAUSE = 0.05
"""Longest silence of the event loop in seconds."""
STATUS = 0.5
"""Most seconds for ``status --json``."""
BUSY, IDLE = 0.25, 0.05
"""Most processor cores of the throttler: with caps, guard and budgets in force, and with nothing capped."""
REACTION_P99 = 5.0
"""Most milliseconds of the reaction's 99th percentile without tunnels."""
REACTION_GROWTH = 2.0
"""Most growth of the reaction's 99th percentile with tunnels, as a multiple of the one without."""
STOP = 3.0
"""Most seconds from SIGTERM to the throttler's end."""
RESIDENT = 150.0
"""Most memory of the throttler (RSS) in MB."""
KEPT = 0.95
"""Least share of its rate that the other path keeps when a download beside the crowd is capped softly."""
SET_UP = 90.0
"""Most seconds until all tunnels are established."""
TRICKLED = 0.95
"""Least bytes received, as a share of what the origin should send. With less, not all tunnels trickled, and the other
figures prove nothing."""
DEAD_MB = 5.0
"""Least memory in MB of a living throttler."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The throttler's end after one SIGTERM."""

    moment: str
    seconds: float
    differences: tuple[str, ...]
    """Kernel dumps that differ from the ones before the first start, and an exit code other than 0."""


@dataclass(frozen=True, slots=True)
class ProcessorShares:
    """Processor cores that each program used over one span of time."""

    daemon: float
    proxy: float
    client: float
    origin: float
    machine: float
    """Cores that all programs of the machine used, including unrelated ones."""
    trickled: float
    """Bytes that the crowd's client received, as a share of what the origin should send."""

    @property
    def others(self) -> float:
        """Cores that unrelated programs used. On a busy machine, the measurement is not reliable."""
        daemon = self.daemon if math.isfinite(self.daemon) else 0.0
        return self.machine - daemon - self.proxy - self.client - self.origin


@dataclass(frozen=True, slots=True)
class Rig:
    """The experiment's own cost for one number of tunnels."""

    tunnels: int
    set_up: float
    """Seconds until all tunnels were established."""
    two_subflows: int
    """Number of connections with two subflows, by the proxy's kernel."""
    alone: ProcessorShares
    """Processor shares while the throttler was idle or did not run."""


@dataclass(frozen=True, slots=True)
class Held:
    """Measurements of the throttler while *tunnels* tunnels were held."""

    tunnels: int
    shown: int
    """Number of the crowd's connections that ``status`` shows with two active subflows."""
    half: float
    """Seconds from SIGHUP until half of the set entries existed."""
    reload: float
    """Seconds from SIGHUP until the last set entry existed."""
    released: float
    """Seconds from SIGHUP until the last set entry was removed."""
    longest: float | None
    """Longest lag of the event loop in seconds, by the throttler's own gauge; None without a gauge."""
    late: int | None
    """How often the loop was late, by the same gauge."""
    silence: float
    """Longest time in seconds until the status socket sent its first byte, during a reload."""
    commands: tuple[float, ...]
    """Seconds that each ``mptcp-throttler status --json`` took."""
    answers: tuple[float, ...]
    """Seconds that each answer of the status socket took."""
    busy: ProcessorShares
    reactions: tuple[float, ...]
    """Milliseconds from each join's third ACK to its entry."""
    asked: tuple[float, ...]
    """The same while status is queried continuously."""
    stops: tuple[Stop, ...]
    resident: float
    """Memory (RSS) of the throttler in MB; :attr:`proportional` is the PSS."""
    proportional: float
    kept_limits: int
    """Number of subflows that keep a pacing limit after the first stop. An idle subflow keeps it until it sends."""
    ended: int
    """Number of tunnels that ended although they should not."""


NO_WINDOW = ProcessorShares(math.nan, math.nan, math.nan, math.nan, math.nan, math.nan)


def nothing(tunnels: int) -> Held:
    """Return the figures for a throttler that never answered."""
    never = math.inf
    stops = (Stop("idle", never, ("it never ran",)),)
    return Held(
        tunnels, 0, never, never, never, None, None, never, (), (), NO_WINDOW, (), (), stops, math.nan, math.nan, 0, 0
    )


def judge(
    rigs: Sequence[Rig],
    none: Sequence[float],
    held: Sequence[Held],
    reactions: int,
    asked: int,
) -> list[Aim]:
    """Return all aims. *none* are reactions without tunnels; *reactions* and *asked* are the planned numbers.

    Raises ValueError if no tunnels were held.
    """
    if not rigs:
        raise ValueError("no tunnels were held")
    aims = [aim for rig in rigs for aim in _rig(rig)]
    if not held:
        return aims
    base = percentile(none, 99, default=math.inf)
    aims += [
        Aim("0 held: reactions seen", len(none), least=reactions),
        Aim("0 held: reaction of a join, median", percentile(none, 50, default=math.inf), " ms"),
        Aim("0 held: reaction of a join, p99", base, " ms", most=REACTION_P99),
    ]
    windows = {rig.tunnels: rig.alone for rig in rigs}
    for each in held:
        aims += _held(each, windows[each.tunnels], base, reactions, asked)
    by_number = {each.tunnels: each for each in held}
    for number, each in by_number.items():
        if number * 10 in by_number:
            more = by_number[number * 10].reload
            growth = more / each.reload if each.reload > 0 and math.isfinite(more) else math.inf
            aims.append(Aim(f"{number * 10:,} held: reload, growth from a tenth", growth, "-fold", most=GROWTH))
    return aims


def _rig(rig: Rig) -> list[Aim]:
    name = f"{rig.tunnels:,} held"
    return [
        Aim(f"{name}: set-up", rig.set_up, " s", most=SET_UP),
        Aim(f"{name}: tunnels with two subflows", rig.two_subflows, least=rig.tunnels),
        Aim(f"{name}: trickled, of what it should", rig.alone.trickled, least=TRICKLED),
        Aim(f"{name}: cores for Squid", rig.alone.proxy),
        Aim(f"{name}: cores for the crowd's client", rig.alone.client),
        Aim(f"{name}: cores for its origin", rig.alone.origin),
        Aim(f"{name}: cores for everything else", rig.alone.others),
    ]


def _held(held: Held, alone: ProcessorShares, base: float, reactions: int, asked: int) -> list[Aim]:
    name = f"{held.tunnels:,} held"
    growth = round(REACTION_GROWTH * base, 2) if math.isfinite(base) else REACTION_P99
    aims = [
        Aim(f"{name}: connections with two subflows in status", held.shown, least=held.tunnels),
        Aim(f"{name}: tunnels that ended", held.ended, most=0),
        Aim(f"{name}: trickled under caps, of what it should", held.busy.trickled, least=TRICKLED),
        Aim(f"{name}: reload, to half of the set entries", held.half, " s"),
        Aim(f"{name}: reload, to the last set entry", held.reload, " s", most=RELOAD),
        Aim(f"{name}: reload, until none is left", held.released, " s", most=RELOAD),
        Aim(f"{name}: status socket silent in a reload", held.silence, " s", most=STATUS),
    ]
    if held.longest is not None:
        # The lag must be above 0: a gauge that stays at 0 measures nothing.
        aims.append(Aim(f"{name}: event loop silent, by its gauge", held.longest, " s", least=1e-9, most=PAUSE))
        aims.append(Aim(f"{name}: how often for longer than {PAUSE:g} s", held.late or 0))
    else:
        aims.append(Aim(f"{name}: event loop silent, no gauge: at least", held.silence, " s", most=PAUSE))
    aims += [
        Aim(f"{name}: status --json, median", median(held.commands, default=math.inf), " s", most=STATUS),
        Aim(f"{name}: status --json, greatest", max(held.commands, default=math.inf), " s"),
        Aim(f"{name}: status socket, median", median(held.answers, default=math.inf), " s", most=STATUS),
        Aim(f"{name}: cores: caps, guard, budgets", held.busy.daemon, most=BUSY),
        Aim(f"{name}: cores: nothing capped", alone.daemon, most=IDLE),
        Aim(f"{name}: cores for everything else, under caps", held.busy.others),
        Aim(f"{name}: reactions seen", len(held.reactions), least=reactions),
        Aim(f"{name}: reaction of a join, median", percentile(held.reactions, 50, default=math.inf), " ms"),
        Aim(f"{name}: reaction of a join, p99", percentile(held.reactions, 99, default=math.inf), " ms", most=growth),
        Aim(f"{name}: reactions seen while status is asked", len(held.asked), least=asked),
        Aim(
            f"{name}: reaction while status is asked, p99",
            percentile(held.asked, 99, default=math.inf),
            " ms",
            most=growth,
        ),
        Aim(f"{name}: RSS", held.resident, " MB", least=DEAD_MB, most=RESIDENT),
        Aim(f"{name}: PSS", held.proportional, " MB"),
    ]
    for stop in held.stops:
        aims.append(Aim(f"{name}: SIGTERM {stop.moment}", stop.seconds, " s", most=STOP))
        aims.append(Aim(f"{name}: SIGTERM {stop.moment}: dumps or exit code wrong", len(stop.differences), most=0))
    aims.append(Aim(f"{name}: subflows still paced after a stop", held.kept_limits))
    return aims


def judge_soft(beside: int, none: Sequence[float], held: Sequence[float]) -> list[Aim]:
    """Return the aims for the share that the other path keeps, without tunnels and with *beside* tunnels."""
    if not beside:
        return []
    return [
        Aim("0 held: soft cap, the other path keeps", mean_or_nan(none)),
        Aim(f"{beside:,} held: soft cap, the other path keeps", mean_or_nan(held), least=KEPT),
    ]


def table(title: str, aims: Sequence[Aim]) -> Table:
    """Return a table of *aims*, which are named ``COLUMN: FIGURE``. Each number of tunnels has a column."""
    columns = sorted(
        {aim.what.partition(": ")[0] for aim in aims}, key=lambda name: int(name.split()[0].replace(",", ""))
    )
    cells: dict[str, dict[str, Aim]] = {}
    for aim in aims:
        column, _, figure = aim.what.partition(": ")
        cells.setdefault(figure, {})[column] = aim
    found = new_table(title, ("figure", "aim", *columns), ("figure",), ("figure",))
    for figure, by_column in cells.items():
        wanted = list(dict.fromkeys(aim.wanted for aim in by_column.values()))
        same = len(wanted) == 1
        texts = [_cell(by_column[column], bare=same) if column in by_column else "" for column in columns]
        found.add_row(figure, wanted[0] if same else "", *texts)
    return found


def _cell(aim: Aim, *, bare: bool) -> str:
    """Return the value, with a sign if it has an aim, and the aim itself unless *bare*."""
    text = aim.shown(digits=3)
    if not aim.wanted:
        return text
    if not bare:
        text = f"{text} ({aim.wanted})"
    return coloured(f"{text} {'✓' if aim.met else '✗'}", aim)
