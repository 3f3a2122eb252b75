# SPDX-License-Identifier: GPL-2.0-or-later
"""The onset of a cap: what the other path loses when the cap falls at once, and when it lands softly.

The transfers use the real proxy and throttler. In the middle of a download over both paths, a policy that caps Ethernet
is loaded (SIGHUP), alternately with ``landing: at-once`` and ``landing: soft``; between runs the cap is removed. The
same time windows are also measured without any cap, because congestion control itself makes the rate dip.
docs/soft-start.md has the results.

Each 0.1 s sample counts the bytes that arrived at the client's interfaces, or, for an upload, at the proxy's sockets.
BBR slows every path down for 0.2 s once in ten seconds (PROBE_RTT). A download begins shortly before the onset, so
that the first such dip comes after the last window. An upload is watched for 20 s, until the client's backlog has
drained. This includes two such dips. Rates are on the wire, in bits/s; times are seconds since the transfer's start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.congestion import lacking_here, select
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate, rates, windows
from mptcp_lab.testbed.services import PROXY_PORT, wait_until

from ..statistics import of_median
from .columns import CELL, RUNS, VARIANT, Column, Results, Row, Table, Turn, for_pictures, of_cell
from .devices import DEVICE, DEVICES, payload_share, policy
from .drawing import Panel, draw_panels
from .findings import Picture
from .parameters import OptionError, choices, parameter, rtt_pair, several, whole
from .scenario import Scenario
from .setup import Setup
from .two_paths import two_paths
from .upload_recorder import on_the_wire, upload_recorder

OTHER_RATE = {"ethernet": 30, "wifi": 50}
"""Rate of the uncapped path in Mbit/s, by the capped path."""
NETWORKS = {"ethernet": "10.77.1.", "wifi": "10.77.2."}
CAPS = "100-5,100-1,30-2"
WARM, BEFORE, AFTER = 3.5, 2.0, 0.1
"""Seconds from the start of a transfer to the onset of the cap; seconds before the onset in which the other path's
earlier rate is measured; seconds that are recorded after the last window."""
STALLED = 0.5
"""The other path stalls while its rate is below this share of its earlier rate."""
WITHIN = 0.05
"""Maximum difference between the capped path's rate over one second and its cap, as a share of the cap. At 1 Mbit/s,
one second has 82 full packets."""
TITLES = {"at-once": "The cap falls at once", "soft": "The cap lands softly"}


@dataclass(frozen=True, slots=True)
class Windows:
    """The periods of a transfer that are judged, in seconds after the onset of the cap."""

    onset: float
    """End of the period in which the other path may be slower."""
    steady: tuple[float, float]
    """Start and end of the period in which both paths must be in the steady state."""
    in_force: float
    """Latest moment at which the capped path must respect its cap."""
    dips: float = 0.0
    """Seconds within *onset* for which BBR itself may stall a path."""


DOWN = Windows(onset=3.0, steady=(3.0, 5.5), in_force=1.0)
# An upload is watched as a whole, since the client's backlog may stall the other path long after the cap.
UP = Windows(onset=20.0, steady=(15.0, 20.0), in_force=15.0, dips=0.4)


def cap_of(text: str) -> tuple[str, int, int]:
    """Return path, rate and cap in *text*, such as ``100-5`` for Ethernet or ``wifi:30-2`` for Wi-Fi."""
    found = re.fullmatch(r"(?:(ethernet|wifi):)?(\d{1,5})-(\d{1,5})", text)
    # A policy cannot have a cap of 0, and a cap above the path's rate has no effect.
    if found is None or not 0 < int(found[3]) < int(found[2]):
        raise ValueError("allowed are a path's rate and a lower cap in Mbit/s, such as 100-5, or wifi:30-2")
    return found[1] or "ethernet", int(found[2]), int(found[3])


def control_of(text: str) -> str:
    if not re.fullmatch("[a-z0-9_]+", text):
        raise ValueError("allowed are names of congestion controls, such as bbr")
    return text


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``."""

    cc: tuple[str, ...] = parameter("congestion controls of the sender", "bbr,cubic", several(control_of))
    rtt: tuple[tuple[float, float], ...] = parameter(
        "RTTs in ms, Ethernet/Wi-Fi", "2/2,20/20,60/60,20/80", several(rtt_pair), quick="20/20"
    )
    cap: tuple[tuple[str, int, int], ...] | None = parameter(
        f"Ethernet's rate and its cap in Mbit/s, wifi: before them for Wi-Fi's, default {CAPS}, uploads wifi:30-2 too",
        None,
        several(cap_of),
        quick="100-5",
    )
    runs: int = parameter("of each variant", "10", whole(), quick="3")
    variant: tuple[str, ...] = choices("landings of the cap", (*TITLES, "no cap"))
    direction: tuple[str, ...] = choices("direction of the transfer and the cap", ("down", "up"), "down")


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the settings: RTTs of Ethernet and Wi-Fi in ms, the capped path, its rate and its cap."""

    control: str
    rtts: tuple[float, float]
    capped: tuple[str, int, int]
    direction: str = "down"

    def __str__(self) -> str:
        path, rate, cap = self.capped
        where = ("" if path == "ethernet" else f", {path}") + (", upload" if self.direction == "up" else "")
        return "{}, {:g}/{:g} ms, {}→{} Mbit/s{}".format(self.control, *self.rtts, rate, cap, where)

    @property
    def other(self) -> str:
        """The uncapped path."""
        return "wifi" if self.capped[0] == "ethernet" else "ethernet"

    @property
    def rates(self) -> tuple[int, int]:
        """Rates of Ethernet and Wi-Fi in Mbit/s."""
        path, rate, _ = self.capped
        return (rate, OTHER_RATE[path]) if path == "ethernet" else (OTHER_RATE[path], rate)

    @property
    def rtt(self) -> float:
        """RTT of the capped path in milliseconds."""
        return self.rtts[0 if self.capped[0] == "ethernet" else 1]

    @property
    def windows(self) -> Windows:
        return UP if self.direction == "up" else DOWN

    @property
    def dips(self) -> float:
        """Seconds for which the congestion control itself may stall a path."""
        return self.windows.dips if self.control == "bbr" else 0.0


def cells(chosen: Settings) -> list[Cell]:
    found = []
    for direction in chosen.direction:
        caps = chosen.cap or several(cap_of)(CAPS if direction == "down" else f"{CAPS},wifi:30-2")
        found += [Cell(*each, direction) for each in product(chosen.cc, chosen.rtt, caps)]
    return found


def ready(chosen: Settings) -> None:
    """Raise OptionError if this host lacks a congestion control."""
    for control in chosen.cc:
        if (why := lacking_here(control)) is not None:
            raise OptionError(f"--set cc={control}: {why}")


@contextmanager
def bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Setup]:
    [cell] = cells
    with Testbed(paths(two_paths(cell.rates, cell.rtts)), seed=seed) as testbed:
        down = cell.direction == "down"
        if not down and not select(cell.control, [testbed["client"].namespace]):
            raise TestbedError(f"the client cannot have {cell.control} here")
        yield Setup.built(testbed, policy("[]"), down=down, up=not down, control=cell.control)


def measure(setup: Setup, turn: Turn[Cell]) -> Outcome:
    """Transfer, load the cap, and judge. Raises TestbedError without both subflows."""
    cell, windows, down = turn.cell, turn.cell.windows, turn.cell.direction == "down"
    path, _, cap = cell.capped
    setup.load(policy("[]"))
    wait_until(lambda: not sockets(setup, cell), "the last transfer's subflows are gone", timeout=30)
    with (
        setup.client.running(setup.download if down else setup.upload),
        Recorder(setup.client, DEVICES) if down else upload_recorder(setup.proxy, setup.client) as recorder,
    ):
        recorder.wait(WARM)
        if len(sockets(setup, cell)) != 2:
            raise TestbedError("the transfer has not two subflows")
        onset = recorder.now
        if turn.variant != "no cap":
            throttle = f"{{rate: {cap} Mbit/s, landing: {turn.variant}}}"
            rule = f"name: cap, paths: [{path}], direction: {cell.direction}, throttle: {throttle}"
            setup.load(policy(f"[{{{rule}}}]"))
        end = onset + windows.steady[1]
        recorder.wait(end - 0.5)
        rtt = sockets(setup, cell).get(NETWORKS[path], 0.0)
        recorder.wait(end + AFTER)
        samples = recorder.samples
    if not down:
        samples = on_the_wire(samples, payload_share(4, multipath=True))
    return judge(samples, DEVICE[path], DEVICE[cell.other], onset, cap * 10**6, OTHER_RATE[path] * 10**6, rtt, windows)


def sockets(setup: Setup, cell: Cell) -> dict[str, float]:
    """Return the sender's smoothed RTT in seconds of each established subflow, by the client's network."""
    sender, port = (setup.proxy, "sport") if cell.direction == "down" else (setup.client, "dport")
    listing = sender.run(["ss", "-tinH", "state", "established", port, "=", f":{PROXY_PORT}"]).stdout
    found = {}
    for line in listing.replace("\n\t", " ").splitlines():
        rtt = re.search(r"\brtt:([\d.]+)", line)
        address = re.search(rf"10\.77\.[12]\.(?=\d+(?:%\w+)?\]?:(?!{PROXY_PORT}))", line)
        if rtt and address:
            found[address[0]] = float(rtt[1]) / 1e3
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judged values of one run. Shares are of the other path's rate before the onset."""

    before: float
    """Rate of the other path before the onset, bits/s."""
    kept: float
    """Share of its rate that the other path kept until the end of :attr:`Windows.onset`."""
    worst: float
    stalled: float
    uncapped: float
    """Rate of the capped path before the onset, as a multiple of the cap."""
    in_force: float
    """Seconds from the onset until the capped path exceeds its cap by at most ``WITHIN``; infinity if this never
    happens."""
    off: float
    """Greatest difference between rate and cap after :attr:`Windows.in_force`, as a share of the cap."""
    steady: float
    """Rate of both paths together in :attr:`Windows.steady`, as a share of the cap plus the other link."""
    rtt: float
    """Smoothed RTT of the capped subflow in the steady state, in seconds."""
    onset: float = 0.0
    samples: tuple[Sample, ...] = for_pictures()


