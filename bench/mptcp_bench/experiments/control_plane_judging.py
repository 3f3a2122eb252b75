"""Judges what the experiment ``control-plane`` measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .aims import Aim

AIM_RATE = 1000
"""Connections a second that are asked of the throttler."""
PACE = 0.98
"""What share of the rate asked for a replay must reach."""


def judge(runs: Sequence[Mapping[str, Any]], offered: Sequence[str]) -> list[Aim]:
    """Return the aims of all *runs*; each adapter that is *offered* must have one at the aimed rate.

    Beyond that rate the numbers are shown, and nothing is asked of them.
    """
    aimed = [run["backend"] for run in runs if run["asked"] == AIM_RATE]
    aims = [
        Aim(f"{backend}: replays at {AIM_RATE} connections/s", aimed.count(backend), least=1) for backend in offered
    ]
    return aims + [aim for run in runs for aim in _judge(run["backend"], run["asked"], run)]


def _judge(backend: str, rate: int, sample: Mapping[str, Any]) -> list[Aim]:
    name, asked = f"{backend}, {rate} connections/s", rate <= AIM_RATE
    none = 0.0 if asked else None
    return [
        # A replay that cannot keep its pace would prove a lower rate.
        Aim(f"{name}: sent per second", sample["rate"], least=PACE * rate if asked else None),
        Aim(f"{name}: opened by the tracker, less sent", sample["opened_less_sent"], least=none, most=none),
        Aim(f"{name}: subflows activated, less sent", sample["activated_less_sent"], least=none, most=none),
        Aim(f"{name}: connections without entry, or whose entry stayed", sample["lost"], least=none, most=none),
        Aim(f"{name}: segments dropped", sample["dropped"], most=none),
        Aim(f"{name}: share of one core", 100 * sample["cpu"], " %", most=100 if asked else None),
    ]
