# SPDX-License-Identifier: GPL-2.0-or-later
"""How long the converter delays SYN, SYN+ACK and data, as in Table 1 of "Multipath in the Middle(Box)".

Requests follow one another, each on its own connection. tcpdump records packets on both sides of the router or the
proxy, with one clock. An answer of 1000 bytes is one data segment, which need not wait for others. A proxy in user
space learns of a connection when the client's handshake is complete, and ours connects only when it has the request.
The delay of the SYN includes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from random import Random

from rich.console import Console

from mptcp_lab.agent import processors
from mptcp_lab.testbed import TestbedError, lab_of
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.services import mptcp_command

from ..statistics import fmean, median
from ..wire.capture import captured
from ..wire.packets import ACK, SYN, Packet
from ..wire.streams import Leg, follow
from ..wire.workload import Workload, measure
from .aims import aims_table
from .attempts import Attempts
from .findings import Findings
from .mimbox_bed import NEEDS, built, claims_table
from .mimbox_judging import ROUTER, delay_aims, delay_claims
from .mimbox_points import FEWEST, Delays
from .options import count
from .peers import PORT
from .relay_bed import MULTIPATH_PORT, Bed
from .relay_cells import DIRECT, LIMIT, OURS, Cell
from .relay_judging import machine, spread
from .tables import new_table

OPTIONS = {"runs": f"rounds, default {FEWEST}"}
REQUESTS = Workload("delay", 100, 1000)
FILE = f"{REQUESTS.down}.bin"
CELLS = (ROUTER, Cell(LIMIT, "mptcp2"), Cell(OURS, "mptcp2"), Cell(OURS, "tcp"))
TITLE = "MiMBox's Table 1: delay of a segment"


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Measure every proxy and the router, in an order drawn for each round."""
    need(*NEEDS, "curl", "tcpdump")
    runs = count(options, "runs", 1 if quick else FEWEST)
    found: list[Delays] = []
    attempts = Attempts(console)
    draw = Random(seed)
    before = processors.read()
    files = {FILE: REQUESTS.down}
    with built(seed, files, 0.0) as bed:
        for number in range(runs):
            for cell in draw.sample(CELLS, len(CELLS)):
                once = partial(delays_of, bed, cell, number)
                each = attempts.of(once, f"round {number + 1}, {cell}", check=bed.testbed.check_emulation)
                if each is not None:
                    micro = ", ".join(
                        f"{name} {getattr(each, name) * 1e6:.1f} µs" for name in ("syn", "answer", "data")
                    )
                    console.print(f"round {number + 1}, {cell}: {micro}", style="dim", highlight=False)
                    found.append(each)
    usage = processors.usage(before, processors.read())
    claims = delay_claims(found)
    aims = (*delay_aims(found, CELLS, runs), *(claim.aim for claim in claims), *machine(usage))
    table = new_table(
        "Delays: µs, median of the rounds' medians", ("", "client", "SYN", "SYN+ACK", "data"), ("", "client")
    )
    for cell in CELLS:
        there = [each for each in found if each.cell == cell]
        if there:
            values = (
                spread([getattr(each, name) * 1e6 for each in there], 1, Random(seed))
                for name in ("syn", "answer", "data")
            )
            table.add_row("router" if cell.proxy == DIRECT else cell.proxy, cell.client, *values)
    data = {"delays": [asdict(each) | {"cell": str(each.cell)} for each in found]}
    shown = aims_table(f"{TITLE}, {runs} rounds", aims)
    return attempts.judged(Findings((claims_table(TITLE, claims), table, shown), data, aims=aims))


def delays_of(bed: Bed, cell: Cell, number: int) -> Delays:
    """Measure the delays of *cell*. Raises TestbedError if its connections had the wrong protocol."""
    return (_routed if cell.proxy == DIRECT else _proxied)(bed, cell, number)


def _proxied(bed: Bed, cell: Cell, number: int) -> Delays:
    """Measure a proxy, by captures. They give the same intervals as for Table 1 of the other paper."""
    lab, multipath = lab_of(bed.testbed), cell.client != "tcp"
    with bed.running(cell, "server_persistent_connections off\n"):
        url = f"http://{lab.proxy.service_address()}:{PORT}"
        there = measure(lab, url, bed.web, REQUESTS, multipath=multipath).exchanges
    return Delays(
        cell, number, len(there), median([e.syn_whole for e in there]), median([e.answer for e in there]),
        median([value for e in there for value in e.down]), fmean(e.subflows for e in there),
    )  # fmt: skip


def _routed(bed: Bed, cell: Cell, number: int) -> Delays:
    """Measure the router between the client and a server that accepts MPTCP, which is the paper's baseline."""
    core, client = bed.testbed["core"], bed.testbed["client"]
    url = f"http://{bed.origin}:{MULTIPATH_PORT}/{FILE}?[1-{REQUESTS.requests}]"
    argv = ["curl", "-sS", "-f", "-o", "/dev/null", "--noproxy", "*", "--rate", f"{REQUESTS.pace}/s"]
    with captured(core, ("to-eth0", "to-wlan0", "to-origin"), f"tcp port {MULTIPATH_PORT}") as packets:
        client.run(mptcp_command([*argv, "-H", "Connection: close", url]), timeout=60)
    return routed(cell, number, packets)


def routed(cell: Cell, number: int, packets: Sequence[Packet]) -> Delays:
    """Return the delays of *packets*, captured on both sides of the router. Raises TestbedError for plain TCP."""
    leg = Leg(MULTIPATH_PORT)
    follow(packets, leg)
    plain = [each for each in leg.connections if not each.multipath]
    if plain:
        raise TestbedError(f"{cell}: {len(plain)} of {len(leg.connections)} connections were plain TCP")
    passed = passages(packets)
    syn = [seconds for packet, seconds in passed if packet.flags & (SYN | ACK) == SYN]
    answer = [seconds for packet, seconds in passed if packet.flags & (SYN | ACK) == SYN | ACK]
    data = [seconds for packet, seconds in passed if packet.length and packet.source_port == MULTIPATH_PORT]
    if not (syn and answer and data):
        raise TestbedError(f"{cell}: {len(syn)} SYNs, {len(answer)} SYN+ACKs and {len(data)} segments were routed")
    return Delays(
        cell, number, len(leg.connections), median(syn), median(answer), median(data),
        fmean(each.subflows for each in leg.connections),
    )  # fmt: skip


def passages(packets: Iterable[Packet]) -> list[tuple[Packet, float]]:
    """Return each segment that was captured on both sides, with the seconds between."""
    seen: dict[tuple[object, ...], Packet] = {}
    found = []
    for packet in sorted(packets, key=lambda packet: packet.time):
        key = (packet.source, packet.source_port, packet.destination, packet.destination_port, packet.flags,
               packet.sequence, packet.acknowledgment, packet.length)  # fmt: skip
        first = seen.pop(key, None)
        if first is None:
            seen[key] = packet
        else:
            found.append((packet, (packet.time - first.time) * 1e-9))
    return found
