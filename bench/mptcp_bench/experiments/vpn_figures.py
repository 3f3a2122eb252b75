# SPDX-License-Identifier: GPL-2.0-or-later
"""The experiments ``vpn-…``: figures and Table 1 of "Multipath Transport for Virtual Private Networks", and our tunnel.

Each figure is described by data: the VPNs, the paths, the number of rounds. Each condition has its own testbed. In each
round, each VPN is started once, in random order, and carries one download per inner congestion control.

For Figure 8, as in the paper, a packet trace of the web server shows the sequence numbers that the server sent and the
client acknowledged. Each VPN is freshly started.

For Table 1, the paper's Gilbert-Elliott losses are measured. The paper's loss rates are those of pings, which cross a
path twice. In one direction, half as many packets are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, make_dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.crossing import missing_numbers, packet_delays
from mptcp_lab.testbed.transfer import Added

from .. import style
from ..statistics import median, median_item
from ..wire.capture import SYN, Packet, capture_segments
from .claims import Claim
from .columns import CELL, RUNS, VARIANT, Column, Results, Table, Turn, columns_of, figure, for_pictures
from .findings import Picture
from .parameters import number, parameter, several, whole, words
from .scenario import Scenario
from .vpn_bed import NEEDS, Bed, download, measure, running_vpn, set_control, vpn_bed
from .vpn_cells import CONTROLS, GOOD_LOSS, LOSSES, RATE, VPNS, WAYS, Condition, Point, Vpn, loss_of, vpns
from .vpn_judging import VpnResults, conditions, values, verdicts

MAX_DELAY = 1000
"""Maximum RTT in milliseconds, or multiple of the primary path's RTT."""
PRIMARY_RTT = 20.0
"""RTT of the primary path in milliseconds if the paths differ (the paper's Table 2)."""
FIG8_TITLE = "Figure 8: the start of a download"
SHOWN_SECONDS, STEP_SECONDS = 0.3, 0.01
PACKETS = 10_000
"""Number of packets per round and direction, which is that of the paper's pings."""
FAST_RATE = 100_000_000
"""Rate of the paths of Table 1 in bits/s. It is so high that a shaper drops no packets."""
MAX_DIFFERENCE = 0.5
"""Maximum difference from a rate of the paper in percentage points, because the paper rounds its rates to whole
percent."""
DOWNLOAD_SECONDS = 2.0
"""Length of a download, in which fixed shares of both paths can be checked."""
PORT = 80


def line_format(vpn: Vpn) -> dict[str, Any]:
    """Return colour and line style of *vpn* in a picture. The colour shows the protocol."""
    way = WAYS[vpn.way]
    colours = {"tcp": style.MUTED, "udp": style.MUTED, "mptcp": style.ETHERNET.color, "ports": style.FOURTH}
    colour = style.THIRD if way.ours else colours.get(vpn.way, style.WIFI.color)
    dashed = vpn.outer == "cubic" or vpn.way == "udp" or way.share == 0.25
    return {"color": colour, "linestyle": style.DASHED if dashed else style.DOTTED if way.share == 0.1 else "-"}


