# SPDX-License-Identifier: GPL-2.0-or-later
"""Figure 8 of "Multipath Transport for Virtual Private Networks": the first 0.3 s of a download.

As in the paper, a packet trace of the web server, reached through the VPN server, shows the sequence numbers that the
server sent and the client acknowledged. Each VPN is freshly started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.transfer import Added

from .. import style
from ..statistics import of_median
from ..wire.capture import SYN, Packet, captured
from .columns import CELL, RUNS, VARIANT, Column, Table, Turn, for_pictures
from .drawing import draw_panels
from .findings import Picture
from .scenario import Scenario
from .vpn_bed import NEEDS, Bed, download, running_vpn, set_control
from .vpn_cells import CONTROLS, VPNS, Condition, Point
from .vpn_figures import figure, line_format
from .vpn_judging import VpnResults

NAME, TITLE = "vpn-fig8", "Figure 8: the start of a download"
SHOWN_SECONDS, STEP_SECONDS = 0.3, 0.01
DOWNLOAD_SECONDS = 2.0
"""Length of a download, in which fixed shares of both paths can be checked."""
PORT = 80


@dataclass(frozen=True, slots=True)
class Start(Point):
    """A download, and its bytes at the end of the shown part and at each step from the client's SYN on."""

    sent: int = 0
    acknowledged: int = 0
    """At least one byte, because the claim is about a ratio."""
    sent_by_step: tuple[int, ...] = for_pictures()
    acknowledged_by_step: tuple[int, ...] = for_pictures()


def start_of(packets: Sequence[Packet]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes that the longest connection's server had sent, and its client acknowledged, by each step.

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


def measure(bed: Bed, turn: Turn[Condition]) -> dict[str, Start]:
    [control] = turn.cell.inner
    origin, vpn, counters = bed.testbed["origin"], VPNS[turn.variant], Added(bed.client, bed.server)
    set_control(origin, control)
    with running_vpn(bed, vpn), captured(origin, ["eth0"], f"tcp port {PORT}") as packets:
        point = download(bed, vpn, counters, 0)
    sent, acknowledged = start_of(packets)
    return {control: Start(**asdict(point), sent=sent[-1], acknowledged=max(1, acknowledged[-1]), sent_by_step=sent,
                           acknowledged_by_step=acknowledged)}  # fmt: skip


def pictures(results: VpnResults) -> list[Picture]:
    """Draw, for each VPN, the run with the median of the acknowledged bytes."""

    def panel(cell: Condition, axes: Any) -> None:
        for label in dict.fromkeys(run.turn.variant for run in results.runs):
            if not (starts := results.of(cell, label, *cell.inner)):
                continue
            start = of_median(starts, lambda each: each.acknowledged)
            times = [1e3 * STEP_SECONDS * step for step in range(len(start.sent_by_step))]
            look = line_format(VPNS[label])
            axes.plot(times, [octets / 1e3 for octets in start.acknowledged_by_step], label=label, **look)
            axes.plot(times, [octets / 1e3 for octets in start.sent_by_step], linewidth=0.6, **look)
        axes.set_title(str(cell))
        style.dress(axes, "ms since the SYN at the web server", "kB acknowledged; thin: sent")

    subtitle = "for each VPN the run with the median of the acknowledged bytes"
    panels = [partial(panel, cell) for cell in results.cells]
    return [Picture(NAME, lambda target: draw_panels(target, TITLE, subtitle, panels))] if results.runs else []


START: Table[Condition, Start] = Table(
    f"Start: kB after {SHOWN_SECONDS} s",
    (RUNS, Column("sent", "sent", scale=1e-3, digits=0), Column("acknowledged", "acknowledged", scale=1e-3, digits=0)),
    (CELL, VARIANT),
)
SCENARIO: Scenario[Any, Condition, Bed, Start] = replace(
    figure(NAME, TITLE, ways=("mptcp", "50/50", "tunnel"), outer=CONTROLS, delays="40", quick="40", losses=("0",),
           seconds=DOWNLOAD_SECONDS, runs=(8, 2)),
    needs=(*NEEDS, "tcpdump"),
    measure=measure,
    tables=(START,),
    pictures=pictures,
)  # fmt: skip
