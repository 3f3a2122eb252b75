# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard: the rate of a capped connection when its other path degrades, with the guard and without it.

A download or an upload uses Ethernet, which is capped, and Wi-Fi. Then Wi-Fi has a fault for some seconds: it loses
some packets, slows down, loses all packets, or goes down at the client. The experiment measures the time until the
connection has the rate again that Wi-Fi had, and the time from the end of the fault until the cap is in force again.
During the controls the guard must do nothing: these are transfers that are slow for another reason, or share the paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate, windows
from mptcp_lab.testbed.services import wait_until

from .columns import RUNS, Table, Turn, columns_of, figure, of_cell
from .devices import DEVICES, POLICY_PATHS
from .parameters import MAX_RTT, choices, parameter, several, whole
from .scenario import Scenario
from .setup import Setup
from .two_paths import dropping, hop_shaper, slow_origin, two_paths, upload_recorder

ETHERNET, WIFI, CAP = 100, 30, 5
"""Rates of Ethernet and Wi-Fi, and Ethernet's cap, in Mbit/s."""
WARM_UP_SECONDS, FAULT_SECONDS = 4.0, 8.0
"""Seconds that are recorded before the fault, and seconds of the fault."""
AFTER_SECONDS = {"down": 12.0, "up": 24.0}
"""Seconds that are recorded after the fault, by direction: the cap of an upload returns slowly."""
MIN_RECOVERY = 0.8
"""Minimum rate of a connection that has recovered, as a share of the rate that Wi-Fi had before the fault."""
MAX_RECOVERY_SECONDS = {"down": 2.0, "up": 4.0}
"""Maximum seconds from the fault to the recovery, by direction. The scheduler of an upload's client also waits for
Wi-Fi: after the cap was lifted by hand, the upload took up to 3.7 s."""
CAP_WINDOW_SECONDS, WINDOW_SECONDS = 1.0, 0.5
"""Seconds over which Ethernet's rate is compared with its cap, and over which other rates are measured."""
SLOW_RATE, LOSS_PERCENT = 5, 30
"""Rate of Wi-Fi during the fault ``rate``, in Mbit/s, and percentage of packets that the fault ``loss`` drops."""
ON, OFF = "on", "off"
FAULTS = {
    "loss": f"loses {LOSS_PERCENT} %", "rate": f"slows to {SLOW_RATE} Mbit/s", "silence": "loses all packets",
    "down": "goes down",
}  # fmt: skip
"""Faults of Wi-Fi."""
CONTROLS = (
    "nothing happens", "the client stops", "a second transfer begins and ends", "the origin sends 10 Mbit/s",
)  # fmt: skip
"""Events without a fault of Wi-Fi. The last one applies only to downloads."""


def _during(event: str, setup: Setup, client: Process) -> AbstractContextManager[object]:
    """Return a context manager for a fault or control during the transfer of *client*."""
    router, device, pid = setup.testbed["hop2"], "lan" if setup.download else "wan", str(client.pid)
    events: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "loss": lambda: dropping(router, f"numgen random mod 100 < {LOSS_PERCENT} drop"),
        "rate": lambda: router.changed(hop_shaper(SLOW_RATE, device), hop_shaper(WIFI, device)),
        "silence": lambda: dropping(router),
        "down": lambda: setup.client.link_down("wlan0"),
        "nothing happens": nullcontext,
        "the client stops": lambda: setup.client.changed(["kill", "-STOP", pid], ["kill", "-CONT", pid]),
        "a second transfer begins and ends": lambda: setup.client.running(setup.download or setup.upload),
        "the origin sends 10 Mbit/s": lambda: slow_origin(setup.testbed, 10),
    }
    return events[event]()


