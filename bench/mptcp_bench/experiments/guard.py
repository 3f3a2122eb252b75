# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard: the rate of a capped connection when its other path degrades, with the guard and without it.

A download or an upload uses Ethernet, which is capped, and Wi-Fi. Then Wi-Fi has a fault for some seconds: it loses
some packets, slows down, loses all packets, or goes down at the client. The experiment shows the time until the
connection regains the rate that Wi-Fi had, and the time from the end of the fault until the cap is in force again.
The controls are transfers that are slow for another reason, or that share the paths: during the controls the guard must
do nothing.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate, windows
from mptcp_lab.testbed.services import wait_until

from .columns import RUNS, Column, Results, Row, Table, Turn, for_pictures
from .devices import DEVICES, POLICY_PATHS
from .drawing import Panel, draw_panels
from .findings import Picture
from .parameters import MOST_RTT, choices, parameter, several, whole, words
from .scenario import Scenario
from .setup import Setup
from .two_paths import slow_origin, slow_wifi, two_paths, wifi_dropping
from .upload_recorder import upload_recorder

ETHERNET, WIFI, CAP = 100, 30, 5
"""Rates of Ethernet and Wi-Fi, and Ethernet's cap, in Mbit/s."""
WARM, FAULT, AFTER = 4.0, 8.0, 12.0
"""Seconds that are recorded before the fault, seconds of the fault, and seconds that are recorded after the fault."""
AFTER_UPLOAD = 24.0
"""Seconds recorded after the fault of an upload, whose cap returns slowly."""
RECOVERED, LONGEST, LONGEST_UPLOAD = 0.8, 2.0, 4.0
"""The connection must regain this share of the rate that Wi-Fi had before the fault, within this number of seconds from
the fault: first for a download, then for an upload. The scheduler of an upload's client also waits for Wi-Fi: after the
cap was lifted by hand, the upload took up to 3.7 s."""
CAP_SPAN, SPAN = 1.0, 0.5
"""Seconds over which Ethernet's rate is compared with its cap, and over which other rates are measured."""
SLOW, LOSS = 5, 30
"""Rate of Wi-Fi during the fault ``rate``, in Mbit/s, and percentage of packets that the fault ``loss`` drops."""
ON, OFF = "on", "off"
WORDS = {
    "loss": f"loses {LOSS} %",
    "rate": f"slows to {SLOW} Mbit/s",
    "silence": "loses everything",
    "down": "goes down",
}
_POLICY = f"""\
{POLICY_PATHS}guard: {{enabled: %s}}
rules: [{{name: cap, paths: [ethernet], direction: %s, throttle: {{rate: %d Mbit/s}}}}]
"""


@contextmanager
def _stopped(client: Process) -> Iterator[None]:
    client.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        client.signal(signal.SIGCONT)


FAULTS: dict[str, Callable[[Testbed, str], AbstractContextManager[None]]] = {
    "loss": lambda testbed, _: wifi_dropping(testbed, f"numgen random mod 100 < {LOSS} drop"),
    "rate": lambda testbed, direction: slow_wifi(testbed, "lan" if direction == "down" else "wan", SLOW, WIFI),
    "silence": lambda testbed, _: wifi_dropping(testbed),
    "down": lambda testbed, _: testbed["client"].link_down("wlan0"),
}
"""Functions that return a context manager for a fault of Wi-Fi, for transfers in the given direction."""


