# SPDX-License-Identifier: GPL-2.0-or-later
"""The onset of a cap: what the other path loses when the cap falls at once, and when it lands softly.

The transfers use the real proxy and throttler. In the middle of a download over both paths, a policy that caps Ethernet
is loaded (SIGHUP), alternately with ``landing: at-once`` and ``landing: soft``; between runs the cap is removed. The
same time windows are also measured without any cap, because congestion control itself makes the rate dip.
docs/soft-start.md has the results.

Each 0.1 s sample counts the bytes that arrived at the client's interfaces, or, for an upload, at the proxy's sockets.
BBR slows every path down for 0.2 s once in ten seconds (PROBE_RTT). A download begins so long before the onset that BBR
first does this after the last window. An upload is watched for 20 s, until the client's backlog has drained, which
includes two such dips.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.congestion import lacking_here, select
from mptcp_lab.testbed.recorder import Recorder
from mptcp_lab.testbed.services import PROXY_PORT, wait_until

from ..statistics import of_median
from .columns import CELL, RUNS, Column, Results, Row, Table, Turn, of_cell
from .devices import DEVICE, DEVICES, POLICY_PATHS
from .drawing import Panel, draw_panels
from .findings import Picture
from .onset_judging import DOWN, UP, WITHIN, Outcome, Windows, judge
from .options import OptionError
from .parameters import parameter, rtt_pair, several, whole, words
from .payload import payload_share
from .scenario import Scenario
from .setup import Setup
from .two_paths import two_paths
from .upload_recorder import UploadRecorder, on_the_wire

OTHER_RATE = {"ethernet": 30, "wifi": 50}
"""Rate of the uncapped path in Mbit/s, by the capped path."""
NETWORKS = {"ethernet": "10.77.1.", "wifi": "10.77.2."}
CAPS = "100-5,100-1,30-2"
UPLOAD_CAPS = f"{CAPS},wifi:30-2"
VARIANTS = ("at-once", "soft", "no cap")
WARM = 3.5
"""Seconds from the start of a transfer to the onset of the cap."""
AFTER = 0.1
"""Seconds that are recorded after the last window."""
CONTROL_RUNS = 3
KEPT, STALL, STEADY, STALLED = 0.95, 0.1, 0.98, 0.5
"""Least share of its rate that the other path must keep; most seconds that it may stall; least share of cap and other
link that both paths must carry in the steady state; least share that it must keep in each sample."""
QUEUED = 0.1
"""Most seconds that the cap may add to the RTT of the capped path."""
EMULATED = 0.9
"""Least RTT of the capped path, as a share of the configured one. If it is less, the path was not emulated."""
UNCAPPED = 3.0
"""Least rate of the capped path before the onset, as a multiple of the cap. With less, its link limits it, not the
cap."""
TITLES = {"at-once": "The cap falls at once", "soft": "The cap lands softly"}
_POLICY = f"{POLICY_PATHS}rules: "


@dataclass(frozen=True, slots=True)
class Cap:
    """A path, its rate before the cap, and the cap, in Mbit/s."""

    path: str
    rate: int
    cap: int


def cap_of(text: str) -> Cap:
    """Return the cap in *text*, such as ``100-5``, or ``wifi:30-2`` for Wi-Fi's."""
    found = re.fullmatch(r"(?:(ethernet|wifi):)?(\d{1,5})-(\d{1,5})", text)
    # A policy cannot have a cap of 0, and a cap above the path's rate has no effect.
    if found is None or not 0 < int(found[3]) < int(found[2]):
        raise ValueError("allowed are a path's rate and a lower cap in Mbit/s, such as 100-5, or wifi:30-2")
    return Cap(found[1] or "ethernet", int(found[2]), int(found[3]))


def control_of(text: str) -> str:
    if not re.fullmatch("[a-z0-9_]+", text):
        raise ValueError("allowed are names of congestion controls, such as bbr")
    return text


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``--set`` chooses."""

    cc: tuple[str, ...] = parameter("congestion controls of the sender", "bbr,cubic", several(control_of))
    rtt: tuple[tuple[float, float], ...] = parameter(
        "RTTs in ms, Ethernet/Wi-Fi", "2/2,20/20,60/60,20/80", several(rtt_pair), quick="20/20"
    )
    cap: tuple[Cap, ...] | None = parameter(
        f"Ethernet's rate and its cap in Mbit/s, wifi: before them for Wi-Fi's, default {CAPS}, with direction=up "
        "wifi:30-2 besides",
        None,
        several(cap_of),
        quick="100-5",
    )
    runs: int = parameter("of each variant", "10", whole(), quick="3")
    variant: tuple[str, ...] = parameter("which landings of the cap", ",".join(VARIANTS), words(*VARIANTS))
    direction: tuple[str, ...] = parameter("of the transfer and the cap, down or up", "down", words("down", "up"))


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the varied settings."""

    control: str
    rtts: tuple[float, float]
    """RTTs of Ethernet and Wi-Fi in milliseconds."""
    capped: Cap
    direction: str = "down"

    def __str__(self) -> str:
        what = ", upload" if self.direction == "up" else ""
        where = "" if self.capped.path == "ethernet" else f", {self.capped.path}"
        rtts = "{:g}/{:g} ms".format(*self.rtts)
        return f"{self.control}, {rtts}, {self.capped.rate}→{self.capped.cap} Mbit/s{where}{what}"

    @property
    def other(self) -> str:
        """The uncapped path."""
        return next(path for path in DEVICE if path != self.capped.path)

    @property
    def rates(self) -> tuple[int, int]:
        """Rates of Ethernet and Wi-Fi in Mbit/s."""
        rate, other = self.capped.rate, OTHER_RATE[self.capped.path]
        return (rate, other) if self.capped.path == "ethernet" else (other, rate)

    @property
    def rtt(self) -> float:
        """RTT of the capped path in milliseconds."""
        return self.rtts[0 if self.capped.path == "ethernet" else 1]

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
        caps = chosen.cap or several(cap_of)(UPLOAD_CAPS if direction == "up" else CAPS)
        found += [Cell(*each, direction) for each in product(chosen.cc, chosen.rtt, caps)]
    return found


