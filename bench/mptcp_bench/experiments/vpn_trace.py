# SPDX-License-Identifier: GPL-2.0-or-later
"""Figure 8 of "Multipath Transport for Virtual Private Networks": the first 0.3 s of a download.

tcpdump captures the download on the web server, behind the VPN server. Each VPN is freshly started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.transfer import Added

from .. import style
from ..statistics import of_median
from ..wire.capture import captured
from ..wire.packets import SYN, Packet
from .aims import aims_table
from .attempts import Attempts
from .findings import Findings, Picture
from .mimbox_bed import claims_table, drawn
from .options import count
from .tables import mean, new_table
from .vpn_bed import NEEDS, Bed, built, carried, controlled, downloaded
from .vpn_cells import WAYS, Cell, Condition, Point, Points, cells
from .vpn_judging import sound, trace_claims

TITLE = "Figure 8: the begin of a download, RTT 40 ms"
AT = Condition(40, 40)
SHOWN = 0.3
"""Seconds of the download that are shown."""
STEP = 0.01
SECONDS = 2.0
"""Seconds of a download. It is longer than what is shown, so that fixed shares of both paths can be checked."""
RUNS, QUICK_RUNS = 8, 2
CELLS = cells(("mptcp", "50/50", "tunnel"), ("cubic",), ("cubic", "bbr"))
OPTIONS = {"runs": f"rounds, default {RUNS}"}
PORT = 80


@dataclass(frozen=True, slots=True)
class Trace:
    """The begin of a download: bytes sent and acknowledged, every STEP seconds since the client's SYN arrived."""

    cell: Cell
    round: int
    sent: tuple[int, ...]
    acknowledged: tuple[int, ...]


def trace(cell: Cell, number: int, packets: Sequence[Packet]) -> Trace:
    """Return the begin of the longest connection in *packets*. Raises TestbedError if its begin is missing."""
    carried_by: dict[int, int] = {}
    for packet in packets:
        if packet.source_port == PORT:
            port = packet.destination_port
            carried_by[port] = carried_by.get(port, 0) + packet.length
    port = max(carried_by, key=carried_by.__getitem__, default=0)
    own = sorted((p for p in packets if port in (p.source_port, p.destination_port)), key=lambda p: p.time)
    synchronised = {p.source_port == PORT: p for p in reversed(own) if p.flags & SYN}
    if synchronised.keys() != {True, False}:
        raise TestbedError(f"{cell}: the capture has no begin of a download")
    began, first = synchronised[False].time, synchronised[True].sequence + 1
    sent, acknowledged = [], []
    for step in range(round(SHOWN / STEP) + 1):
        until = [p for p in own if p.time <= began + step * STEP * 1e9 and not p.flags & SYN]
        sent.append(max((_since(first, p.sequence) + p.length for p in until if p.source_port == PORT), default=0))
        acknowledged.append(max((_since(first, p.acknowledgment) for p in until if p.source_port == port), default=0))
    return Trace(cell, number, tuple(sent), tuple(acknowledged))


def _since(first: int, number: int) -> int:
    """Return the distance from *first* to *number* in sequence number arithmetic (RFC 9293, 3.4)."""
    return (number - first) % (1 << 32)


def _measured(bed: Bed, cell: Cell, number: int) -> tuple[Trace, Point]:
    added = Added(bed.client, bed.server)
    controlled(bed.testbed["origin"], cell.inner)
    with (
        carried(bed, cell.way, cell.outer),
        captured(bed.testbed["origin"], ["eth0"], f"tcp port {PORT}") as packets,
    ):
        point = downloaded(bed, cell, AT, number, SECONDS, added, warm=0)
    return trace(cell, number, packets), point


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Measure several rounds, with the cells in a drawn order."""
    need(*NEEDS, "tcpdump")
    runs = count(options, "runs", QUICK_RUNS if quick else RUNS)
    attempts, draw = Attempts(console), Random(seed)
    traces: list[Trace] = []
    points: list[Point] = []
    for number in range(runs):
        with attempts.keeping(f"round {number + 1}", traces), built(AT, seed + number) as bed:
            for cell in draw.sample(CELLS, len(CELLS)):
                name = f"round {number + 1}, {cell}"

                def once(bed: Bed = bed, cell: Cell = cell, number: int = number) -> tuple[Trace, Point]:
                    return _measured(bed, cell, number)

                if (found := attempts.of(once, name, check=bed.testbed.check_emulation)) is not None:
                    traces.append(found[0])
                    points.append(found[1])
                    shown = f"{found[0].acknowledged[-1] / 1e3:.0f} kB acknowledged after {SHOWN} s"
                    console.print(f"{name}: {shown}", style="dim", highlight=False)
    claims = trace_claims(Points(points), {(t.cell, t.round): t.acknowledged[-1] for t in traces})
    aims = sound(Points(points), [(cell, AT) for cell in CELLS], runs)
    head = ("way", "outside", "sent", "acknowledged")
    table = new_table(f"Begin: kB after {SHOWN} s", head, head[:2])
    for cell in CELLS:
        own = [t for t in traces if t.cell == cell]
        row = ([t.sent[-1] for t in own], [t.acknowledged[-1] for t in own])
        table.add_row(WAYS[cell.way].title, cell.outer, *(mean(each, 1e-3, 0) if each else "" for each in row))
    data = {"traces": [asdict(t) for t in traces], "points": [asdict(p) for p in points]}
    pictures = (Picture("vpn-fig8", lambda target: draw_traces(target, traces)),) if traces else ()
    return attempts.judged(
        Findings(
            (claims_table(TITLE, claims), table, aims_table(TITLE, aims)), data, pictures=pictures, aims=tuple(aims)
        )
    )


LOOKS = {"mptcp": style.ETHERNET.color, "50/50": style.WIFI.color, "tunnel": style.THIRD}


def draw_traces(target: Path, traces: Sequence[Trace]) -> None:
    """Draw, for each cell, the run with the median of the bytes that were acknowledged at the end."""

    def panel(axes: Any) -> None:
        for cell in CELLS:
            if own := [t for t in traces if t.cell == cell]:
                one = of_median(own, lambda t: t.acknowledged[-1])
                label = WAYS[cell.way].title + (f", {cell.outer} outside" if cell.outer else "")
                times = [1e3 * STEP * step for step in range(len(one.acknowledged))]
                dashed = style.DASHED if cell.outer == "cubic" else "-"
                kilobytes = [octets / 1e3 for octets in one.acknowledged]
                axes.plot(times, kilobytes, color=LOOKS[cell.way], linestyle=dashed, label=label)
                axes.plot(times, [octets / 1e3 for octets in one.sent], color=LOOKS[cell.way], linewidth=0.6)
        style.dress(axes, "ms since the SYN at the web server", "kB acknowledged; thin: sent")

    drawn(target, TITLE, "of each the run with the median of what was acknowledged", [panel])
