# SPDX-License-Identifier: GPL-2.0-or-later
"""What passes beyond a cap: our throttler, a poller of counters and a static class, for a client's transfers.

The transfers use the real proxy, over Ethernet (50 Mbit/s, capped at 5) and Wi-Fi (20). In each variant, a client that
the throttler has never seen makes a transfer of 42 s. The variants alternate, three times each: no policy; our cap; our
budget, which is used up when the transfer begins; a static class for the client's address on Ethernet, set before the
transfer; and a poller, like quota tools on routers. Every 30 s the poller reads the counter of the interface towards
the client. At the first reading that shows a megabyte, the poller sets the same class. Its overshoot is proportional to
the time until that reading. The first reading is after half a period, so its overshoot is the mean over all phases.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise

from mptcp_common.units import parse_rate
from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.recorder import Sample
from mptcp_lab.testbed.services import PROXY_PORT, mptcp_command
from mptcp_lab.testbed.transfer import Added
from mptcp_throttler.policy.model import Throttle
from mptcp_throttler.shaping.model import class_spec

from ..statistics import fmean
from .aims import Aim
from .columns import RUNS, Column, Results, Row, Table, Turn, of_cell
from .devices import DEVICES
from .pages_bed import Bed, IpRecorder, static_class
from .pages_judging import Octets
from .parameters import choices, number, parameter, whole
from .scenario import Scenario
from .two_paths import two_paths

TITLES = {
    "none": "no policy", "ours": "ours", "budget": "ours, a used-up budget", "static": "static class",
    "poller": "poller, of the mean phase",
}  # fmt: skip
OURS = ("ours", "budget")
CAPPED_FROM_THE_START = (*OURS, "static")
RATES, RTTS = (50, 20), (20, 20)
"""Rates in Mbit/s and RTTs in ms of Ethernet and Wi-Fi."""
PERIOD = 30.0
"""Seconds between two readings of the poller."""
ALLOWED = 1_000_000
"""Bytes that the poller allows between two readings: so few that the first reading during a transfer sets the cap."""
FIRST_WINDOW = 10 * 1500
"""Bytes that TCP sends before the first ACK (RFC 6928)."""
CAPPED, OTHER = DEVICES
EXCESS = 1.05
"""Maximum of a capped rate, as a multiple of the cap."""
SLOW_START = 3.0
"""Seconds that both paths need to reach their full rate."""
SECONDS = 1.0
"""Maximum lead of a transfer over the cap in seconds of the cap's rate; maximum seconds above the cap; length of the
windows over which a rate is measured, in seconds."""
UNCAPPED = 3.0
"""Minimum rate of the path without a cap, as a multiple of the cap. With a lower rate, the cap would have no effect."""
PACKET = 1500
"""Minimum overshoot in bytes that is assumed for our throttler, because a ratio to zero has no meaning."""


def cap_of(text: str) -> float:
    """Return a cap in Mbit/s that the policy's own parser accepts, and that the uncapped path exceeds."""
    cap = number()(text)
    parse_rate(f"{cap:g} Mbit/s")
    if UNCAPPED * cap > RATES[0]:
        raise ValueError(f"allowed are caps of no more than {RATES[0] / UNCAPPED:.1f} Mbit/s")
    return cap


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``."""

    variant: tuple[str, ...] = choices("what caps Ethernet", TITLES)
    runs: int = parameter("of each variant", "3", whole(), quick="1")
    cap: float = parameter(f"Mbit/s, no more than {RATES[0] / UNCAPPED:.1f}", "5", cap_of)
    seconds: float = parameter("of a transfer", "42", number(PERIOD))


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant, with the value of *cap* in Mbit/s and the duration of its transfers in seconds."""

    variant: str
    cap: float
    seconds: float

    def __str__(self) -> str:
        return self.variant

    @property
    def rate(self) -> int:
        """The cap in bits/s."""
        return round(self.cap * 1_000_000)

    @property
    def burst(self) -> int:
        """Bytes that may pass at once: one burst of a class with the cap's rate, and an initial window."""
        return class_spec(1, Throttle(rate=self.rate)).burst + FIRST_WINDOW


