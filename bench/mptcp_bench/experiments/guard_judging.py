# SPDX-License-Identifier: GPL-2.0-or-later
"""Judge and tabulate the measurements of the experiment ``guard``. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from rich.table import Table

from mptcp_lab.testbed.recorder import Sample, mean_rate

from ..statistics import compare, fmean
from .aims import Aim
from .devices import DEVICES
from .tables import mean, new_table

ETHERNET, WIFI, CAP = 100, 30, 5
"""Rates of Ethernet and Wi-Fi, and Ethernet's cap, in Mbit/s."""
WARM, FAULT, AFTER = 4.0, 8.0, 12.0
"""Seconds that are recorded before the fault, seconds of the fault, and seconds recorded after it."""
AFTER_UPLOAD, AFTER_LIFTED = 24.0, 4.0
"""Seconds recorded after the fault of an upload, whose cap returns slowly, and after a cap that was lifted for good."""
RECOVERED, LONGEST = 0.8, 2.0
"""The connection must regain this share of Wi-Fi's rate before the fault, within this number of seconds. A download's
seconds count from the fault. An upload may take this much longer than with the cap lifted by hand, because the client's
own scheduler also waits for Wi-Fi."""
CAPPED_BEFORE, WIFI_BEFORE = 1.5, (0.8, 1.2)
"""Rates before the fault: the most on Ethernet as a multiple of its cap; the least and most on Wi-Fi as a share of its
emulated link."""
CAP_SPAN, CAP_EXCESS = 1.0, 1.1
"""Seconds over which Ethernet's rate is compared with its cap. Above this multiple, the cap is not in force."""
USED = 0.1
"""Least rate of Wi-Fi in Mbit/s in a transfer without a fault. Some of these transfers need little."""
SLOW = 5
"""Rate of Wi-Fi during the fault ``rate``, in Mbit/s."""
LOSS = 30
"""Percentage of Wi-Fi's packets that the fault ``loss`` drops."""
SPAN = 0.5
"""Seconds over which a rate is measured."""
BEYOND = 1.1
"""Most data that may pass beyond the cap, as a multiple of the data that Wi-Fi carried less."""
SHOWN = ("recovered", "during", "in_force", "relaxations", "beyond")
WORDS = {
    "loss": f"loses {LOSS} %",
    "rate": f"slows to {SLOW} Mbit/s",
    "silence": "loses everything",
    "down": "goes down",
}


class Arm(StrEnum):
    """What is done about the fault: the guard is on, it is off, or the cap is lifted by hand."""

    ON = "on"
    OFF = "off"
    LIFTED = "cap lifted by hand"
    """The guard is off, and a policy without the cap is loaded at the moment of the fault. No guard could be faster."""