Control = Callable[["GuardSetup", Process], AbstractContextManager[object]]
"""Returns a context manager for an event in a transfer without a fault, during which the guard must do nothing."""
_BOTH: dict[str, Control] = {
    "nothing happens": lambda setup, client: nullcontext(),
    "the client stops": lambda setup, client: _stopped(client),
    "a second transfer comes and goes": lambda setup, client: setup.client.running(setup.download or setup.upload),
}
CONTROLS: dict[str, dict[str, Control]] = {
    "down": {**_BOTH, "the origin sends 10 Mbit/s": lambda setup, client: slow_origin(setup.testbed, 10)},
    "up": _BOTH,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``--set`` chooses."""

    rtt: tuple[int, ...] = parameter("RTTs of both paths in ms", "20,60", several(whole(most=MOST_RTT)), quick="20")
    fault: tuple[str, ...] = parameter(
        "of Wi-Fi; nothing: only what is without a fault",
        ",".join(FAULTS),
        lambda text: words(*FAULTS)(text) if text else (),
    )
    runs: int = parameter("of each", "5", whole(), quick="1")
    direction: tuple[str, ...] = choices("direction of the transfer", CONTROLS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the varied settings; *rtt* is in ms. *fault* is the name of a fault or of a control."""

    direction: str
    rtt: int
    fault: str

    def __str__(self) -> str:
        return f"{self.direction}, {self.rtt} ms, {WORDS.get(self.fault, self.fault)}"

    @property
    def is_control(self) -> bool:
        """Whether the cell is a transfer without a fault."""
        return self.fault not in FAULTS


@dataclass(frozen=True, slots=True)
class Unharmed:
    """One transfer without a fault."""

    relaxations: int
    """Number of times that the guard relaxed the cap."""
    wifi: float
    """Wi-Fi's rate at the beginning of the transfer, bits/s."""


class GuardSetup(Setup):
    """Transfers under the cap, in one direction."""

    __slots__ = ()

    @property
    def direction(self) -> str:
        return "down" if self.download else "up"

    @contextmanager
    def transferring(self) -> Iterator[tuple[Process, Recorder]]:
        """Start a transfer; yield its process and a recorder of its paths. For an upload, first wait for the cap."""
        with self.client.running(self.download or self.upload) as process:
            if self.upload:
                wait_until(self._in_force, "the cap is in force", timeout=30)
            over = Recorder(self.client, DEVICES) if self.download else upload_recorder(self.proxy, self.client)
            with over as recorder:
                yield process, recorder

    def _in_force(self) -> bool:
        status = self.throttler.status()
        rates = [each["rate"] for each in status["classes"] if each["direction"] == "up"]
        return bool(status["counters"]["upload_entries"]) and rates == [CAP * 1_000_000]


def cells(chosen: Settings) -> list[Cell]:
    """Return, for each RTT and direction, the cells of the faults, then the cells of the controls."""
    return [
        Cell(direction, rtt, fault)
        for rtt, direction in product(chosen.rtt, chosen.direction)
        for fault in (*chosen.fault, *CONTROLS[direction])
    ]


@contextmanager
def bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[GuardSetup]:
    """Build a testbed for all cells of one direction and RTT."""
    direction, rtt = cells[0].direction, cells[0].rtt
    with Testbed(paths(two_paths((ETHERNET, WIFI), (rtt, rtt))), seed=seed) as testbed:
        down = direction == "down"
        yield GuardSetup.built(testbed, _policy(True, direction), down=down, up=not down)


def measure(setup: GuardSetup, turn: Turn[Cell]) -> Outcome | Unharmed:
    """Run a transfer with a fault of Wi-Fi, or a transfer without a fault, and return its result."""
    cell, arm = turn.cell, turn.variant
    if cell.is_control:
        return unharmed(setup, CONTROLS[cell.direction][cell.fault])
    setup.load_between(_policy(arm == ON, cell.direction), ["cap"])
    before = _relaxations(setup)
    with setup.transferring() as (_client, recorder):
        recorder.wait(WARM)
        until = recorder.now
        with FAULTS[cell.fault](setup.testbed, cell.direction):
            # Under load the fault's command takes a second. Data that arrives during the command is not a recovery.
            fault_at = recorder.now
            recorder.wait(fault_at + FAULT)
        recorder.wait(fault_at + FAULT + after(cell.direction))
        samples = recorder.samples
    return judge(samples, fault_at, _relaxations(setup) - before, until)


def after(direction: str) -> float:
    """Return the number of seconds after the fault for which a transfer is recorded."""
    return AFTER if direction == "down" else AFTER_UPLOAD


def unharmed(setup: GuardSetup, control: Control) -> Unharmed:
    """Return the guard's relaxations during *control*, and Wi-Fi's rate before it."""
    setup.load_between(_policy(True, setup.direction), ["cap"])
    before = _relaxations(setup)
    with setup.transferring() as (client, recorder):
        recorder.wait(WARM)
        samples = recorder.samples
        with control(setup, client):
            time.sleep(FAULT / 2)
        time.sleep(FAULT / 2)
    return Unharmed(_relaxations(setup) - before, mean_rate(samples, "wlan0", WARM / 2, WARM))


def _relaxations(setup: Setup) -> int:
    return int(setup.throttler.status()["counters"]["guard"]["relaxations"])


def _policy(guarded: bool, direction: str) -> str:
    return _POLICY % (str(guarded).lower(), direction, CAP)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transfer with a fault. Times are in seconds; infinity if the event did not happen before the samples end."""

    before: float
    """Wi-Fi's rate before the fault, bits/s."""
    capped: float
    """Ethernet's rate before the fault, as a multiple of its cap."""
    during: float
    """Rate of the connection from ``LONGEST`` after the fault to the fault's end, as a share of :attr:`before`."""
    recovered: float
    """Seconds from the fault until the connection's rate is at least ``RECOVERED`` times :attr:`before`."""
    in_force: float
    """Seconds from the end of the fault until Ethernet stays at its cap."""
    relaxations: int
    """Number of times that the guard relaxed the cap."""
    beyond: float
    """Data that Ethernet carried above its cap until the cap was in force again / the data that Wi-Fi lacked."""
    fault_at: float = 0.0
    samples: tuple[Sample, ...] = for_pictures()


def judge(samples: Sequence[Sample], fault_at: float, relaxations: int, until: float | None = None) -> Outcome:
    """Return a transfer's outcome. The fault began between *until* and *fault_at*; without *until*, at *fault_at*.

    Raises ValueError if there are too few samples, or if Wi-Fi carried nothing before the fault.
    """
    until = fault_at if until is None else until
    before = mean_rate(samples, "wlan0", until - 2, until)
    if before <= 0:
        raise ValueError("nothing came over Wi-Fi before the fault")
    ended = fault_at + FAULT
    # Data that arrives as the fault ends is not a recovery.
    together = windows([sample for sample in samples if sample.time <= ended - 0.2], DEVICES, SPAN, fault_at)
    recovered = next((begin + SPAN for begin, rate in together if rate >= RECOVERED * before), math.inf)
    capped_from = _capped_from(samples, ended)
    until_capped = min(capped_from, samples[-1].time)
    span = until_capped - fault_at
    above = max(0.0, mean_rate(samples, "eth0", fault_at, until_capped) - CAP * 1e6) * span
    lacking = max(1.0, before - mean_rate(samples, "wlan0", fault_at, until_capped)) * span
    return Outcome(
        before=before,
        capped=mean_rate(samples, "eth0", until - 2, until) / (CAP * 1e6),
        during=sum(mean_rate(samples, device, fault_at + LONGEST, ended) for device in DEVICES) / before,
        recovered=recovered - fault_at,
        in_force=capped_from - ended,
        relaxations=relaxations,
        beyond=above / lacking,
        fault_at=fault_at,
        samples=tuple(samples),
    )


def _capped_from(samples: Sequence[Sample], ended: float) -> float:
    """Return the end of the last second above the cap after *ended*; infinity if this is the last recorded second."""
    above = [(begin, rate > 1.1e6 * CAP) for begin, rate in windows(samples, ("eth0",), CAP_SPAN, ended)]
    if not above:
        raise ValueError("no second of samples after the fault")
    if above[-1][1]:
        return math.inf
    return max((begin + CAP_SPAN for begin, is_above in above if is_above), default=ended)


GuardRow = Row[Cell, Any]


def _on(row: GuardRow) -> bool:
    return row.variant == ON


def _of_all_arms(row: GuardRow) -> list[Outcome]:
    return [each for arm in (ON, OFF) for each in row.beside(arm)]


def _farthest_from_its_link(row: GuardRow) -> list[float]:
    shares = [each.before / (WIFI * 1e6) for each in _of_all_arms(row)]
    return [max(shares, key=lambda share: abs(share - 1))] if shares else []


FAILS: tuple[Column[Cell, Any], ...] = (
    RUNS,
    Column("Wi-Fi before", "before", scale=1e-6),
    Column(
        "", lambda row: [each.capped for each in _of_all_arms(row)], "most", "Ethernet before, × its cap", most=1.5,
        judged=_on,
    ),
    Column(
        "", _farthest_from_its_link, aim="Wi-Fi before, of its link", least=0.8, most=1.2,
        judged=_on,
    ),
    Column(
        "gets again after s", "recovered", aim="recovers after", unit=" s",
        most=lambda row: LONGEST if row.cell.direction == "down" else LONGEST_UPLOAD, judged=_on,
    ),
    Column("then", "during", aim="without the guard gets", most=RECOVERED, judged=lambda row: row.variant == OFF),
    Column(
        "cap back after s", "in_force", aim="the cap is back after", unit=" s",
        most=lambda row: after(row.cell.direction) - CAP_SPAN - SPAN, judged=_on,
    ),
    Column("n", "relaxations"),
    Column("", "relaxations", "most", "without the guard relaxed", most=0, judged=lambda row: row.variant == OFF),
    Column("beyond", "beyond", aim="beyond the cap, × what Wi-Fi lacks", most=1.1, judged=_on),
)  # fmt: skip
UNHARMED: tuple[Column[Cell, Any], ...] = (
    # Some controls need little data. A transfer without Wi-Fi has no cap that the guard could relax: it proves nothing.
    Column("Wi-Fi at first", "wifi", unit=" Mbit/s", scale=1e-6, least=0.1),
    Column("relaxations", "relaxations", "most", digits=0, most=0),
)


def pictures(results: Results[Cell, Any]) -> list[Picture]:
    """Return a picture with a run with the guard for each kind of fault, all with one direction and RTT."""
    guarded = {cell: there[0] for cell in results.cells if (there := results.of(cell, ON))}
    if not guarded:
        return []
    first = next(iter(guarded))
    panels = [
        Panel(f"Wi-Fi: {cell.fault}", one.samples, one.fault_at, (0, FAULT))
        for cell, one in guarded.items()
        if (cell.direction, cell.rtt) == (first.direction, first.rtt)
    ]
    explained = f"Ethernet capped at {CAP} Mbit/s, RTT {first.rtt} ms; between the dashed lines Wi-Fi has a fault"
    span = (-2, FAULT + AFTER)
    return [
        Picture("guard", lambda target: draw_panels(
            target, "The guard", explained, panels, x="seconds since the fault", span=span
        ))
    ]  # fmt: skip


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize"),
    cells=cells,
    together=lambda cell: f"{cell.direction}, {cell.rtt} ms",
    variants=lambda chosen, cell: ("",) if cell.is_control else (ON, OFF),
    runs=lambda chosen, cell, arm: 1 if cell.is_control else chosen.runs,
    bed=bed,
    measure=measure,
    tables=(
        Table(
            "Wi-Fi fails while Ethernet is capped",
            FAILS,
            (
                ("", lambda row: row.cell.direction),
                ("RTT", lambda row: f"{row.cell.rtt} ms"),
                ("Wi-Fi", lambda row: WORDS[row.cell.fault]),
                ("guard", lambda row: row.variant),
            ),
            of=lambda row: not row.cell.is_control,
        ),
        Table("Without a fault", UNHARMED, (("control", str),), of=lambda row: row.cell.is_control),
    ),
    name=lambda row: str(row.cell),
    counted=lambda row: f"runs, guard {row.variant}" if row.variant else "transfers without a fault",
    pictures=pictures,
)