@contextmanager
def built(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Bed]:
    with Testbed(paths(two_paths(RATES, RTTS)), seed=seed) as testbed:
        # The file takes longer than a transfer lasts.
        yield Bed.built(testbed, [round(sum(RATES) * 1e6 / 8 * (chosen.seconds + 5))])


def measure(bed: Bed, turn: Turn[Cell]) -> Outcome:
    """Judge a new client's transfer. Raises TestbedError or ValueError if it did not use both paths."""
    one = turn.cell
    bed.wait_until_quiet()
    if one.variant in OURS:
        throttle = f"throttle: {{rate: {one.cap:g} Mbit/s}}"
        bed.start_throttler(
            throttle if one.variant == "ours" else f"budget: {{period: month, steps: [{{after: 0, {throttle}}}]}}"
        )
    else:
        bed.stop_throttler()
    proxy, router = bed.testbed["proxy"], bed.testbed["hop1"]
    capped = proxy.changed(*static_class(one.cap, 1))
    added, before = Added(bed.client, proxy), router.interface_bytes("lan").sent
    [file] = bed.origin.digests
    through = f"http://{bed.proxy_address}:{PROXY_PORT}"
    argv = ["curl", "-s", "-m", f"{one.seconds + 30:g}", "-o", "/dev/null", "-x", through, bed.origin.url(file)]
    with ExitStack() as stack:
        if one.variant == "static":
            stack.enter_context(capped)
        recorder = stack.enter_context(IpRecorder(bed.client, DEVICES))
        process = stack.enter_context(bed.client.running(mptcp_command(argv)))
        while recorder.samples[-1].octets[CAPPED] - recorder.samples[0].octets[CAPPED] < FIRST_WINDOW:
            if not process.running or recorder.now > one.seconds:
                raise TestbedError(f"nothing came over {CAPPED}{process.tail()}")
            time.sleep(0.01)
        begin = first_packet(recorder.samples)
        if one.variant == "poller":
            recorder.wait(begin + PERIOD / 2)
            if router.interface_bytes("lan").sent - before > ALLOWED:
                stack.enter_context(capped)
        recorder.wait(begin + one.seconds)
        end = recorder.now
        if not process.running:
            raise TestbedError(f"the transfer ended with {process.returncode} before its time{process.tail()}")
    complaint = Protocol.of(*added.read()).complaint(multipath=True)
    if complaint is not None:
        raise TestbedError(complaint)
    return judge(recorder.samples, one.rate, end)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judged values of one transfer."""

    mean: float
    """Mean rate of the capped path, as a multiple of the cap."""
    ahead: float
    """Maximum bytes by which the transfer was ahead of cap × time."""
    excess: float
    """Maximum bytes by which the transfer was ahead of ``EXCESS`` × cap × time."""
    above: float
    """Seconds until the rate stays below ``EXCESS`` × cap in every ``SECONDS``; infinity if the last window exceeds
    this rate."""
    rate: float
    """Rate of the capped path in bits/s, from ``SLOW_START`` to the end."""
    other: float
    """Rate of the other path in bits/s, over the same time."""


def first_packet(samples: Sequence[Sample]) -> float:
    """Return the time of the first packet of a transfer. Raises ValueError if there is none."""
    # Packets of address resolution have fewer bytes.
    for before, after in pairwise(samples):
        if after.octets[CAPPED] - samples[0].octets[CAPPED] > 200:
            return before.time
    raise ValueError(f"nothing came over {CAPPED}")


def judge(samples: Sequence[Sample], cap: int, end: float) -> Outcome:
    """Judge the transfer in *samples* against a cap of *cap* bits/s. The transfer ended at *end* on the samples' clock.

    Raises ValueError if the samples contain no transfer.
    """
    begin = first_packet(samples)
    inside = [s.time for s in samples if begin <= s.time <= end]
    if len(inside) < 2 or inside[-1] - begin < SLOW_START + SECONDS:
        raise ValueError(f"the transfer is over after {(inside or [begin])[-1] - begin:.1f} s")
    total, second = Octets(samples, CAPPED), Octets(samples, OTHER)
    at_begin, last, allowed = total(begin), inside[-1], cap / 8
    ramped = begin + SLOW_START
    windows = [t for t in inside if t + SECONDS <= last]
    exceeds = [total(t + SECONDS) - total(t) > EXCESS * allowed * SECONDS for t in windows]
    # below: number of the first window after the last one that exceeds the cap.
    below = len(windows) - next((n for n, over in enumerate(reversed(exceeds)) if over), len(windows))
    return Outcome(
        mean=(total(last) - at_begin) / (allowed * (last - begin)),
        ahead=max(0.0, *(total(t) - at_begin - allowed * (t - begin) for t in inside)),
        excess=max(0.0, *(total(t) - at_begin - EXCESS * allowed * (t - begin) for t in inside)),
        above=windows[below] - begin if below < len(windows) else math.inf,
        rate=8 * (total(last) - total(ramped)) / (last - ramped),
        other=8 * (second(last) - second(ramped)) / (last - ramped),
    )


def _capped(row: Row[Cell, Outcome]) -> bool:
    return row.cell.variant in CAPPED_FROM_THE_START


def _in_seconds(row: Row[Cell, Outcome]) -> list[float]:
    return [8 * each.ahead / row.cell.rate for each in row.measured]


COLUMNS: tuple[Column[Cell, Outcome], ...] = (
    Column("n", RUNS.of, digits=0),
    Column("× cap", "mean"),
    Column("beyond cap × time, kB", "ahead", by="most", scale=1e-3, digits=0),
    Column(
        "in seconds of the cap", _in_seconds, by="most", aim="ahead of cap × time", unit=" s", most=SECONDS,
        judged=_capped,
    ),
    Column(
        "above the cap, s", "above", by="most", digits=1, aim="above the cap for", unit=" s", most=SECONDS,
        judged=_capped,
    ),
    Column("other, Mbit/s", "other", scale=1e-6, digits=1),
    Column(
        "", "excess", by="most", aim=f"bytes beyond {EXCESS:g} × cap × time", unit=" B",
        most=of_cell(lambda cell: cell.burst), judged=_capped,
    ),
    Column("", "mean", by="least", aim="capped path, × the cap", least=0.85, most=EXCESS, judged=_capped),
    Column(
        "", "other", by="least", aim="other path, × its link", scale=1e-6 / RATES[1], least=0.9, most=1.05,
        judged=_capped,
    ),
    Column(
        "", lambda row: [each.rate / row.cell.rate for each in row.measured], by="least", aim="uncapped, × the cap",
        least=UNCAPPED, judged=lambda row: row.cell.variant == "none",
    ),
)  # fmt: skip


def verdicts(results: Results[Cell, Outcome]) -> list[Aim]:
    """Return the aim that compares the poller with our throttler."""
    by = {cell.variant: [each.ahead for each in results.of(cell)] for cell in results.cells}
    pollers, ours = by.get("poller"), by.get("ours")
    if not pollers or not ours:
        return []
    what = f"poller: expected overshoot, × the most of ours, but {PACKET} B at the least"
    return [Aim(what, fmean(pollers) / max(PACKET, *ours), least=10)]


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "curl", "mptcpize", "ss"),
    cells=lambda chosen: [Cell(variant, chosen.cap, chosen.seconds) for variant in chosen.variant],
    together=lambda cell: None,
    bed=built,
    measure=measure,
    tables=(Table("What passes beyond a cap", COLUMNS, (("variant", lambda row: TITLES[row.cell.variant]),)),),
    counted=lambda row: "transfers",
    verdicts=verdicts,
)
