# SPDX-License-Identifier: GPL-2.0-or-later
"""The experiments ``vpn-fig…``: figures of "Multipath Transport for Virtual Private Networks", and our tunnel in each.

Each figure is described by data: the VPNs, the paths, the number of rounds. For each condition a testbed is built. In
each round, each VPN is started once, in random order, and carries one download per inner congestion control.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import make_dataclass
from functools import partial
from typing import Any

from .. import style
from ..statistics import median
from .columns import CELL, RUNS, Column, Table
from .findings import Picture
from .parameters import number, parameter, several, whole, words
from .scenario import Scenario
from .vpn_bed import NEEDS, Bed, measure, vpn_bed
from .vpn_cells import CONTROLS, LOSSES, RATE, VPNS, WAYS, Condition, Point, Vpn, vpns
from .vpn_judging import VpnResults, conditions, values, verdicts

MAX_DELAY = 2000
"""Maximum of the option: RTT in milliseconds, or multiple of the primary path's RTT."""
PRIMARY_RTT = 20.0
"""RTT of the primary path in milliseconds if the paths differ (the paper's Table 2)."""


def line_format(vpn: Vpn) -> dict[str, Any]:
    """Return colour and line style of *vpn* in a picture: a colour for each protocol, a line style for each split."""
    way = WAYS[vpn.way]
    colours = {"tcp": style.MUTED, "udp": style.MUTED, "mptcp": style.ETHERNET.color, "ports": style.FOURTH}
    colour = style.THIRD if way.ours else colours.get(vpn.way, style.WIFI.color)
    dashed = vpn.outer == "cubic" or vpn.way == "udp" or way.share == 0.25
    return {"color": colour, "linestyle": style.DASHED if dashed else style.DOTTED if way.share == 0.1 else "-"}


def _delay(text: str) -> float:
    value = number()(text)
    if value > MAX_DELAY:
        raise ValueError(f"allowed are numbers up to {MAX_DELAY}")
    return value


def figure(
    name: str,
    title: str,
    *,
    ways: Sequence[str],
    delays: str,
    quick: str,
    losses: Sequence[str],
    quick_losses: Sequence[str] = (),
    ratio: bool = False,
    inner: Iterable[str] = ("cubic",),
    outer: Iterable[str] = ("cubic",),
    seconds: float = 8.0,
    runs: tuple[int, int] = (3, 1),
) -> Scenario[Any, Condition, Bed, Any]:
    """Return the experiment that repeats a figure.

    Its option *delays* has the RTT of both paths in ms or, if *ratio*, the secondary path's RTT as a multiple of the
    primary path's RTT. *quick* and *quick_losses* are the delays and losses of a quick run; *runs* has the number of
    rounds, and that of a quick run.
    """
    varied = "ratio" if ratio else "rtt"
    axis = f"secondary RTT, × the primary's {PRIMARY_RTT:g} ms" if ratio else "RTT of both paths, ms"
    loss = f"packet loss in each direction, %: a list of {', '.join(LOSSES)} (ge: bursts)"
    Settings = make_dataclass(
        "Settings",
        [
            (varied, Any, parameter(axis, delays, several(_delay), quick=quick)),
            ("loss", Any, parameter(loss, ",".join(losses), words(*LOSSES), quick=",".join(quick_losses) or None)),
            ("outer", Any, parameter("congestion controls of the VPN's connection", ",".join(outer), words(*CONTROLS))),
            ("runs", int, parameter("number of rounds", str(runs[0]), whole(), quick=str(runs[1]))),
            ("seconds", float, parameter("time limit of a download of 16 MB, seconds", f"{seconds:g}", number())),
        ],
        frozen=True,
    )

    def cells(chosen: Any) -> list[Condition]:
        pairs = [(PRIMARY_RTT, PRIMARY_RTT * each) if ratio else (each, each) for each in getattr(chosen, varied)]
        return [Condition(first, second, loss, tuple(inner)) for loss in chosen.loss for first, second in pairs]

    return Scenario(
        settings=Settings,
        needs=NEEDS,
        cells=cells,
        parts=lambda at: at.inner,
        variants=lambda chosen, at: list(vpns(ways, chosen.outer)),
        shuffled=True,
        bed=lambda chosen, cells, seed: vpn_bed(cells[0].paths, seed, chosen.seconds),
        measure=measure,
        tables=(GOODPUT,),
        verdicts=partial(verdicts, name),
        pictures=partial(pictures, name, title),
    )


