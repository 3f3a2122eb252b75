# SPDX-License-Identifier: GPL-2.0-or-later
"""What passes beyond a cap: our throttler beside a poller of counters and a static class, for a client's transfers.

The transfers use the real proxy, over Ethernet (50 Mbit/s, capped at 5) and Wi-Fi (20). In each variant, a client that
the throttler has never seen makes a transfer of 42 s, and then one of 12 s. The variants alternate, three times each:
no policy; our cap; our budget, which is used up when the transfer begins; a static class for the client's address on
Ethernet, set before the transfer; and a poller, like quota tools on routers. Every 30 s the poller reads the counter of
the interface towards the client. At the first reading that finds a megabyte, it sets the same class. The poller's phase
is drawn from the seed, once from each part of its period; its mean overshoot over all phases is computed from these. By
default, 15 times 54 s of transfers take a quarter of an hour, including pauses.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mptcp_common.units import parse_rate
from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.services import PROXY_PORT, mptcp_command
from mptcp_lab.testbed.transfer import Added
from mptcp_throttler.policy.model import Throttle
from mptcp_throttler.shaping.model import class_spec

from .. import style
from . import pages_cells
from .aims import aims_table
from .attempts import Attempts
from .devices import DEVICES
from .findings import Findings, Picture
from .options import choice, count, positive, refused
from .overshoot_judging import PERIOD, TRANSFERS, UNCAPPED, Measured, Rates, aims, expected, first_packet, judge
from .overshoot_poller import Poller
from .pages_bed import Bed, IpRecorder, static_class
from .pages_judging import Octets
from .tables import mean, new_table
from .two_paths import two_paths

VARIANTS = ("none", "ours", "budget", "static", "poller")
OURS = ("ours", "budget")
RATES, RTTS = (50, 20), (20, 20)
"""Rates in Mbit/s and RTTs in ms of Ethernet and Wi-Fi."""
OPTIONS = {
    "variant": f"which of {', '.join(VARIANTS)}, default all",
    "runs": "of each variant but the poller, 2 or more, default 3",
    "phases": "of the poller, which runs once with each, default 3",
    "cap": f"Mbit/s, no more than {RATES[0] / UNCAPPED:.1f}, default 5",
    "seconds": "of a first transfer, default 42",
}
SECONDS, REPEATED = 42.0, 12.0
RUNS, QUICK_RUNS = 3, 2
PHASES, QUICK_PHASES = 3, 1
SOONEST = 1.0
"""Earliest reading of the poller, in seconds after the first packet."""
FIRST_WINDOW = 10 * 1500
"""Bytes that TCP sends before the first ACK (RFC 6928)."""
CAPPED, OTHER = DEVICES
TITLES = {
    "none": "no policy", "ours": "ours", "budget": "ours, a used-up budget", "static": "static class",
    "poller": "poller",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One planned run of a variant. A poller also has its *phase* in seconds."""

    variant: str
    phase: float | None = None

    def __str__(self) -> str:
        return self.variant if self.phase is None else f"{self.variant}, reading after {self.phase:.1f} s"