@dataclass(frozen=True, slots=True)
class Settings:
    rtt: tuple[int, ...] = parameter("RTTs of both paths in ms", "20,60", several(whole(most=MAX_RTT)), quick="20")
    fault: tuple[str, ...] = choices("faults of Wi-Fi", FAULTS)
    runs: int = parameter("number of runs per variant", "5", whole(), quick="1")
    direction: tuple[str, ...] = choices("direction of the transfer", AFTER_SECONDS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the varied settings; *rtt* is in ms. *event* is the name of a fault or of a control."""

    direction: str
    rtt: int
    event: str

    def __str__(self) -> str:
        return f"{self.direction}, {self.rtt} ms, {self.event if self.is_control else FAULTS[self.event]}"

    @property
    def is_control(self) -> bool:
        """Whether the cell is a transfer without a fault."""
        return self.event not in FAULTS


@dataclass(frozen=True, slots=True)
class Control:
    """One transfer without a fault."""

    # A connection without a subflow on Wi-Fi has no cap that the guard could relax.
    wifi: float = figure("Wi-Fi before the event", unit=" Mbit/s", scale=1e-6, least=0.1)
    relaxations: int = figure("relaxations", by="most", digits=0, most=0)


def _figure(guard: str, heading: str, aim: str, **column: Any) -> Any:
    """Return a field with an aim for the runs with the *guard* on or off."""
    return figure(heading, aim=aim, judged=lambda row: row.variant == guard, **column)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transfer with a fault. Times are in seconds; infinity if the event did not happen before the samples end."""

    before: float = figure(
        "Wi-Fi before, share", aim="Wi-Fi before the fault / its link", scale=1e-6 / WIFI, least=0.8, most=1.2
    )
    """Wi-Fi's rate before the fault, in bits/s."""
    recovered: float = _figure(
        ON, "recovery after s", "recovery from the fault after", unit=" s",
        most=of_cell(lambda cell: MAX_RECOVERY_SECONDS[cell.direction]),
    )  # fmt: skip
    """Seconds from the fault until the connection's rate is at least ``MIN_RECOVERY`` times :attr:`before`."""
    during: float = _figure(
        OFF, "rate in the fault, share", "rate in the fault without the guard, share", most=MIN_RECOVERY
    )
    """Rate of the connection from two seconds after the fault to the fault's end, as a share of :attr:`before`."""
    in_force: float = _figure(
        ON, "cap in force after s", "cap in force again after", unit=" s",
        most=of_cell(lambda cell: AFTER_SECONDS[cell.direction] - CAP_WINDOW_SECONDS - WINDOW_SECONDS),
    )  # fmt: skip
    """Seconds from the end of the fault until Ethernet stays at its cap."""
    relaxations: int = _figure(OFF, "relaxations", "relaxations without the guard", by="most", digits=0, most=0)
    """Number of times that the guard relaxed the cap."""
    excess: float = _figure(ON, "excess", "data above the cap / data that Wi-Fi lacks", most=1.1)
    """Data that Ethernet carried above its cap until the cap was in force again / the data that Wi-Fi lacked."""


def cells(chosen: Settings) -> list[Cell]:
    """Return, for each RTT and direction, the cells of the faults, then the cells of the controls."""
    controls = {"down": CONTROLS, "up": CONTROLS[:-1]}
    pairs = product(chosen.rtt, chosen.direction)
    return [Cell(direction, rtt, event) for rtt, direction in pairs for event in (*chosen.fault, *controls[direction])]


@contextmanager
def bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Setup]:
    """Build a testbed for all cells of one direction and RTT."""
    direction, rtt = cells[0].direction, cells[0].rtt
    with Testbed(paths(two_paths((ETHERNET, WIFI), (rtt, rtt))), seed=seed) as testbed:
        yield Setup.start(testbed, _policy(True, direction), down=direction == "down", up=direction == "up")


def measure(setup: Setup, turn: Turn[Cell]) -> Outcome | Control:
    """Run a transfer with a fault of Wi-Fi, or a control."""
    cell = turn.cell
    setup.load_while_idle(_policy(turn.variant != OFF, cell.direction), ["cap"])
    relaxations = _relaxations(setup)
    with _start_transfer(setup) as (client, recorder):
        recorder.wait(WARM_UP_SECONDS)
        until = recorder.now
        with _during(cell.event, setup, client):
            # Under load the fault's command takes a second. Data that arrives during the command is not a recovery.
            fault_at = recorder.now
            recorder.wait(fault_at + (FAULT_SECONDS / 2 if cell.is_control else FAULT_SECONDS))
        recorder.wait(fault_at + FAULT_SECONDS + (0 if cell.is_control else AFTER_SECONDS[cell.direction]))
    samples, relaxations = recorder.samples, _relaxations(setup) - relaxations
    if cell.is_control:
        return Control(mean_rate(samples, "wlan0", WARM_UP_SECONDS / 2, WARM_UP_SECONDS), relaxations)
    return evaluate(samples, until, fault_at, relaxations)