GOODPUT: Table[Condition, Point] = Table(
    "Goodput",
    (
        RUNS,
        Column("Mbit/s", "goodput", scale=1e-6, digits=1),
        Column("by the second path %", "second", scale=100, digits=0),
    ),
    (CELL, ("way", lambda row: row.variant), ("inside", lambda row: row.part)),
)


def pictures(name: str, title: str, results: VpnResults) -> list[Picture]:
    """Draw a panel for each loss and each congestion control inside."""
    panels = [
        partial(_panel, results, loss, inner)
        for inner in dict.fromkeys(run.part for run in results.runs)
        for loss in dict.fromkeys(at.loss for at in conditions(results))
    ]
    subtitle = "goodput of a download through the VPN, over the second path's RTT"
    return [Picture(name, lambda target: style.draw_panels(target, title, subtitle, panels))] if panels else []


def _panel(results: VpnResults, loss: str, inner: str, axes: Any) -> None:
    """Draw the median of each VPN over the RTT."""
    cells = sorted((at for at in conditions(results) if at.loss == loss), key=lambda at: at.second)
    for label in dict.fromkeys(run.turn.variant for run in results.runs if run.part == inner):
        measured = {at.second: values(results, VPNS[label], inner, at) for at in cells}
        line = {rtt: median([*rounds.values()]) / 1e6 for rtt, rounds in measured.items() if rounds}
        axes.plot(list(line), list(line.values()), marker="o", markersize=4, label=label, **line_format(VPNS[label]))
    axes.set_ylim(0, 2 * RATE / 1e6)
    axes.set_title(f"{inner} inside, loss {loss}", fontsize=10, color=style.MUTED)
    style.dress(axes, "RTT of the second path, ms", "Mbit/s")


COMPARED = ("udp", "mptcp", "50/50", "tunnel")
FIG3 = figure(
    "vpn-fig3", "Figure 3: two congestion controls outside, loss 0.1 %",
    ways=("tcp", "mptcp", "ports", "tunnel"), outer=CONTROLS, delays="20,60,100", quick="20,100", losses=("0.1",),
)  # fmt: skip
FIG4 = figure(
    "vpn-fig4", "Figure 4: Multipath TCP beside TCP, loss 1 %",
    ways=("tcp", "mptcp", "ports", "tunnel"), delays="20,60,100", quick="20,100", losses=("1", "ge1"),
    quick_losses=("1",),
)  # fmt: skip
FIG5 = figure(
    "vpn-fig5", "Figure 5: Multipath TCP over paths whose delays differ",
    ways=("mptcp", "tunnel"), ratio=True, delays="1,3,5", quick="1,5", losses=("ge1", "ge3", "ge7"),
    quick_losses=("ge1",),
)  # fmt: skip
FIG6 = figure(
    "vpn-fig6", "Figure 6: UDP beside TCP, one path",
    ways=("tcp", "udp", "tunnel"), delays="20,100", quick="20", losses=("0", "0.1", "1", "3"), quick_losses=("0", "1"),
)  # fmt: skip
FIG7 = figure(
    "vpn-fig7", "Figure 7: Multipath UDP beside Multipath TCP, no loss",
    ways=COMPARED, inner=CONTROLS, outer=CONTROLS, delays="20,60,100", quick="20,100", losses=("0",),
)  # fmt: skip
FIG9 = figure(
    "vpn-fig9", "Figure 9: Multipath UDP beside Multipath TCP, with losses",
    ways=COMPARED, inner=CONTROLS, outer=CONTROLS, delays="40", quick="40", losses=("0", "1", "ge3"),
    quick_losses=("0", "1"),
)  # fmt: skip
FIG10 = figure(
    "vpn-fig10", "Figure 10: Multipath UDP, delays that differ",
    ways=("mptcp", "50/50", "tunnel"), inner=CONTROLS, outer=("bbr",), ratio=True, delays="1,3,5", quick="1,5",
    losses=("ge1", "ge7"), quick_losses=("ge1",), seconds=5.5,
)  # fmt: skip
FIG11 = figure(
    "vpn-fig11", "Figure 11: less by the longer path",
    ways=("mptcp", "50/50", "75/25", "90/10", "weights 75/25", "weights 90/10", "tunnel"), inner=CONTROLS,
    outer=("bbr",), ratio=True, delays="5", quick="5", losses=("0", "ge1"), quick_losses=("0",),
)  # fmt: skip