def plan(options: Mapping[str, str], seed: int, quick: bool) -> tuple[list[PlannedRun], float, float]:
    """Return runs, cap in Mbit/s and seconds that *options* choose. Raises OptionError for an invalid option."""
    variants = choice(options, "variant", VARIANTS)
    phases = count(options, "phases", QUICK_PHASES if quick else PHASES)
    # At least two runs, because means of one run cannot be compared.
    runs = count(options, "runs", QUICK_RUNS if quick else RUNS, least=2)
    cap, seconds = positive(options, "cap", 5), positive(options, "seconds", SECONDS, above=PERIOD + REPEATED / 2)
    try:
        # Let the policy's own parser check the cap.
        parse_rate(f"{cap:g} Mbit/s")
    except ValueError:
        raise refused(OPTIONS) from None
    if UNCAPPED * cap > RATES[0]:
        raise refused(OPTIONS)
    draw = random.Random(seed)
    # The first reading must not come before the transfer has carried the megabyte that it looks for.
    parts = [max(SOONEST, PERIOD * (number + draw.random()) / phases) for number in range(phases)]
    each: dict[str, list[float | None]] = {v: [*parts] if v == "poller" else [None] * runs for v in variants}
    turns = range(max(map(len, each.values())))
    return [PlannedRun(v, each[v][turn]) for turn in turns for v in variants if turn < len(each[v])], cap, seconds


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Run what *options* choose, one transfer after the other, in two testbeds that exist at the same time."""
    planned, cap, seconds = plan(options, seed, quick)
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "curl", "mptcpize", "ss")
    topology = paths(two_paths(RATES, RTTS))
    measured: list[Measured] = []
    attempts = Attempts(console)
    with Testbed(topology, seed=seed) as plain, Testbed(topology, seed=seed) as throttled:
        size = round(sum(RATES) * 1e6 / 8 * (seconds + 5))
        work = Work(Bed.built(plain, [size]), Bed.built(throttled, [size]), size, cap, seconds)
        for one in planned:
            console.print(str(one), style="dim", highlight=False)
            check = work.bed(one).testbed.check_emulation
            measured += attempts.of(partial(work.measure, one), str(one), check=check) or []
    asked = aims(measured, work.rates, Counter(one.variant for one in planned))
    data = {
        "transfers": [
            {"variant": m.variant, "transfer": m.transfer, "phase": m.phase, **asdict(m.outcome)} for m in measured
        ],
        "expected": expected([m for m in measured if m.variant == "poller"]),
    }
    pictures = (Picture("overshoot", lambda target: draw(target, measured, work.rates)),) if measured else ()
    tables = (table_of(measured, work.rates), aims_table("Overshoot", asked))
    return attempts.judged(Findings(tables, data, pictures=pictures, aims=tuple(asked)))


@dataclass(frozen=True, slots=True)
class Work:
    """Both testbeds, and a file of *size* bytes, which takes longer than *seconds* to transfer. *cap* is in Mbit/s."""

    plain: Bed
    throttled: Bed
    size: int
    cap: float
    seconds: float

    @property
    def rates(self) -> Rates:
        rate = round(self.cap * 1_000_000)
        burst = class_spec(1, Throttle(rate=rate)).burst
        return Rates(rate, RATES[0] * 1_000_000, RATES[1] * 1_000_000, burst + FIRST_WINDOW)

    def bed(self, one: PlannedRun) -> Bed:
        return self.throttled if one.variant in OURS else self.plain

    def measure(self, one: PlannedRun) -> list[Measured]:
        """Return a new client's two transfers. Raises TestbedError or ValueError if one did not use both paths."""
        policy = "budget" if one.variant == "budget" else "cap"
        [cell] = pages_cells.cells({"at_once": "1", "cap": f"{self.cap:g}", "policy": policy})
        bed = self.bed(one)
        bed.wait_until_quiet()
        if one.variant in OURS:
            bed.start_throttler(cell)
        with bed.set_up(cell, one.variant), self._poller(bed, cell, one) as poller:
            found = [self._transfer(bed, one, TRANSFERS[0], self.seconds, poller)]
            bed.wait_until_quiet()
            found.append(self._transfer(bed, one, TRANSFERS[1], REPEATED, None))
        return found

    @contextmanager
    def _poller(self, bed: Bed, cell: pages_cells.Cell, one: PlannedRun) -> Iterator[Poller | None]:
        """Yield a poller that has not started, or None without one. Remove its class at the end."""
        if one.phase is None:
            yield None
            return
        class_, gone = static_class(cell)
        proxy, router = bed.testbed["proxy"], bed.testbed["hop1"]
        poller = Poller(
            lambda: router.interface_bytes("lan").sent, lambda: proxy.run(class_), one.phase, PERIOD
        )  # fmt: skip
        try:
            yield poller
        finally:
            poller.stop()
            if poller.capped_at is not None:
                proxy.run(gone)

    def _transfer(self, bed: Bed, one: PlannedRun, transfer: str, seconds: float, poller: Poller | None) -> Measured:
        added = Added(bed.client, bed.testbed["proxy"])
        url = bed.origin.url(str(self.size))
        proxy = f"http://{bed.proxy_address}:{PROXY_PORT}"
        argv = ["curl", "-s", "-m", f"{seconds + 30:g}", "-o", "/dev/null", "-x", proxy, url]
        with IpRecorder(bed.client, DEVICES) as recorder, bed.client.running(mptcp_command(argv)) as process:
            while recorder.samples[-1].octets[CAPPED] - recorder.samples[0].octets[CAPPED] < FIRST_WINDOW:
                if not process.running or recorder.now > seconds:
                    raise TestbedError(f"nothing came over {CAPPED}{process.tail()}")
                time.sleep(0.01)
            begin = first_packet(recorder.samples, CAPPED)
            if poller is not None:
                poller.start(recorder.started + begin)
            time.sleep(max(0.0, begin + seconds - recorder.now))
            end = recorder.now
            if not process.running:
                raise TestbedError(f"the transfer ended with {process.returncode} before its time{process.tail()}")
        bed.known = True
        # Check the paths first: if they were not as asked, a later failure is not the product's fault.
        bed.testbed.check_emulation()
        complaint = Protocol.of(*added.read()).complaint(multipath=True)
        if complaint is not None:
            raise TestbedError(complaint)
        until = None if poller is None or poller.capped_at is None else poller.capped_at - recorder.started
        outcome = judge(recorder.samples, CAPPED, OTHER, self.rates.cap, end, until)
        return Measured(one.variant, transfer, one.phase, outcome, begin, recorder.samples)


