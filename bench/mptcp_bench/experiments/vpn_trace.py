# SPDX-License-Identifier: GPL-2.0-or-later
"""Figure 8 of "Multipath Transport for Virtual Private Networks": the first 0.3 s of a download.

tcpdump captures the download on the web server, beyond the VPN server. Each VPN is freshly started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
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
from .vpn_bed import NEEDS, Bed, download, running_vpn, set_control, vpn_bed
from .vpn_cells import CONTROLS, VPNS, Condition, Point, vpns
from .vpn_figures import look_of
from .vpn_judging import Found, claims_of, verdicts

TITLE = "Figure 8: the begin of a download, RTT 40 ms"
CELL = Condition(40, 40)
SHOWN_SECONDS, STEP_SECONDS = 0.3, 0.01
DOWNLOAD_SECONDS = 2.0
"""Length of a download. It is longer than the shown part, so that fixed shares of both paths can be checked."""
WAYS = vpns(("mptcp", "50/50", "tunnel"), CONTROLS)
PORT = 80


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``."""

    runs: int = parameter("rounds", "8", whole(), quick="2")


@dataclass(frozen=True, slots=True)
class Begin(Point):
    """The start of a download: acknowledged bytes after ``SHOWN_SECONDS``, and after each step since the SYN."""

    acknowledged: int = 0
    by_step: tuple[int, ...] = for_pictures()


def acknowledged(packets: Sequence[Packet]) -> tuple[int, ...]:
    """Return the bytes of the longest connection that were acknowledged by each step. Raises TestbedError."""
    octets: Counter[int] = Counter()
    for packet in packets:
        if packet.source_port == PORT:
            octets[packet.destination_port] += packet.length
    port = max(octets, key=lambda each: octets[each], default=0)
    # Of several SYNs, the first counts.
    syns = {p.source_port: p for p in sorted(packets, key=lambda p: -p.time) if p.flags & SYN and port in _ports(p)}
    if syns.keys() != {PORT, port}:
        raise TestbedError("the capture has no begin of a download")
    first = syns[PORT].sequence + 1
    # Sequence numbers wrap around (RFC 9293, 3.4).
    acks = [
        ((p.time - syns[port].time) * 1e-9, (p.acknowledgment - first) % (1 << 32))
        for p in packets
        if p.source_port == port and not p.flags & SYN
    ]
    steps = [step * STEP_SECONDS for step in range(round(SHOWN_SECONDS / STEP_SECONDS) + 1)]
    return tuple(max((number for time, number in acks if time <= step), default=0) for step in steps)


def _ports(packet: Packet) -> tuple[int, int]:
    return packet.source_port, packet.destination_port


def measure(bed: Bed, turn: Turn[Condition]) -> dict[str, Begin]:
    [control] = turn.cell.inner
    vpn, origin, counters = VPNS[turn.variant], bed.testbed["origin"], Added(bed.client, bed.server)
    set_control(origin, control)
    with running_vpn(bed, vpn), captured(origin, ["eth0"], f"tcp port {PORT}") as packets:
        point = download(bed, vpn, counters, warm_up=0)
    steps = acknowledged(packets)
    # Count at least one byte, because the claim is about a ratio.
    return {control: Begin(**asdict(point), acknowledged=max(1, steps[-1]), by_step=steps)}


def pictures(results: Found) -> list[Picture]:
    """Draw, for each VPN, the run with the median of the bytes that are acknowledged at the end."""

    def panel(axes: Any) -> None:
        for label, vpn in WAYS.items():
            if measured := results.of(CELL, label, *CELL.inner):
                steps = of_median(measured, lambda each: each.acknowledged).by_step
                times = [1e3 * STEP_SECONDS * step for step in range(len(steps))]
                axes.plot(times, [octets / 1e3 for octets in steps], label=label, **look_of(vpn))
        style.dress(axes, "ms since the SYN at the web server", "kB acknowledged")

    subtitle = "of each VPN the run with the median of the acknowledged bytes"
    return [Picture("vpn-fig8", lambda target: drawn(target, TITLE, subtitle, [panel]))] if results.runs else []


BEGIN: Table[Condition, Begin] = Table(
    f"Begin: kB after {SHOWN_SECONDS} s",
    (RUNS, Column("acknowledged", "acknowledged", scale=1e-3, digits=0)),
    (VARIANT,),
)
SCENARIO = Scenario(
    settings=Settings,
    needs=(*NEEDS, "tcpdump"),
    cells=lambda chosen: [CELL],
    parts=lambda cell: cell.inner,
    variants=lambda chosen, cell: list(WAYS),
    drawn=True,
    bed=lambda chosen, cells, seed: vpn_bed(CELL.paths, seed, DOWNLOAD_SECONDS),
    measure=measure,
    tables=(Claims(TITLE, (), claims=partial(claims_of, "vpn-fig8")), BEGIN),
    verdicts=verdicts,
    pictures=pictures,
)