def judge(
    samples: Sequence[Sample], capped: str, other: str, onset: float, cap: int, other_link: int, rtt: float,
    periods: Windows = DOWN,
) -> Outcome:  # fmt: skip
    """Judge a transfer on whose path *capped* a cap of *cap* bits/s began at *onset*.

    Raises ValueError if there are too few samples, or if the other path carried nothing before the onset.
    """
    before = mean_rate(samples, other, onset - BEFORE, onset)
    if before <= 0:
        raise ValueError("nothing came over the other path before the cap")
    watched = [sample for sample in samples if onset <= sample.time <= onset + periods.onset]
    shares = [(rate.time - onset, rate.bits[other] / before) for rate in rates(watched)]
    begins = [sample.time - onset for sample in watched]
    stalls = [(begin, end) for begin, (end, share) in zip(begins, shares, strict=False) if share < STALLED]
    seconds = windows(samples, (capped,), 1.0, onset)
    begin, end = (onset + each for each in periods.steady)
    return Outcome(
        before=before,
        kept=mean_rate(samples, other, onset, onset + periods.onset) / before,
        worst=min(share for _, share in shares),
        stalled=sum(end - begin for begin, end in stalls),
        uncapped=mean_rate(samples, capped, onset - BEFORE, onset) / cap,
        in_force=next((start - onset for start, rate in seconds if rate <= cap * (1 + WITHIN)), inf),
        off=max(abs(rate / cap - 1) for start, rate in seconds if start >= onset + periods.in_force),
        steady=sum(mean_rate(samples, path, begin, end) for path in (capped, other)) / (cap + other_link),
        rtt=rtt,
        onset=onset,
        samples=tuple(samples),
    )


