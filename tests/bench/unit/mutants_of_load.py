# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment load, and its mutants: in each, one part measures something else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mutants import Judge, rehearsed

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.load import SCENARIO
from mptcp_bench.experiments.load_entries import Carried, EntriesCell
from mptcp_bench.experiments.load_held import Held, HeldCell, Window
from mptcp_bench.experiments.load_joins import JoinsCell, Reactions
from mptcp_bench.experiments.load_rate import Followed, RateCell
from mptcp_bench.experiments.load_soft import Kept, SoftCell

OPTIONS = {"n": "1000,10000", "rate": "500,1000", "netfilter": "nftables", "rounds": "10"}
MANY = 10_000
REACTIONS = Reactions(200, 50, 200, 0, median=1.2, p99=4.0, greatest=6.0, passed=9_000)
WINDOW = Window(throttler=0.02, squid=0.5, crowd=0.3, others=0.1, trickled=1.0)


def followed(rate: int) -> Followed:
    """Return what a throttler noticed that keeps up with 500 connections per second, but not with more."""
    if rate <= 500:
        return Followed(rate, 1.0, 0, 0, lost=0, events_lost=0, dropped=0, core=75.0)
    return Followed(rate / 2, 0.5, -1, -1, lost=1, events_lost=1, dropped=1, core=110.0)


def held(tunnels: int) -> Held:
    return Held(
        set_up=tunnels / 300, two_subflows=tunnels, shown=tunnels, ended=0, idle=WINDOW,
        busy=replace(WINDOW, throttler=0.2), reload=tunnels / 7500, released=0.9, silence=0.07, lag=0.03, command=0.3,
        answer=0.2, alone=REACTIONS, beside=replace(REACTIONS, p99=6.0),
        asked=replace(REACTIONS, joined=100, in_mid_transfer=25, capped=100), resident=140.0, stop=0.8, left=(),
        lag_alone=0.02, lag_beside=0.025, trickled_beside=1.0, connect_alone=0.004, connect_beside=0.005,
        scrape=0.3, slowest_scrape=1.0, console=70.0,
    )  # fmt: skip


def sound(turn: Turn[Any]) -> Any:
    cell = turn.cell
    if isinstance(cell, JoinsCell):
        return REACTIONS
    if isinstance(cell, RateCell):
        return followed(cell.rate)
    if isinstance(cell, EntriesCell):
        # The machine is slower in each second round.
        return Carried(1e10 / (1 + turn.number % 2), 0.0 if turn.variant == "nothing" else 1.0)
    return held(cell.tunnels) if isinstance(cell, HeldCell) else Kept(0.97, 0.99)


def changed(measured: Any, change: Mapping[str, Any]) -> Any:
    """Return *measured* with *change*, in which a dictionary changes fields of a field."""
    there = {
        name: changed(getattr(measured, name), value) if isinstance(value, dict) else value
        for name, value in change.items()
    }
    return replace(measured, **there)


def loaded(part: type | None = None, missing: bool = False, **change: Any) -> Callable[[], Sequence[Aim]]:
    """Judge a result in which the cells of *part* are changed, or *missing*."""

    def measure(turn: Turn[Any]) -> Any:
        if part is None or not isinstance(turn.cell, part):
            return sound(turn)
        return None if missing else changed(sound(turn), change)

    return lambda: SCENARIO.aims(rehearsed(SCENARIO, OPTIONS, measure))


def joins(**change: Any) -> Callable[[], Sequence[Aim]]:
    return loaded(JoinsCell, **change)


def rate(**change: Any) -> Callable[[], Sequence[Aim]]:
    return loaded(RateCell, **change)


def tunnels(**change: Any) -> Callable[[], Sequence[Aim]]:
    return loaded(HeldCell, **change)


def entries(goodput: Callable[[int], float], *variants: str) -> Callable[[], Sequence[Aim]]:
    """Judge transfers of which those of *variants* have *goodput* of what is sound, by round."""

    def measure(turn: Turn[Any]) -> Any:
        there = sound(turn)
        if turn.variant in variants:
            return replace(there, goodput=there.goodput * goodput(turn.number))
        return there

    return lambda: SCENARIO.aims(rehearsed(SCENARIO, OPTIONS, measure))


