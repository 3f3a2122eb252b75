# SPDX-License-Identifier: GPL-2.0-or-later
"""Figure 8 of "Multipath Transport for Virtual Private Networks": the first 0.3 s of a download.

tcpdump captures the download on the web server, behind the VPN server. Each VPN is freshly started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.transfer import Added

from .. import style
from ..statistics import of_median
from ..wire.capture import captured
from ..wire.packets import SYN, Packet
from .claims import Claims
from .columns import RUNS, VARIANT, Column, Table, Turn, for_pictures
from .drawing import drawn
from .findings import Picture
from .parameters import parameter, whole
from .scenario import Scenario
from .vpn_bed import NEEDS, Bed, built, carried, controlled, downloaded
from .vpn_cells import CONTROLS, VPNS, Condition, Point, vpns
from .vpn_figures import LOOKS
from .vpn_judging import TRACE, Found, unlike, verdicts

TITLE = "Figure 8: the begin of a download, RTT 40 ms"
AT = Condition(40, 40)
SHOWN = 0.3
"""Seconds of the download that are shown."""
STEP = 0.01
SECONDS = 2.0
"""Seconds of a download. It is longer than the shown part, so that fixed shares of both paths can be checked."""
WAYS = vpns(("mptcp", "50/50", "tunnel"), CONTROLS)
PORT = 80


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``."""

    runs: int = parameter("rounds", "8", whole(), quick="2")


@dataclass(frozen=True, slots=True)
class Begin(Point):
    """The start of a download: bytes after ``SHOWN``, and after every ``STEP`` since the client's SYN arrived."""

    sent: int = 0
    acknowledged: int = 0
    sent_by_step: tuple[int, ...] = for_pictures()
    acknowledged_by_step: tuple[int, ...] = for_pictures()


def begin(packets: Sequence[Packet]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes sent and acknowledged by each step of the longest connection. Raises TestbedError."""
    carried_by: dict[int, int] = {}
    for packet in packets:
        if packet.source_port == PORT:
            port = packet.destination_port
            carried_by[port] = carried_by.get(port, 0) + packet.length
    port = max(carried_by, key=carried_by.__getitem__, default=0)
    own = sorted((p for p in packets if port in (p.source_port, p.destination_port)), key=lambda p: p.time)
    synchronised = {p.source_port == PORT: p for p in reversed(own) if p.flags & SYN}
    if synchronised.keys() != {True, False}:
        raise TestbedError("the capture has no begin of a download")
    began, first = synchronised[False].time, synchronised[True].sequence + 1
    sent, acknowledged = [], []
    for step in range(round(SHOWN / STEP) + 1):
        until = [p for p in own if p.time <= began + step * STEP * 1e9 and not p.flags & SYN]
        sent.append(max((_since(first, p.sequence) + p.length for p in until if p.source_port == PORT), default=0))
        acknowledged.append(max((_since(first, p.acknowledgment) for p in until if p.source_port == port), default=0))
    return tuple(sent), tuple(acknowledged)


def _since(first: int, number: int) -> int:
    """Return the distance from *first* to *number* in sequence number arithmetic (RFC 9293, 3.4)."""
    return (number - first) % (1 << 32)


def measure(bed: Bed, turn: Turn[Condition]) -> dict[str, Begin]:
    [control] = turn.cell.inner
    added = Added(bed.client, bed.server)
    controlled(bed.testbed["origin"], control)
    with (
        carried(bed, VPNS[turn.variant]),
        captured(bed.testbed["origin"], ["eth0"], f"tcp port {PORT}") as packets,
    ):
        point = downloaded(bed, added, warm=0)
    if (why := unlike(VPNS[turn.variant], point)) is not None:
        raise TestbedError(why)
    sent, acknowledged = begin(packets)
    # Count at least one byte, because the claim is about a ratio.
    return {control: Begin(**asdict(point), sent=sent[-1], acknowledged=max(1, acknowledged[-1]), sent_by_step=sent,
                           acknowledged_by_step=acknowledged)}  # fmt: skip


def pictures(results: Found) -> list[Picture]:
    """Draw, for each VPN, the run with the median of the bytes that are acknowledged at the end."""

    def panel(axes: Any) -> None:
        for label, vpn in WAYS.items():
            if own := results.of(AT, label, *AT.inner):
                one = of_median(own, lambda each: each.acknowledged)
                times = [1e3 * STEP * step for step in range(len(one.acknowledged_by_step))]
                dashed = style.DASHED if vpn.outer == "cubic" else "-"
                kilobytes = [octets / 1e3 for octets in one.acknowledged_by_step]
                axes.plot(times, kilobytes, color=LOOKS[vpn.way], linestyle=dashed, label=label)
                axes.plot(times, [octets / 1e3 for octets in one.sent_by_step], color=LOOKS[vpn.way], linewidth=0.6)
        style.dress(axes, "ms since the SYN at the web server", "kB acknowledged; thin: sent")

    subtitle = "of each the run with the median of what was acknowledged"
    return [Picture("vpn-fig8", lambda target: drawn(target, TITLE, subtitle, [panel]))] if results.runs else []


BEGIN: Table[Condition, Begin] = Table(
    f"Begin: kB after {SHOWN} s",
    (RUNS, Column("sent", "sent", scale=1e-3, digits=0), Column("acknowledged", "acknowledged", scale=1e-3, digits=0)),
    (VARIANT,),
)
SCENARIO = Scenario(
    settings=Settings,
    needs=(*NEEDS, "tcpdump"),
    cells=lambda chosen: [AT],
    parts=lambda at: at.inner,
    variants=lambda chosen, at: list(WAYS),
    drawn=True,
    bed=lambda chosen, cells, seed: built(AT.paths, seed, SECONDS),
    measure=measure,
    tables=(Claims(TITLE, (), claims=lambda results: list(TRACE.claims(results))), BEGIN),
    counted=lambda row: "",
    verdicts=verdicts,
    pictures=pictures,
)