def vpn_scenario(
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

    *delays* has the RTTs of both paths in ms or, if *ratio*, the secondary path's RTTs as multiples of the primary
    path's RTT. *quick* and *quick_losses* have the delays and losses of a quick run. *runs* has the number of rounds,
    and that of a quick run.
    """
    varied = "ratio" if ratio else "rtt"
    axis = f"secondary RTT, × the primary's {PRIMARY_RTT:g} ms" if ratio else "RTT of both paths, ms"
    loss = f"packet loss in each direction, %: a list of {', '.join(LOSSES)} (ge: bursts)"
    Settings = make_dataclass(
        "Settings",
        [
            (varied, Any, parameter(axis, delays, several(whole(1, MAX_DELAY)), quick=quick)),
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
        parts=lambda cell: cell.inner,
        variants=lambda chosen, cell: list(vpns(ways, chosen.outer)),
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
    """Return a picture with a panel for each loss and each inner congestion control."""
    panels = [
        partial(_panel, results, loss, inner)
        for inner in dict.fromkeys(run.part for run in results.runs)
        for loss in dict.fromkeys(cell.loss for cell in conditions(results))
    ]
    subtitle = "goodput of a download through the VPN, over the second path's RTT"
    return [Picture(name, lambda target: style.draw_panels(target, title, subtitle, panels))] if panels else []


def _panel(results: VpnResults, loss: str, inner: str, axes: Any) -> None:
    """Draw the median goodput of each VPN over the RTT."""
    cells = sorted((cell for cell in conditions(results) if cell.loss == loss), key=lambda cell: cell.second)
    for label in dict.fromkeys(run.turn.variant for run in results.runs if run.part == inner):
        measured = {cell.second: values(results, VPNS[label], inner, cell) for cell in cells}
        line = {rtt: median([*rounds.values()]) / 1e6 for rtt, rounds in measured.items() if rounds}
        axes.plot(list(line), list(line.values()), marker="o", markersize=4, label=label, **line_format(VPNS[label]))
    axes.set_ylim(0, 2 * RATE / 1e6)
    axes.set_title(f"{inner} inside, loss {loss}", fontsize=10, color=style.MUTED)
    style.label_axes(axes, "RTT of the second path, ms", "Mbit/s")


COMPARED = ("udp", "mptcp", "50/50", "tunnel")
FIG3 = vpn_scenario(
    "vpn-fig3", "Figure 3: two congestion controls outside, loss 0.1 %",
    ways=("tcp", "mptcp", "ports", "tunnel"), outer=CONTROLS, delays="20,60,100", quick="20,100", losses=("0.1",),
)  # fmt: skip
FIG4 = vpn_scenario(
    "vpn-fig4", "Figure 4: Multipath TCP beside TCP, loss 1 %",
    ways=("tcp", "mptcp", "ports", "tunnel"), delays="20,60,100", quick="20,100", losses=("1", "ge1"),
    quick_losses=("1",),
)  # fmt: skip
FIG5 = vpn_scenario(
    "vpn-fig5", "Figure 5: Multipath TCP over paths whose delays differ",
    ways=("mptcp", "tunnel"), ratio=True, delays="1,3,5", quick="1,5", losses=("ge1", "ge3", "ge7"),
    quick_losses=("ge1",),
)  # fmt: skip
FIG6 = vpn_scenario(
    "vpn-fig6", "Figure 6: UDP beside TCP, one path",
    ways=("tcp", "udp", "tunnel"), delays="20,100", quick="20", losses=("0", "0.1", "1", "3"), quick_losses=("0", "1"),
)  # fmt: skip
FIG7 = vpn_scenario(
    "vpn-fig7", "Figure 7: Multipath UDP beside Multipath TCP, no loss",
    ways=COMPARED, inner=CONTROLS, outer=CONTROLS, delays="20,60,100", quick="20,100", losses=("0",),
)  # fmt: skip
FIG9 = vpn_scenario(
    "vpn-fig9", "Figure 9: Multipath UDP beside Multipath TCP, with losses",
    ways=COMPARED, inner=CONTROLS, outer=CONTROLS, delays="40", quick="40", losses=("0", "1", "ge3"),
    quick_losses=("0", "1"),
)  # fmt: skip
FIG10 = vpn_scenario(
    "vpn-fig10", "Figure 10: Multipath UDP, delays that differ",
    ways=("mptcp", "50/50", "tunnel"), inner=CONTROLS, outer=("bbr",), ratio=True, delays="1,3,5", quick="1,5",
    losses=("ge1", "ge7"), quick_losses=("ge1",), seconds=5.5,
)  # fmt: skip
FIG11 = vpn_scenario(
    "vpn-fig11", "Figure 11: less by the longer path",
    ways=("mptcp", "50/50", "75/25", "90/10", "weights 75/25", "weights 90/10", "tunnel"), inner=CONTROLS,
    outer=("bbr",), ratio=True, delays="5", quick="5", losses=("0", "ge1"), quick_losses=("0",),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Start(Point):
    """A download, and its bytes ``SHOWN_SECONDS`` after the client's SYN, and after each step until then."""

    sent: int = 0
    acknowledged: int = 0
    """At least one byte, because the claim is about a ratio."""
    sent_by_step: tuple[int, ...] = for_pictures()
    acknowledged_by_step: tuple[int, ...] = for_pictures()


def start_of(packets: Sequence[Packet]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes sent by the server, and acknowledged by the client, of the longest connection after each step.

    Raises TestbedError if the connection's start is missing.
    """
    octets: dict[int, int] = {}
    for packet in packets:
        if packet.source_port == PORT:
            octets[packet.destination_port] = octets.get(packet.destination_port, 0) + packet.length
    client = max(octets, key=octets.__getitem__, default=0)
    download = sorted((p for p in packets if client in (p.source_port, p.destination_port)), key=lambda p: p.time)
    syns = {p.source_port: p for p in reversed(download) if p.flags & SYN}
    if syns.keys() != {client, PORT}:
        raise TestbedError("the capture has no start of a download")
    first = syns[PORT].sequence + 1
    sent, acknowledged = [], []
    for step in range(round(SHOWN_SECONDS / STEP_SECONDS) + 1):
        until = syns[client].time + step * STEP_SECONDS * 1e9
        earlier = [p for p in download if p.time <= until and not p.flags & SYN]
        ends = [_distance(first, p.sequence) + p.length for p in earlier if p.source_port == PORT]
        sent.append(max(ends, default=0))
        received = [_distance(first, p.acknowledgment) for p in earlier if p.source_port == client]
        acknowledged.append(max(received, default=0))
    return tuple(sent), tuple(acknowledged)


def _distance(first: int, number: int) -> int:
    """Return the distance from *first* to *number* in sequence number arithmetic (RFC 9293, 3.4)."""
    return (number - first) % (1 << 32)


def measure_start(bed: Bed, turn: Turn[Condition]) -> dict[str, Start]:
    [control] = turn.cell.inner
    origin, vpn, counters = bed.testbed["origin"], VPNS[turn.variant], Added(bed.client, bed.server)
    set_control(origin, control)
    with running_vpn(bed, vpn), capture_segments(origin, ["eth0"], f"tcp port {PORT}") as packets:
        point = download(bed, vpn, counters, 0)
    sent, acknowledged = start_of(packets)
    return {control: Start(**asdict(point), sent=sent[-1], acknowledged=max(1, acknowledged[-1]), sent_by_step=sent,
                           acknowledged_by_step=acknowledged)}  # fmt: skip


def start_pictures(results: VpnResults) -> list[Picture]:
    """Return a picture with, for each VPN, the run that has the median of the acknowledged bytes."""

    def panel(cell: Condition, axes: Any) -> None:
        for label in dict.fromkeys(run.turn.variant for run in results.runs):
            if not (starts := results.of(cell, label, *cell.inner)):
                continue
            start = median_item(starts, lambda each: each.acknowledged)
            times = [1e3 * STEP_SECONDS * step for step in range(len(start.sent_by_step))]
            lines = line_format(VPNS[label])
            axes.plot(times, [octets / 1e3 for octets in start.acknowledged_by_step], label=label, **lines)
            axes.plot(times, [octets / 1e3 for octets in start.sent_by_step], linewidth=0.6, **lines)
        axes.set_title(str(cell))
        style.label_axes(axes, "ms since the SYN at the web server", "kB acknowledged; thin: sent")

    subtitle = "for each VPN the run with the median of the acknowledged bytes"
    panels = [partial(panel, cell) for cell in results.cells]
    picture = Picture("vpn-fig8", lambda target: style.draw_panels(target, FIG8_TITLE, subtitle, panels))
    return [picture] if results.runs else []


FIG8: Scenario[Any, Condition, Bed, Start] = replace(
    vpn_scenario(
        "vpn-fig8", FIG8_TITLE, ways=("mptcp", "50/50", "tunnel"), outer=CONTROLS, delays="40", quick="40",
        losses=("0",), seconds=DOWNLOAD_SECONDS, runs=(8, 2),
    ),
    needs=(*NEEDS, "tcpdump"),
    measure=measure_start,
    tables=(
        Table(
            f"Start: kB after {SHOWN_SECONDS} s",
            (RUNS, *(Column(name, name, scale=1e-3, digits=0) for name in ("sent", "acknowledged"))), (CELL, VARIANT),
        ),
    ),
    pictures=start_pictures,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LossSettings:
    runs: int = parameter(f"rounds of {PACKETS:,} packets", "10", whole(), quick="2")


@dataclass(frozen=True, slots=True)
class Lost:
    """The losses of one path, as shares."""

    pings: float = figure("of pings, %", scale=100)
    """Share of lost packets if each crosses the path in both directions, like a ping."""
    short: float = figure("bursts of one or two, %", scale=100)
    """Share of bursts with only one or two packets."""


def losses_bed(chosen: LossSettings, cells: Sequence[str], seed: int) -> Testbed:
    """Return a testbed with a path for each kind of loss."""
    directions = {loss: Direction(FAST_RATE, 500, loss=loss_of(loss)) for loss in GOOD_LOSS}
    return Testbed(paths([EmulatedPath(loss, each, each) for loss, each in directions.items()]), seed=seed)


def measure_losses(testbed: Testbed, turn: Turn[str]) -> dict[str, Lost]:
    """Send packets in both directions over the path of each loss, and return the losses."""
    losses = {}
    for hop in testbed.topology.hops:
        arrived = [packet_delays(testbed, way, PACKETS, hop.client_device) for way in ("down", "up")]
        both = [missing_numbers(numbers, PACKETS) for numbers in arrived]
        down, up = (len(numbers) / PACKETS for numbers in both)
        lengths = [length for numbers in both for length in bursts(numbers)]
        short = sum(length <= 2 for length in lengths) / max(1, len(lengths))
        losses[hop.path.name] = Lost(1 - (1 - down) * (1 - up), short)
    return losses


def bursts(numbers: Sequence[int]) -> list[int]:
    """Return the lengths of the sequences of consecutive *numbers*, which ascend."""
    sequences = np.split(np.array(numbers), np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [len(sequence) for sequence in sequences if len(sequence)]


def loss_claims(results: Results[str, Lost]) -> list[Claim]:
    """Return the claims of Table 1."""
    found = []
    for loss, good in GOOD_LOSS.items():
        measured, percent = results.of("losses", part=loss), float(loss.removeprefix("ge"))
        pings, short = ([100 * getattr(each, name) for each in measured] for name in ("pings", "short"))
        low, high = percent - MAX_DIFFERENCE, percent + MAX_DIFFERENCE
        paper = f"With 1 - k of {good:.1%} the observed loss rate is {percent:g} %."
        found.append(Claim(paper, f"lost of pings, {loss}", tuple(pings), " %", low, high, by="mean"))
        paper = "Most of the bursts (more than 90 %) have no more than two packets."
        found.append(Claim(paper, f"bursts of one or two, {loss}", tuple(short), " %", least=90, by="mean"))
    return found


TABLE1: Scenario[LossSettings, str, Testbed, Lost] = Scenario(
    settings=LossSettings,
    needs=("root", "namespaces", "veth", "tbf"),
    cells=lambda chosen: ["losses"],
    parts=lambda cell: list(GOOD_LOSS),
    bed=losses_bed,
    measure=measure_losses,
    tables=(
        Table(
            "Table 1: losses in bursts, as pings observe them",
            (RUNS, *columns_of(Lost)),
            (("1 - k", lambda row: f"{GOOD_LOSS[row.part]:.1%}"), ("the paper", lambda row: f"{row.part[2:]} %")),
        ),
    ),
    verdicts=lambda results: (claim.judged for claim in loss_claims(results)),
)
