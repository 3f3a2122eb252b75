# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims of the experiment ``control-plane``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .aims import Aim

AIM_RATE = 500
"""Connections per second that the throttler must keep up with."""
PACE = 0.98
"""Least share of the asked rate that the client must reach, and least share of its connections that get a join."""


def judge(runs: Sequence[Mapping[str, Any]], offered: Sequence[str]) -> list[Aim]:
    """Return the aims of all *runs*, for each *offered* adapter. Runs at a higher rate than AIM_RATE are only shown."""
    aimed = [run["backend"] for run in runs if run["asked"] == AIM_RATE]
    aims = [Aim(f"{backend}: runs at {AIM_RATE} connections/s", aimed.count(backend), least=1) for backend in offered]
    return aims + [aim for run in runs for aim in _judge(run["backend"], run["asked"], run)]


def _judge(backend: str, rate: int, sample: Mapping[str, Any]) -> list[Aim]:
    name, asked = f"{backend}, {rate} connections/s", rate <= AIM_RATE
    none = 0.0 if asked else None
    joined = sample["joins"] / sample["connections"] if sample["connections"] else 0.0
    return [
        # If the client opens fewer connections, the run proves only a lower rate.
        Aim(f"{name}: opened per second", sample["rate"], least=PACE * rate if asked else None),
        Aim(f"{name}: joins for each connection", joined, least=PACE if asked else None),
        Aim(f"{name}: opened by the tracker, less made", sample["opened_less_made"], least=none, most=none),
        Aim(f"{name}: subflows activated, less made", sample["activated_less_made"], least=none, most=none),
        Aim(f"{name}: connections without entry, or whose entry stayed", sample["lost"], least=none, most=none),
        Aim(f"{name}: path-manager events lost", sample["events_lost"], most=none),
        Aim(f"{name}: segments dropped", sample["dropped"], most=none),
        Aim(f"{name}: share of one core", 100 * sample["cpu"], " %", most=100 if asked else None),
    ]