ARMS = {"down": (Arm.ON, Arm.OFF), "up": (Arm.ON, Arm.OFF, Arm.LIFTED)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transfer with a fault. Times are in seconds; infinite if the event did not happen before the samples end."""

    before: float
    """Wi-Fi's rate before the fault, bits/s."""
    capped: float
    """Ethernet's rate before the fault, as a multiple of its cap."""
    during: float
    """Rate of the connection from ``LONGEST`` after the fault to the fault's end, as a share of :attr:`before`."""
    recovered: float
    """Seconds from the fault until the connection gets ``RECOVERED`` of :attr:`before`."""
    in_force: float
    """Seconds from the end of the fault until Ethernet stays at its cap."""
    relaxations: int
    beyond: float
    """Data that Ethernet carried above its cap until the cap was back, as a multiple of what Wi-Fi carried less."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the settings that are varied; *rtt* is in ms."""

    direction: str
    rtt: int
    fault: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a transfer with a fault, with its samples for the picture."""

    cell: Cell
    arm: Arm
    outcome: Outcome
    fault_at: float
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Unharmed:
    """One transfer without a fault."""

    relaxations: int
    wifi: float
    """Wi-Fi's rate at the beginning of the transfer, bits/s."""


def judge(samples: Sequence[Sample], fault_at: float, relaxations: int, until: float | None = None) -> Outcome:
    """Judge a transfer. The fault began between *until* and *fault_at*; if *until* is None, exactly at *fault_at*.

    Raises ValueError if there are too few samples, or if Wi-Fi carried nothing before the fault.
    """
    until = fault_at if until is None else until
    before = mean_rate(samples, "wlan0", until - 2, until)
    if before <= 0:
        raise ValueError("nothing came over Wi-Fi before the fault")
    ended = fault_at + FAULT

    def total(start: float, end: float) -> float:
        return sum(mean_rate(samples, device, start, end) for device in DEVICES) / before

    starts = [s.time for s in samples if fault_at <= s.time <= ended - SPAN - 0.2]
    recovered = next((t + SPAN for t in starts if total(t, t + SPAN + 0.01) >= RECOVERED), math.inf)
    capped_from = _capped_from(samples, ended)
    until_capped = min(capped_from, samples[-1].time)
    span = until_capped - fault_at
    above = max(0.0, mean_rate(samples, "eth0", fault_at, until_capped) - CAP * 1e6) * span
    lacking = max(1.0, before - mean_rate(samples, "wlan0", fault_at, until_capped)) * span
    return Outcome(
        before=before,
        capped=mean_rate(samples, "eth0", until - 2, until) / (CAP * 1e6),
        during=total(fault_at + LONGEST, ended),
        recovered=recovered - fault_at,
        in_force=capped_from - ended,
        relaxations=relaxations,
        beyond=above / lacking,
    )


def _capped_from(samples: Sequence[Sample], ended: float) -> float:
    """Return the end of the last second above the cap after *ended*; infinite if it is the last recorded second."""
    above: list[bool] = []
    capped_from = ended
    for sample in samples:
        with suppress(ValueError):
            start = sample.time
            if start >= ended and start + CAP_SPAN <= samples[-1].time:
                above.append(mean_rate(samples, "eth0", start, start + CAP_SPAN + 0.01) > CAP * 1e6 * CAP_EXCESS)
                if above[-1]:
                    capped_from = start + CAP_SPAN
    if not above:
        raise ValueError("no second of samples after the fault")
    return math.inf if above[-1] else capped_from


def after(direction: str, arm: Arm = Arm.ON) -> float:
    """Return for how many seconds after the fault a transfer is recorded."""
    if arm is Arm.LIFTED:
        return AFTER_LIFTED
    return AFTER if direction == "down" else AFTER_UPLOAD


def aims(
    measured: Sequence[Measured], controls: Mapping[str, Unharmed], planned: Sequence[Cell], runs: int
) -> list[Aim]:
    """Return the aims of the *planned* cells. Each cell should have *runs* runs in each of its arms.

    *controls* are the transfers without a fault, by name.
    """
    found = []
    for cell in planned:
        where = f"{cell.direction}, {cell.rtt} ms, {WORDS[cell.fault]}"
        outcomes = {
            arm: [m.outcome for m in measured if (m.cell, m.arm) == (cell, arm)] for arm in ARMS[cell.direction]
        }
        found += [Aim(f"{where}: runs, guard {arm}", len(there), least=runs) for arm, there in outcomes.items()]
        if not all(outcomes.values()):
            continue
        every = [each for there in outcomes.values() for each in there]
        with_guard, without = outcomes[Arm.ON], outcomes[Arm.OFF]
        farthest = max((each.before / (WIFI * 1e6) for each in every), key=lambda share: abs(share - 1))
        found += [
            Aim(f"{where}: Ethernet before, × its cap", max(each.capped for each in every), most=CAPPED_BEFORE),
            Aim(f"{where}: Wi-Fi before, of its link", farthest, least=WIFI_BEFORE[0], most=WIFI_BEFORE[1]),
            Aim(f"{where}: without the guard gets", fmean(each.during for each in without), most=RECOVERED),
            Aim(f"{where}: without the guard relaxed", max(each.relaxations for each in without), most=0),
            Aim(
                f"{where}: beyond the cap, × what Wi-Fi lacks",
                fmean(each.beyond for each in with_guard),
                most=BEYOND,
            ),
            *_recovery_aims(where, with_guard, outcomes.get(Arm.LIFTED)),
            Aim(
                f"{where}: the cap is back after",
                fmean(each.in_force for each in with_guard),
                " s",
                most=after(cell.direction) - CAP_SPAN - SPAN,
            ),
        ]
    found.append(Aim("transfers without a fault", len(controls), least=1))
    for name, control in controls.items():
        found += [
            # A transfer that does not use Wi-Fi has no cap that the guard could relax, so it would prove nothing.
            Aim(f"{name}: Wi-Fi at first", control.wifi / 1e6, " Mbit/s", least=USED),
            Aim(f"{name}: relaxations", control.relaxations, most=0),
        ]
    return found


def _recovery_aims(where: str, with_guard: Sequence[Outcome], lifted: Sequence[Outcome] | None) -> list[Aim]:
    """Return the aims of the guard, compared with runs whose cap was *lifted* by hand, if there were any.

    With several runs of both, the aim is for the upper bound of the difference (Welch). With one run of each, it is
    for the difference itself.
    """
    recovered = fmean(each.recovered for each in with_guard)
    if lifted is None:
        return [Aim(f"{where}: recovers after", recovered, " s", most=LONGEST)]
    # If a client does not recover during the fault, it does when the fault ends.
    at_best = [min(each.recovered, FAULT) for each in lifted]
    later, bound = recovered - fmean(at_best), ""
    if math.isfinite(later):
        high = compare([each.recovered for each in with_guard], at_best).high
        later, bound = (later, "") if high is None else (high, ", upper bound")
    above = min(min(each.in_force, AFTER_LIFTED) for each in lifted)
    return [
        Aim(f"{where}: recovers later than with the cap lifted by hand by{bound}", later, " s", most=LONGEST),
        Aim(f"{where}: lifted by hand, Ethernet is above the cap for", above, " s", least=AFTER_LIFTED - 2 * CAP_SPAN),
    ]


def table_of(measured: Sequence[Measured]) -> Table:
    """Return the means of the transfers with a fault."""
    columns = (
        "",
        "RTT",
        "Wi-Fi",
        "guard",
        "runs",
        "Wi-Fi before",
        "gets again after s",
        "then",
        "cap back after s",
        "n",
        "beyond",
    )
    table = new_table("Wi-Fi fails while Ethernet is capped", columns, left=("", "Wi-Fi", "guard"))
    for cell in dict.fromkeys(m.cell for m in measured):
        for arm in ARMS[cell.direction]:
            chosen = [m.outcome for m in measured if (m.cell, m.arm) == (cell, arm)]
            if chosen:
                table.add_row(
                    cell.direction, f"{cell.rtt} ms", WORDS[cell.fault], arm, str(len(chosen)),
                    mean([each.before for each in chosen], 1e-6),
                    *(mean([float(getattr(each, name)) for each in chosen]) for name in SHOWN),
                )  # fmt: skip
    return table


def controls_table(controls: Mapping[str, Unharmed]) -> Table:
    table = new_table("Without a fault", ("control", "Wi-Fi at first", "relaxations"), left=("control",))
    for name, control in controls.items():
        table.add_row(name, mean([control.wifi], 1e-6), str(control.relaxations))
    return table