def ready(chosen: Settings) -> None:
    """Raise OptionError if this host lacks a congestion control."""
    for control in chosen.cc:
        if (why := lacking_here(control)) is not None:
            raise OptionError(f"--set cc={control}: {why}")


@contextmanager
def bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Setup]:
    """Build a testbed for one cell."""
    [cell] = cells
    with Testbed(paths(two_paths(cell.rates, cell.rtts)), seed=seed) as testbed:
        if cell.direction == "up" and not select(cell.control, [testbed["client"].namespace]):
            raise TestbedError(f"the client cannot have {cell.control} here")
        down = cell.direction == "down"
        yield Setup.built(testbed, _POLICY + "[]\n", down=down, up=not down, control=cell.control)


def measure(setup: Setup, turn: Turn[Cell]) -> Outcome:
    """Transfer, load the cap, and judge. Raises TestbedError without both subflows."""
    cell, windows = turn.cell, turn.cell.windows
    down, capped = cell.direction == "down", cell.capped
    setup.load(f"{_POLICY}[]\n")
    wait_until(lambda: not sockets(setup, cell), "the last transfer's subflows are gone", timeout=30)
    with (
        setup.client.running(setup.download if down else setup.upload),
        Recorder(setup.client, DEVICES) if down else UploadRecorder(setup.proxy, setup.client) as recorder,
    ):
        recorder.wait(WARM)
        if len(sockets(setup, cell)) != 2:
            raise TestbedError("the transfer has not two subflows")
        onset = recorder.now
        if turn.variant != "no cap":
            throttle = f"{{rate: {capped.cap} Mbit/s, landing: {turn.variant}}}"
            rule = f"name: cap, paths: [{capped.path}], direction: {cell.direction}, throttle: {throttle}"
            setup.load(f"{_POLICY}[{{{rule}}}]\n")
        recorder.wait(onset + windows.end - 0.5)
        rtt = sockets(setup, cell).get(NETWORKS[capped.path], 0.0)
        recorder.wait(onset + windows.end + AFTER)
        samples = recorder.samples
    if not down:
        samples = on_the_wire(samples, payload_share(4, multipath=True))
    link = OTHER_RATE[capped.path] * 1_000_000
    return judge(samples, DEVICE[capped.path], DEVICE[cell.other], onset, capped.cap * 1_000_000, link, rtt, windows)


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


def when(row: Row[Cell, Outcome]) -> str:
    """Return the first and last moment at which the other path stalled in any run, in seconds after the onset."""
    stalled = [outcome for outcome in row.measured if outcome.stalled]
    if not stalled:
        return ""
    return f"{min(each.stalls_from for each in stalled):.1f}-{max(each.stalls_to for each in stalled):.1f}"


def _soft(row: Row[Cell, Outcome]) -> bool:
    return row.variant == "soft"


def _capped(row: Row[Cell, Outcome]) -> bool:
    return row.variant != "no cap"


COLUMNS: tuple[Column[Cell, Outcome], ...] = (
    RUNS,
    Column("", "uncapped", aim="capped path before, × its cap", least=UNCAPPED, judged=_soft),
    Column("kept", "kept", least=KEPT, judged=_soft),
    Column("worst", "worst", aim="worst sample", least=of_cell(lambda c: None if c.dips else STALLED), judged=_soft),
    Column("stalled s", "stalled", aim="stalled", unit=" s", most=of_cell(lambda c: STALL + c.dips), judged=_soft),
    Column("when", lambda row: [], text=when),
    Column(
        "in force s", "in_force", aim="in force after", unit=" s", most=of_cell(lambda c: c.windows.in_force),
        judged=_soft, filled=_capped,
    ),
    Column("off", "off", aim="from then on off by", digits=3, most=WITHIN, judged=_soft, filled=_capped),
    Column("steady", "steady", aim="steady state", digits=3, least=STEADY, judged=_soft, filled=_capped),
    Column(
        "RTT ms", "rtt", aim="RTT", unit=" ms", scale=1e3, digits=0, least=of_cell(lambda c: EMULATED * c.rtt),
        most=of_cell(lambda c: c.rtt + 1e3 * QUEUED), judged=_soft,
    ),
)  # fmt: skip


def pictures(results: Results[Cell, Outcome]) -> list[Picture]:
    """Return the picture of the first cell that has both landings; empty if no cell has."""
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
    # Without a cap, congestion control makes the rate dip equally in each run.
    runs=lambda chosen, cell, variant: min(chosen.runs, CONTROL_RUNS) if variant == "no cap" else chosen.runs,
    bed=bed,
    measure=measure,
    tables=(Table("A cap falls: what the other path keeps", COLUMNS, (CELL, ("cap", lambda row: row.variant))),),
    counted=lambda row: "runs" if _soft(row) else "",
    pictures=pictures,
)