def table_of(measured: Sequence[Measured], over: Rates) -> Table:
    """Return the table of what passed beyond the cap: mean rates, worst overshoot, a poller's expected overshoot."""
    columns = ("variant", "transfer", "n", "× cap", "beyond cap × time, kB", "in seconds of the cap")
    table = new_table("What passes beyond a cap", (*columns, "above the cap, s", "other, Mbit/s"), left=columns[:2])
    order = {each: number for number, each in enumerate(VARIANTS)}
    alike = dict.fromkeys((m.variant, m.phase, m.transfer) for m in measured)
    for variant, phase, transfer in sorted(alike, key=lambda each: (order[each[0]], each[1] or 0, each[2])):
        name = TITLES[variant] + (f", reading after {phase:.1f} s" if phase is not None else "")
        there = [m.outcome for m in measured if (m.variant, m.phase, m.transfer) == (variant, phase, transfer)]
        worst, above = max(each.ahead for each in there), max(each.above for each in there)
        table.add_row(
            name, f"{transfer}, {there[0].seconds:.0f} s", str(len(there)), mean([each.mean for each in there]),
            f"{worst / 1e3:,.0f}", f"{8 * worst / over.cap:.2f}",
            f"{above:.1f}" if above < there[0].seconds else "never below",
            mean([each.other for each in there], 1e-6, 1),
        )  # fmt: skip
    pollers = [m for m in measured if m.variant == "poller" and m.transfer == TRANSFERS[0]]
    if pollers:
        octets = expected(pollers)
        table.add_row(
            "poller, mean over all phases", "first, computed", "", "", f"{octets / 1e3:,.0f}",
            f"{8 * octets / over.cap:.2f}",
            f"{PERIOD / 2:.1f}", "",
        )  # fmt: skip
    return table


def draw(target: Path, measured: Sequence[Measured], over: Rates) -> None:
    """Draw the bytes that the capped path carried in each first transfer, and what the cap allows."""
    figure = style.new_figure(11, 4.6)
    axes = figure.subplots(1, 1)
    figure.subplots_adjust(left=0.065, right=0.79, top=0.82, bottom=0.13)
    # Draw the first line widest, so that overlapping lines stay visible.
    looks = {
        "none": (style.MUTED, 2.0), "ours": (style.ETHERNET.color, 6.0), "budget": (style.THIRD, 3.5),
        "static": (style.FOURTH, 1.5), "poller": (style.WIFI.color, 2.0),
    }  # fmt: skip
    longest = 0.0
    named: set[str] = set()
    for m in (m for m in measured if m.transfer == TRANSFERS[0]):
        total = Octets(m.samples, CAPPED)
        times = [step / 5 for step in range(int(m.outcome.seconds * 5))]
        longest = max(longest, m.outcome.seconds)
        brought = [(total(m.begin + time) - total(m.begin)) / 1e6 for time in times]
        colour, width = looks[m.variant]
        name = TITLES[m.variant] if m.variant not in named else None
        named.add(m.variant)
        axes.plot(times, brought, color=colour, linewidth=width, label=name, zorder=3)
    axes.plot([0, longest], [0, over.cap / 8e6 * longest], color=style.INK, linestyle=style.DASHED, label="cap × time")
    axes.set_xlim(0, longest)
    axes.set_ylim(bottom=0)
    style.dress(axes, "seconds since the first packet", "MB over Ethernet")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    heading = f"Ethernet {RATES[0]} Mbit/s, capped at {over.cap / 1e6:g}; first transfers of a client"
    style.heading(figure, "What passes beyond a cap", heading, left=0.065)
    style.save(figure, target)
