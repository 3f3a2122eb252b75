# SPDX-License-Identifier: GPL-2.0-or-later
"""Steering modes on real downloads: what each path carries if the policy names a mode.

*active-standby*: Wi-Fi is active, Ethernet standby; for a while Wi-Fi's router drops all packets. *priority-based*:
Wi-Fi is first; for a while the origin sends less than Wi-Fi could carry. *load-balancing*: 70/30 and 50/50; and 60/40
and 85/15 while the origin sends less than the paths could carry. *smallest-delay*: compared with a policy without
rules. Rates count what arrives at the client.

Two further parts measure outages of one path in each mode (``experiments.steering_outages``), and how much data goes
over the later path in the priority-based mode (``experiments.steering_overflow``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import product
from pathlib import Path

from rich.console import Console

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.recorder import Recorder, rates

from .. import style
from . import steering_cells, steering_outages, steering_overflow
from .attempts import Attempts
from .devices import DEVICES
from .drawing import both_paths, mark, stacked
from .findings import Findings, Picture
from .options import choice, count, listed, refused, rtts
from .setup import Setup
from .steering_modes_judging import AFTER, ETHERNET, EVENT, PACED, SLOW_ORIGIN, WARM, WIFI, Measured, aims, table_of
from .two_paths import slow_origin, two_paths, wifi_dropping

RTTS = ("20/20", "60/20")
"""RTTs of Ethernet and Wi-Fi in milliseconds."""
RUNS, QUICK_RUNS = 5, 1
OPTIONS = {
    "rtt": f"in modes: RTTs in ms, Ethernet/Wi-Fi, default {','.join(RTTS)}",
    "runs": f"of each, default {RUNS}",
    "kind": "in modes: which, separated by |, default all",
    **steering_cells.OPTIONS,
    **steering_overflow.OPTIONS,
}


KINDS: dict[str, tuple[str | None, Callable[[Testbed], AbstractContextManager[None]] | None]] = {
    "active-standby": ("{mode: active-standby, active: wifi, standby: ethernet}", wifi_dropping),
    "priority-based": (
        "{mode: priority-based, order: [wifi, ethernet]}",
        lambda testbed: slow_origin(testbed, SLOW_ORIGIN),
    ),
    "load-balancing 70/30": ("{mode: load-balancing, weights: {ethernet: 70, wifi: 30}}", None),
    "load-balancing 50/50": ("{mode: load-balancing, weights: {ethernet: 50, wifi: 50}}", None),
    "load-balancing 60/40, paced": ("{mode: load-balancing, weights: {ethernet: 60, wifi: 40}}", None),
    "load-balancing 85/15, paced": ("{mode: load-balancing, weights: {ethernet: 85, wifi: 15}}", None),
    "smallest-delay": ("{mode: smallest-delay}", None),
    "no rule": (None, None),
}
"""For each kind of download its steering rule, and the event in mid-transfer; None if it has none."""
QUICK_KINDS = ("active-standby", "priority-based", "load-balancing 70/30", "load-balancing 60/40, paced")


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Run the parts that *options* choose: the modes at each RTT, the outages, and the overflow."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize")
    runs = count(options, "runs", QUICK_RUNS if quick else RUNS)
    kinds = choice(options, "kind", KINDS, QUICK_KINDS if quick else None, by="|")
    parts, cells = choice(options, "part", steering_cells.PARTS), steering_cells.cells(options, quick)
    try:
        each = {rtt: rtts(rtt) for rtt in listed(options, "rtt", RTTS[0] if quick else ",".join(RTTS))}
    except ValueError:
        raise refused(OPTIONS) from None
    found: list[Findings] = []
    attempts = Attempts(console)
    if "modes" in parts:
        found.append(_modes(console, seed, runs, each, kinds, attempts))
    if "outages" in parts:
        found.append(steering_outages.run(console, seed, cells, runs, attempts))
    if "overflow" in parts:
        overflowing = {**(steering_overflow.QUICK if quick else {}), **options}
        found.append(steering_overflow.run(console, seed, overflowing, runs, attempts))
    together = Findings(
        tuple(table for each in found for table in each.tables),
        {name: value for each in found for name, value in each.data.items()},
        tuple(failure for each in found for failure in each.failures),
        tuple(picture for each in found for picture in each.pictures),
        tuple(aim for each in found for aim in each.aims),
    )
    return attempts.judged(together)


def _modes(
    console: Console,
    seed: int,
    runs: int,
    each: Mapping[str, tuple[float, ...]],
    kinds: Sequence[str],
    attempts: Attempts,
) -> Findings:
    measured: list[Measured] = []
    for rtt, pair in each.items():
        topology = paths(two_paths((ETHERNET, WIFI), pair))
        with attempts.keeping(f"{rtt} ms", measured), Testbed(topology, seed=seed) as testbed:
            setup = Setup.built(testbed, steering_cells.POLICY % "[]")
            for kind, number in product(kinds, range(1, runs + 1)):
                name = f"{rtt} ms, {kind}, {number} of {runs}"
                console.print(name, style="dim", highlight=False)
                one = attempts.of(partial(_checked, setup, rtt, kind), name, check=testbed.check_emulation)
                measured += [one] if one else []
    data = {"runs": [{"rtt": m.rtt, "kind": m.kind, **m.findings()} for m in measured]}
    asked = aims(measured, list(product(each, kinds)), runs)
    return Findings((table_of(measured),), data, pictures=pictures(measured), aims=tuple(asked))


def _checked(setup: Setup, rtt: str, kind: str) -> Measured:
    """Call :func:`measure`, and raise ValueError if it has too few samples."""
    one = measure(setup, rtt, kind)
    one.findings()
    return one


def measure(setup: Setup, rtt: str, kind: str) -> Measured:
    """Download in a mode, with the mode's event. Raises EmulationError if the paths were not as asked."""
    steer, happening = KINDS[kind]
    rules = "[]" if steer is None else f"[{{name: steered, steer: {steer}}}]"
    setup.load_between(steering_cells.POLICY % rules, [] if steer is None else ["steered"])
    paced = slow_origin(setup.testbed, PACED[kind]) if kind in PACED else nullcontext()
    with paced, setup.client.running(setup.download), Recorder(setup.client, DEVICES) as recorder:
        time.sleep(WARM)
        event = recorder.now
        with nullcontext() if happening is None else happening(setup.testbed):
            time.sleep(max(0.0, event + EVENT - recorder.now))
        time.sleep(AFTER)
        samples = recorder.samples
    setup.testbed.check_emulation()
    return Measured(rtt, kind, event, samples)