def _soft(row: Row[Cell, Outcome]) -> bool:
    return row.variant == "soft"


Aimed: Callable[..., Column[Any, Any]] = partial(Column, judged=_soft)
OfCap: Callable[..., Column[Any, Any]] = partial(Aimed, filled=lambda row: row.variant != "no cap")
COLUMNS: tuple[Column[Cell, Outcome], ...] = (
    RUNS,
    # With a lower rate, the link limits the capped path, not the cap.
    Aimed("", "uncapped", aim="capped path before, × its cap", least=3),
    Aimed("kept", "kept", least=0.95),
    Aimed("worst", "worst", aim="worst sample", least=of_cell(lambda cell: None if cell.dips else STALLED)),
    Aimed("stalled s", "stalled", aim="stalled", unit=" s", most=of_cell(lambda cell: 0.1 + cell.dips)),
    OfCap("in force s", "in_force", aim="in force after", unit=" s", most=of_cell(lambda cell: cell.windows.in_force)),
    OfCap("off", "off", aim="from then on off by", digits=3, most=WITHIN),
    OfCap("steady", "steady", aim="steady state", digits=3, least=0.98),
    # The cap may add 0.1 s to the RTT. An RTT below the configured RTT shows that the path was not emulated.
    Aimed(
        "RTT ms", "rtt", aim="RTT", unit=" ms", scale=1e3, digits=0, least=of_cell(lambda cell: 0.9 * cell.rtt),
        most=of_cell(lambda cell: cell.rtt + 100),
    ),
)  # fmt: skip


def pictures(results: Results[Cell, Outcome]) -> list[Picture]:
    """Return the picture of the first cell that has both landings; empty if no cell has both."""
    cell = next((each for each in results.cells if all(results.of(each, landing) for landing in TITLES)), None)
    return [] if cell is None else [Picture("onset", lambda target: draw(target, results, cell))]


def draw(target: Path, results: Results[Cell, Outcome], cell: Cell) -> None:
    """Draw one run of each landing of *cell*: the run in which the other path kept the median share."""
    names = {"ethernet": "Ethernet", "wifi": "Wi-Fi"}
    panels = []
    for variant, title in TITLES.items():
        one = of_median(results.of(cell, variant), lambda outcome: outcome.kept)
        panels.append(Panel(f"{title}: {names[cell.other]} keeps {one.kept:.0%}", one.samples, one.onset, (0,)))
    draw_panels(
        target, "The onset of a cap", f"{cell}; one transfer through the proxy", panels, x="seconds since the cap",
        span=(-2, 5), most=max(cell.rates) * 1.08, side_by_side=True,
    )  # fmt: skip


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "bpf-pacing", "apache2", "squid", "curl", "mptcpize"),
    ready=ready,
    cells=cells,
    variants=lambda chosen, cell: chosen.variant,
    # Without a cap, congestion control makes the rate dip equally in each run, so three runs are enough.
    runs=lambda chosen, cell, variant: min(chosen.runs, 3) if variant == "no cap" else chosen.runs,
    bed=bed,
    measure=measure,
    tables=(Table("A cap falls: what the other path keeps", COLUMNS, (CELL, ("cap", VARIANT[1]))),),
    counted=lambda row: "runs" if _soft(row) else "",
    pictures=pictures,
)