NO_REACTION = Reactions.of(())
LOAD = Judge(
    loaded(),
    {
        "nothing measured": lambda: SCENARIO.aims(rehearsed(SCENARIO, OPTIONS, lambda turn: None)),
        "joins: a dead throttler never caps": joins(capped=0, median=math.inf, p99=math.inf, greatest=math.inf),
        "joins: one is not capped": joins(capped=199),
        "joins: one was not joined": joins(joined=199),
        "joins: one was capped before": joins(capped_before=1, capped=199),
        "joins: some wait": joins(p99=5.1),
        "joins: none joined in mid-transfer": joins(in_mid_transfer=0),
        "rate: dead throttler": rate(opened_less_made=-9_000, activated_less_made=-18_000, lost=9_000, core=0.0),
        "rate: the client is too slow": rate(rate=489.0),
        "rate: some connections have no join": rate(joins=0.979),
        "rate: a connection was missed": rate(opened_less_made=-1),
        "rate: a connection was invented": rate(opened_less_made=1),
        "rate: a subflow was missed": rate(activated_less_made=-1),
        "rate: a subflow was invented": rate(activated_less_made=1),
        "rate: an entry stayed": rate(lost=1),
        "rate: there were entries of nobody": rate(lost=-1),
        "rate: an event was lost": rate(events_lost=1),
        "rate: a segment was dropped": rate(dropped=1),
        "rate: more than a core": rate(core=101.0),
        "entries: they slow it down": entries(lambda number: 0.94, "1,000 entries", "50,000 entries"),
        "entries: noise hides what they do": entries(lambda n: 0.6 + 0.8 * (n % 2), "1,000 entries", "50,000 entries"),
        "entries: a quarter bypasses the class": loaded(EntriesCell, through=0.75),
        "entries: the class counts more than the device": loaded(EntriesCell, through=1.36),
        "held: the throttler died": tunnels(
            shown=0, reload=math.inf, released=math.inf, silence=math.inf, lag=math.nan, command=math.inf,
            answer=math.inf, beside=NO_REACTION, asked=NO_REACTION, resident=math.nan, stop=math.inf,
            lag_alone=math.inf, lag_beside=math.inf, idle={"throttler": math.nan}, busy={"throttler": math.nan},
        ),
        "held: the cap comes late": tunnels(reload=5.1),
        "held: caps are never lifted": tunnels(released=math.inf),
        "held: no join is capped": tunnels(beside=NO_REACTION, asked=NO_REACTION),
        "held: one join is not capped": tunnels(beside={"capped": 199}, alone={"capped": 199}, asked={"capped": 99}),
        "held: joins wait": tunnels(beside={"p99": 8.1}, asked={"p99": 8.1}),
        "held: joins wait with none held": tunnels(alone={"p99": 5.1}),
        "held: status lacks a connection": tunnels(shown=999),
        "held: status takes too long": tunnels(command=0.6, answer=0.6, silence=0.6),
        "held: the event loop stands": tunnels(lag=0.051, lag_alone=0.051),
        "held: the loop's gauge stands": tunnels(lag=0.0, lag_alone=0.0, lag_beside=0.0),
        "held: too busy": tunnels(busy={"throttler": 0.26}, idle={"throttler": 0.06}),
        "held: no second subflow": tunnels(two_subflows=0),
        "held: the crowd is slow": tunnels(set_up=91.0),
        "held: the tunnels do not trickle": tunnels(
            idle={"trickled": 0.5}, busy={"trickled": 0.5}, trickled_beside=0.5
        ),
        "held: a tunnel ends": tunnels(ended=1),
        "held: too much memory": tunnels(resident=151.0, console=101.0),
        "held: no memory": tunnels(resident=0.0, console=0.0),
        "held: it ends late": tunnels(stop=3.1),
        "held: something is left": tunnels(left=("tc",)),
        "held: the console delays the loop": tunnels(lag_beside=0.031),
        "held: the console delays the proxy": tunnels(connect_beside=0.01),
        "held: scrapes are slow": tunnels(scrape=0.6, slowest_scrape=2.1),
        "soft: the other path slows down": loaded(SoftCell, kept=0.9),
        "soft: the cap never comes": loaded(SoftCell, capped=20.0),
        "held: reloads take longer than in proportion": lambda: SCENARIO.aims(
            rehearsed(
                SCENARIO, OPTIONS,
                lambda turn: replace(sound(turn), reload=1.3 if turn.cell.tunnels == MANY else 0.1)
                if isinstance(turn.cell, HeldCell) else sound(turn),
            )
        ),
    },
)  # fmt: skip