def pictures(measured: Sequence[Measured]) -> tuple[Picture, ...]:
    """Return the picture of *measured*; empty if it has only downloads without a mode."""
    there = {one.kind for one in measured}
    kinds = [kind for kind in KINDS if kind != "no rule" and kind in there]
    return (Picture("steering", lambda target: draw(target, measured, kinds)),) if kinds else ()


def draw(target: Path, measured: Sequence[Measured], kinds: Sequence[str]) -> None:
    """Draw, for each of *kinds*, its first run at the first RTT."""
    figure, panels = stacked(len(kinds), 2.0)
    for axes, kind in zip(panels, kinds, strict=True):
        with suppress(StopIteration):
            chosen = next(m for m in measured if m.kind == kind and m.rtt == measured[0].rtt)
            both_paths(axes, rates(chosen.samples))
            if KINDS[kind][1] is not None:
                mark(axes, chosen.event, chosen.event + EVENT)
        axes.set_title(kind, loc="left", fontsize=10, color=style.INK)
        style.dress(axes, "seconds" if kind == kinds[-1] else "", "Mbit/s")
    panels[0].legend(loc="upper right", frameon=False)
    heading = (
        f"Ethernet {ETHERNET}, Wi-Fi {WIFI} Mbit/s, RTT {measured[0].rtt} ms; something happens between dashed lines"
    )
    style.heading(figure, "Steering modes", heading, left=0.065)
    style.save(figure, target)