@contextmanager
def _start_transfer(setup: Setup) -> Iterator[tuple[Process, Recorder]]:
    """Start a transfer; yield its process and a recorder of its paths. For an upload, first wait for the cap."""

    def in_force() -> bool:
        status = setup.throttler.status()
        rates = [each["rate"] for each in status["classes"] if each["direction"] == "up"]
        return bool(status["counters"]["upload_entries"]) and rates == [CAP * 1_000_000]

    with setup.client.running(setup.download or setup.upload) as process:
        if setup.upload:
            wait_until(in_force, "the cap is in force", timeout=30)
        download = Recorder(setup.client, DEVICES) if setup.download else None
        with download or upload_recorder(setup.proxy, setup.client) as recorder:
            yield process, recorder


def _relaxations(setup: Setup) -> int:
    return int(setup.throttler.status()["counters"]["guard"]["relaxations"])


def _policy(guard: bool, direction: str) -> str:
    rule = f"{{name: cap, paths: [ethernet], direction: {direction}, throttle: {{rate: {CAP} Mbit/s}}}}"
    return f"{POLICY_PATHS}guard: {{enabled: {str(guard).lower()}}}\nrules: [{rule}]\n"


def evaluate(samples: Sequence[Sample], until: float, fault_at: float, relaxations: int) -> Outcome:
    """Return a transfer's outcome. The fault began between *until* and *fault_at*.

    Raises ValueError if Wi-Fi carried no data before the fault.
    """
    before = mean_rate(samples, "wlan0", until - 2, until)
    if before <= 0:
        raise ValueError("no data arrived over Wi-Fi before the fault")
    end = fault_at + FAULT_SECONDS
    # Data that arrives as the fault ends is not a recovery.
    totals = windows([sample for sample in samples if sample.time <= end - 0.2], DEVICES, WINDOW_SECONDS, fault_at)
    recovered = next((begin + WINDOW_SECONDS for begin, rate in totals if rate >= MIN_RECOVERY * before), math.inf)
    cap_at = _end_of_excess(samples, end)
    excess_end = min(cap_at, samples[-1].time)
    excess = max(0.0, mean_rate(samples, "eth0", fault_at, excess_end) - CAP * 1e6)
    return Outcome(
        before=before,
        recovered=recovered - fault_at,
        during=sum(mean_rate(samples, device, fault_at + 2, end) for device in DEVICES) / before,
        in_force=cap_at - end,
        relaxations=relaxations,
        excess=excess / max(1.0, before - mean_rate(samples, "wlan0", fault_at, excess_end)),
    )


def _end_of_excess(samples: Sequence[Sample], end: float) -> float:
    """Return the end of the last second above the cap after *end*; infinity if no recorded second follows it."""
    rates = windows(samples, ("eth0",), CAP_WINDOW_SECONDS, end)
    last = max((begin + CAP_WINDOW_SECONDS for begin, rate in rates if rate > 1.1e6 * CAP), default=end)
    return last if last + CAP_WINDOW_SECONDS <= samples[-1].time else math.inf


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize"),
    cells=cells,
    shared_bed=lambda cell: f"{cell.direction}, {cell.rtt} ms",
    variants=lambda chosen, cell: ("",) if cell.is_control else (ON, OFF),
    runs=lambda chosen, cell, variant: 1 if cell.is_control else chosen.runs,
    bed=bed,
    measure=measure,
    tables=(
        Table(
            "Wi-Fi fails while Ethernet is capped",
            (RUNS, *columns_of(Outcome)),
            (
                ("", lambda row: row.cell.direction), ("RTT", lambda row: f"{row.cell.rtt} ms"),
                ("Wi-Fi", lambda row: FAULTS[row.cell.event]), ("guard", lambda row: row.variant),
            ),
            of=lambda row: not row.cell.is_control,
        ),
        Table("Without a fault", columns_of(Control), (("control", str),), of=lambda row: row.cell.is_control),
    ),
)  # fmt: skip
