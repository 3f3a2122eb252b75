"""Judges and shows what the experiment ``guard`` measured. Pure, but for the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from rich import box
from rich.table import Table

from mptcp_lab.testbed.recorder import Sample, mean_rate, rates

from .. import style
from ..statistics import Interval, mean_interval
from .two_paths import DEVICES

ETHERNET, WIFI, CAP = 100, 30, 5
"""Mbit/s."""
WARM, ILL, WELL = 4.0, 8.0, 12.0
"""Seconds before the fault, until it heals, and after."""
WELL_UPLOAD = 24.0
"""The same where the cap falls as slowly as on uploads."""
RECOVERED, LONGEST = 0.8, 2.0
"""What the connection is to get again, as a share of Wi-Fi's rate before, and the seconds within which."""
SLOW = 5
"""Mbit/s of Wi-Fi with the fault ``rate``."""
LOSS = 30
"""Percent of Wi-Fi's packets with the fault ``loss``."""
SPAN = 0.5
"""Seconds over which a rate is taken."""
SHOWN = ("recovered", "during", "in_force", "relaxations")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One download with a fault. Times in seconds."""

    before: float
    """Wi-Fi's rate before, bits/s."""
    during: float
    """What the connection got from ``LONGEST`` after the fault until it healed, as a share of that."""
    recovered: float
    """From the fault until the connection gets ``RECOVERED`` of that; the whole time of the fault if never."""
    in_force: float
    """From the healing until Ethernet is back at its cap for good."""
    relaxations: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, with its samples for the picture."""

    direction: str
    rtt: int
    fault: str
    guarded: bool
    outcome: Outcome
    fault_at: float
    samples: tuple[Sample, ...]


def judge(samples: Sequence[Sample], fault_at: float, relaxations: int) -> Outcome:
    """Judge a download that was harmed at *fault_at*. Raises ValueError where there are too few samples."""
    before = mean_rate(samples, "wlan0", fault_at - 2, fault_at)
    healed = fault_at + ILL

    def total(start: float, end: float) -> float:
        return sum(mean_rate(samples, device, start, end) for device in DEVICES) / before

    starts = [s.time for s in samples if fault_at <= s.time <= healed - SPAN - 0.2]
    recovered = next((t + SPAN for t in starts if total(t, t + SPAN + 0.01) >= RECOVERED), healed)
    capped_from = healed
    for sample in samples:
        with suppress(ValueError):
            start = sample.time
            if start >= healed and mean_rate(samples, "eth0", start, start + 1.01) > CAP * 1e6 * 1.1:
                capped_from = start + 1
    return Outcome(
        before=before,
        during=total(fault_at + LONGEST, healed),
        recovered=recovered - fault_at,
        in_force=capped_from - healed,
        relaxations=relaxations,
    )


def judged(measured: Sequence[Measured]) -> tuple[Table, list[str]]:
    """Return the table, and what of the aims was missed by the means of the guarded runs."""
    table = Table(title="Wi-Fi fails while Ethernet is capped", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in (
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
    ):
        table.add_column(title, justify="left" if title in ("", "Wi-Fi", "guard") else "right", no_wrap=True)
    failures = []
    words = {
        "loss": f"loses {LOSS} %",
        "rate": f"slows to {SLOW} Mbit/s",
        "silence": "swallows all",
        "down": "goes down",
    }
    for cell in dict.fromkeys((m.direction, m.rtt, m.fault) for m in measured):
        direction, rtt, fault = cell
        for guarded in (True, False):
            chosen = [m.outcome for m in measured if (m.direction, m.rtt, m.fault) == cell and m.guarded == guarded]
            means = {f.name: mean_interval([float(getattr(o, f.name)) for o in chosen]) for f in fields(Outcome)}
            table.add_row(
                direction, f"{rtt} ms", words[fault], "on" if guarded else "off", str(len(chosen)),
                _shown(means["before"], 1e-6), *(_shown(means[name]) for name in SHOWN),
            )  # fmt: skip
            if guarded:
                where = f"{direction}, {rtt} ms, {words[fault]}"
                if means["recovered"].mean > LONGEST:
                    failures.append(f"{where}: recovers within {LONGEST} s, was {means['recovered'].mean:.2f}")
                well = WELL if direction == "down" else WELL_UPLOAD
                if means["in_force"].mean >= well - 1.5:
                    failures.append(f"{where}: the cap is back after the healing, was not within {well:g} s")
    return table, failures


def _shown(interval: Interval, scale: float = 1.0) -> str:
    half = "" if interval.half is None else f" ± {interval.half * scale:.2f}"
    return f"{interval.mean * scale:.2f}{half}"


def controls_table(controls: Mapping[str, int]) -> Table:
    table = Table(title="What is no harm", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("control")
    table.add_column("relaxations", justify="right")
    for name, count in controls.items():
        table.add_row(name, str(count))
    return table


def draw(target: Path, measured: Sequence[Measured]) -> None:
    """Draw the first fault of each kind at the first RTT, with the guard, in the first direction."""
    shown = [m for m in measured if m.guarded and (m.direction, m.rtt) == (measured[0].direction, measured[0].rtt)]
    kinds = list(dict.fromkeys(m.fault for m in shown))
    figure = style.new_figure(11, 2.3 * len(kinds) + 1)
    panels = figure.subplots(len(kinds), 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(left=0.065, right=0.985, top=1 - 1.1 / (2.3 * len(kinds) + 1), bottom=0.09, hspace=0.35)
    for axes, fault in zip(panels, kinds, strict=True):
        chosen = next(m for m in shown if m.fault == fault)
        series = [rate for rate in rates(chosen.samples) if rate.time - chosen.fault_at >= -2]
        times = [rate.time - chosen.fault_at for rate in series]
        for device, path in zip(DEVICES, (style.ETHERNET, style.WIFI), strict=True):
            style.draw_path(axes, times, [rate.bits[device] / 1e6 for rate in series], path)
        for moment in (0, ILL):
            axes.axvline(moment, color=style.INK, linestyle=style.DASHED, linewidth=1, zorder=4)
        axes.set_title(f"Wi-Fi: {fault}", loc="left", fontsize=10, color=style.INK)
        axes.set_xlim(-2, ILL + WELL)
        style.dress(axes, "seconds since the fault" if fault == kinds[-1] else "", "Mbit/s")
    panels[0].legend(loc="upper right", frameon=False)
    heading = f"Ethernet capped at {CAP} Mbit/s, RTT {measured[0].rtt} ms; between the dashed lines Wi-Fi is ill"
    style.heading(figure, "The guard", heading, left=0.065)
    style.save(figure, target)
