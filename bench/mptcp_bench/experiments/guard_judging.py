# SPDX-License-Identifier: GPL-2.0-or-later
"""Judges and shows what the experiment ``guard`` measured. Pure."""

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
"""Mbit/s."""
WARM, FAULT, AFTER = 4.0, 8.0, 12.0
"""Seconds before the fault, of the fault, and after it."""
AFTER_UPLOAD, AFTER_LIFTED = 24.0, 4.0
"""Seconds after the fault if the cap falls as slowly as on uploads, and if it was lifted for good."""
RECOVERED, LONGEST = 0.8, 2.0
"""What the connection must get again, as a share of Wi-Fi's rate before, and within how many seconds. For a download
they count from the fault; for an upload beyond the time without the cap, for a client's scheduler waits for Wi-Fi
too."""
CAPPED_BEFORE, WIFI_BEFORE = 1.5, (0.8, 1.2)
"""Before the fault: most of Ethernet's cap; least and most of Wi-Fi's link, whose rate is emulated."""
CAP_SPAN, CAP_EXCESS = 1.0, 1.1
"""Seconds over which Ethernet is compared with its cap, and the multiple above which the cap is not in force."""
USED = 0.1
"""Mbit/s that Wi-Fi must carry at least in a transfer without a fault: some need little."""
SLOW = 5
"""Mbit/s of Wi-Fi with the fault ``rate``."""
LOSS = 30
"""Percent of Wi-Fi's packets with the fault ``loss``."""
SPAN = 0.5
"""Seconds over which a rate is taken."""
BEYOND = 1.1
"""What the guard may let pass, as a multiple of what is lacking."""
SHOWN = ("recovered", "during", "in_force", "relaxations", "beyond")
WORDS = {
    "loss": f"loses {LOSS} %",
    "rate": f"slows to {SLOW} Mbit/s",
    "silence": "loses everything",
    "down": "goes down",
}


class Arm(StrEnum):
    """What happens to the cap."""

    ON = "on"
    OFF = "off"
    LIFTED = "cap lifted by hand"
    """Without a guard, a policy without the cap takes effect with the fault: no guard is faster."""


ARMS = {"down": (Arm.ON, Arm.OFF), "up": (Arm.ON, Arm.OFF, Arm.LIFTED)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transfer with a fault. Times in seconds; infinite if it did not happen before the samples end."""

    before: float
    """Wi-Fi's rate before the fault, bits/s."""
    capped: float
    """Ethernet's rate before the fault, as a multiple of its cap."""
    during: float
    """Rate of the connection from ``LONGEST`` after the fault to the fault's end, as a share of :attr:`before`."""
    recovered: float
    """From the fault until the connection gets ``RECOVERED`` of :attr:`before`."""
    in_force: float
    """From the end of the fault until Ethernet is back at its cap for good."""
    relaxations: int
    beyond: float
    """What Ethernet carried above its cap until it was back there, as a multiple of what Wi-Fi carried less."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the varied settings; *rtt* in ms."""

    direction: str
    rtt: int
    fault: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, with its samples for the picture."""

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
    """Wi-Fi's rate at the begin of the transfer, bits/s."""


def judge(samples: Sequence[Sample], fault_at: float, relaxations: int, until: float | None = None) -> Outcome:
    """Judge a transfer whose fault began between *until* and *fault_at*; *until* None: exactly at *fault_at*.

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
    """Return when the last second above the cap ended; infinite if that is the last second of all."""
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
    """Return how many seconds a transfer is watched after the fault."""
    if arm is Arm.LIFTED:
        return AFTER_LIFTED
    return AFTER if direction == "down" else AFTER_UPLOAD


def aims(
    measured: Sequence[Measured], controls: Mapping[str, Unharmed], planned: Sequence[Cell], runs: int
) -> list[Aim]:
    """Return the aims of the *planned* cells, each with *runs* runs with the guard and as many without.

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
            # A transfer over one path, or an empty one, has no cap that the guard could relax.
            Aim(f"{name}: Wi-Fi at first", control.wifi / 1e6, " Mbit/s", least=USED),
            Aim(f"{name}: relaxations", control.relaxations, most=0),
        ]
    return found


def _recovery_aims(where: str, with_guard: Sequence[Outcome], lifted: Sequence[Outcome] | None) -> list[Aim]:
    """Return the aims of the guard, compared with the cap *lifted* by hand if that was measured.

    With several runs of both, the upper bound of the difference counts, by Welch. One run of each gives a figure with a
    bound, not a comparison.
    """
    recovered = fmean(each.recovered for each in with_guard)
    if lifted is None:
        return [Aim(f"{where}: recovers after", recovered, " s", most=LONGEST)]
    # A client that does not recover before the fault ends does so then.
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
