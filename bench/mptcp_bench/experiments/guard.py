# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard: the rate of a capped connection when its other path degrades, with the guard and without it.

A download or an upload uses Ethernet, which is capped, and Wi-Fi. Then Wi-Fi has a fault for some seconds: it loses
some packets, slows down, loses all packets, or goes down at the client. The experiment measures the time until the
connection has the rate again that Wi-Fi had, and the time from the end of the fault until the cap is in force again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate, windows
from mptcp_lab.testbed.services import wait_until

from .columns import RUNS, Table, Turn, columns_of, figure, of_cell
from .devices import DEVICES, POLICY_PATHS
from .parameters import MAX_RTT, choices, parameter, several, whole
from .scenario import Scenario
from .setup import Setup
from .two_paths import dropping, hop_shaper, two_paths, upload_recorder

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


def _fault(name: str, setup: Setup) -> AbstractContextManager[None]:
    """Return a context manager for a fault of Wi-Fi."""
    router, device = setup.testbed["hop2"], "lan" if setup.download else "wan"
    if name == "rate":
        return router.changed(hop_shaper(SLOW_RATE, device), hop_shaper(WIFI, device))
    if name == "down":
        return setup.client.link_down("wlan0")
    return dropping(router, f"numgen random mod 100 < {LOSS_PERCENT} drop" if name == "loss" else "drop")


@dataclass(frozen=True, slots=True)
class Settings:
    rtt: tuple[int, ...] = parameter("RTTs of both paths in ms", "20,60", several(whole(most=MAX_RTT)), quick="20")
    fault: tuple[str, ...] = choices("faults of Wi-Fi", FAULTS)
    runs: int = parameter("number of runs per variant", "5", whole(), quick="1")
    direction: tuple[str, ...] = choices("direction of the transfer", AFTER_SECONDS)


@dataclass(frozen=True, slots=True)
class Cell:
    """A direction, an RTT in milliseconds, and a fault."""

    direction: str
    rtt: int
    fault: str

    def __str__(self) -> str:
        return f"{self.direction}, {self.rtt} ms, {FAULTS[self.fault]}"


def _figure(guard: str, heading: str, aim: str, **column: Any) -> Any:
    """Return a field with an aim for the runs with the *guard* on or off."""
    return figure(heading, aim=aim, judged=lambda row: row.variant == guard, **column)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transfer with a fault. Times are in seconds; infinity if the event did not happen in the recorded time."""

    before: float = figure(
        "Wi-Fi / link", aim="Wi-Fi before the fault / its link", scale=1e-6 / WIFI, least=0.8, most=1.2
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


@contextmanager
def bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Setup]:
    """Build a testbed for all cells of one direction and RTT."""
    direction, rtt = cells[0].direction, cells[0].rtt
    with Testbed(paths(two_paths((ETHERNET, WIFI), (rtt, rtt))), seed=seed) as testbed:
        yield Setup.start(testbed, _policy(True, direction), down=direction == "down", up=direction == "up")


def measure(setup: Setup, turn: Turn[Cell]) -> Outcome:
    """Run a transfer with a fault of Wi-Fi."""
    direction = turn.cell.direction
    setup.load_while_idle(_policy(turn.variant == ON, direction), ["cap"])
    relaxations = _relaxations(setup)
    with _start_transfer(setup) as recorder:
        recorder.wait(WARM_UP_SECONDS)
        until = recorder.now
        with _fault(turn.cell.fault, setup):
            # Under load the fault's command takes a second. Data that arrives during the command is not a recovery.
            fault_at = recorder.now
            recorder.wait(fault_at + FAULT_SECONDS)
        recorder.wait(fault_at + FAULT_SECONDS + AFTER_SECONDS[direction])
    return evaluate(recorder.samples, until, fault_at, _relaxations(setup) - relaxations)


@contextmanager
def _start_transfer(setup: Setup) -> Iterator[Recorder]:
    """Start a transfer; yield a recorder of its paths. For an upload, first wait for the cap."""

    def in_force() -> bool:
        status = setup.throttler.status()
        rates = [each["rate"] for each in status["classes"] if each["direction"] == "up"]
        return bool(status["counters"]["upload_entries"]) and rates == [CAP * 1_000_000]

    with setup.client.running(setup.download or setup.upload):
        if setup.upload:
            wait_until(in_force, "the cap is in force", timeout=30)
        download = Recorder(setup.client, DEVICES) if setup.download else None
        with download or upload_recorder(setup.proxy, setup.client) as recorder:
            yield recorder


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
    rates = windows(samples, ("eth0",), CAP_WINDOW_SECONDS, end)
    excess_end = max((begin + CAP_WINDOW_SECONDS for begin, rate in rates if rate > 1.1e6 * CAP), default=end)
    # The cap is in force if at least one more second was recorded.
    is_in_force = excess_end + CAP_WINDOW_SECONDS <= samples[-1].time
    excess = max(0.0, mean_rate(samples, "eth0", fault_at, excess_end) - CAP * 1e6)
    return Outcome(
        before=before,
        recovered=recovered - fault_at,
        during=sum(mean_rate(samples, device, fault_at + 2, end) for device in DEVICES) / before,
        in_force=excess_end - end if is_in_force else math.inf,
        relaxations=relaxations,
        excess=excess / max(1.0, before - mean_rate(samples, "wlan0", fault_at, excess_end)),
    )


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize"),
    cells=lambda chosen: [Cell(*each) for each in product(chosen.direction, chosen.rtt, chosen.fault)],
    shared_bed=lambda cell: f"{cell.direction}, {cell.rtt} ms",
    variants=lambda chosen, cell: (ON, OFF),
    bed=bed,
    measure=measure,
    tables=[
        Table(
            "Wi-Fi fails while Ethernet is capped",
            (RUNS, *columns_of(Outcome)),
            (
                ("", lambda row: row.cell.direction), ("RTT", lambda row: f"{row.cell.rtt} ms"),
                ("Wi-Fi", lambda row: FAULTS[row.cell.fault]), ("guard", lambda row: row.variant),
            ),
        ),
    ],
)  # fmt: skip
