"""What the experiment ``recovery`` asks of one run: of its samples, and of the kernel's dumps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mptcp_lab.testbed.recorder import Sample, greatest_rate, longest_gap, mean_rate

from .aims import Aim

DEVICES = ("eth0", "wlan0")
BEFORE = 2.0
"""Seconds before the kill over which the steady rates are taken."""
GAP = 0.25
"""Seconds below half of the steady rate that count as no gap: two and a half samples."""
WINDOW = 0.5
"""Seconds over which the cap must hold at every moment from the kill to the end."""
RESTART = 10.0
"""Seconds until the restarted throttler has the caps again."""
LEAST, MOST = 0.95, 1.05
"""Of a cap, a link, and the goodput before."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One run with one adapter. Times are seconds on the clock of the samples; dumps are texts of what differs."""

    backend: str
    samples: Sequence[Sample]
    """Of a download from before the kill to ``end``."""
    killed: float
    restarted: float
    same: float
    """When the restarted throttler had the same caps on the same subflows; infinity if it never had."""
    ready: float
    """From when on the caps are to hold again."""
    end: float
    capped: int
    """Subflows with a class, before the kill."""
    installed: int
    """Dumps that the throttler changed by its start: where there are none, nothing could be left either."""
    by_kill: Sequence[str]
    by_restart: Sequence[str]
    after_cleanup: Sequence[str] = field(default=())
    after_stop: Sequence[str] = field(default=())
    exit_code: int | None = 0

    def rates(self) -> dict[str, dict[str, float]]:
        """Return the mean bits/s of each device before the kill, without a throttler, and after the restart."""
        phases = {
            "before": (self.killed - BEFORE, self.killed),
            "dead": (self.killed, self.restarted),
            "after": (self.ready, self.end),
        }
        return {name: {d: mean_rate(self.samples, d, *span) for d in DEVICES} for name, span in phases.items()}


def judge(seen: Observed, cap: int, wifi: int) -> list[Aim]:
    """Return the aims; *cap* is Ethernet's, *wifi* the other link's rate, bits/s.

    Raises ValueError where the samples do not hold the run.
    """
    rates = seen.rates()
    total = sum(rates["before"].values())
    aims = [
        Aim("capped subflows before the kill", seen.capped, least=1),
        Aim("dumps that the throttler's start changed", seen.installed, least=1),
        Aim("dumps that changed by kill -9", len(seen.by_kill), most=0),
        Aim("dumps that changed by the restart", len(seen.by_restart), most=0),
        Aim("restart to the same caps on the same subflows", seen.same - seen.restarted, " s", most=RESTART),
        Aim("Wi-Fi / its link, before", rates["before"]["wlan0"] / wifi, least=LEAST, most=MOST),
    ]
    aims += [Aim(f"Ethernet / its cap, {name}", r["eth0"] / cap, least=LEAST, most=MOST) for name, r in rates.items()]
    # The moments in which one throttler is gone and the next begins are too short for a mean of their own.
    most = greatest_rate(seen.samples, "eth0", WINDOW, seen.killed, seen.end)
    after = sum(rates["after"].values()) / total if total else float("nan")
    gap = longest_gap(seen.samples, DEVICES, total / 2, seen.killed, seen.end)
    aims += [
        Aim(f"Ethernet / its cap, greatest over {WINDOW:g} s from the kill to the end", most / cap, most=MOST),
        Aim("goodput after / before", after, least=LEAST),
        Aim("longest gap in goodput", gap, " s", most=GAP),
        Aim("cleanup after kill -9: dumps that differ", len(seen.after_cleanup), most=0),
        Aim("SIGTERM: dumps that differ", len(seen.after_stop), most=0),
        Aim("exit code after SIGTERM", float("nan") if seen.exit_code is None else seen.exit_code, least=0, most=0),
    ]
    return [Aim(f"{seen.backend}: {a.what}", a.value, a.unit, a.least, a.most) for a in aims]
