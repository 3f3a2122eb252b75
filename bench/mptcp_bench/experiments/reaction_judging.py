# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims of the experiment ``reaction`` for the delays measured by its probe. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from ..statistics import percentile
from .aims import Aim
from .reaction_probe_client import LATE_EVERY

LATE_MS = 200.0
"""If a connection is older than this at the join, its transfer is well under way."""
AIM_P99_MS = 5.0

JoinSample = Mapping[str, float]
"""The sample of one join, see ``reaction_joins.sample``."""


def reactions(samples: Sequence[JoinSample]) -> list[float]:
    """Return the delays in milliseconds of the joins after which a cap came into force."""
    return [sample["delay_ms"] for sample in samples if 0 <= sample["delay_ms"] < inf]


def judge(found: Mapping[str, Sequence[JoinSample]], offered: Sequence[str], count: int) -> list[Aim]:
    """Return the aims for the samples of each *offered* adapter. Each should have *count* connections."""
    return [aim for backend in offered for aim in _judge(backend, found.get(backend, ()), count)]


def _judge(backend: str, samples: Sequence[JoinSample], count: int) -> list[Aim]:
    delays = [sample["delay_ms"] for sample in samples]
    late = [sample for sample in samples if sample["age_ms"] > LATE_MS]
    early = [sample for sample in samples if sample["age_ms"] <= LATE_MS]
    name = f"{backend}: third ACK to the first packet under the cap"
    aims = [
        Aim(f"{backend}: connections that were joined", len(samples), least=count),
        Aim(f"{backend}: of these, in mid-transfer", len(late), least=count // LATE_EVERY),
        Aim(f"{backend}: of these, capped afterwards", len(reactions(samples)), least=count),
        Aim(f"{backend}: of these, capped before", sum(delay < 0 for delay in delays), most=0),
        Aim(f"{name}, median", percentile(delays, 50, default=inf), " ms"),
        Aim(f"{name}, p99", percentile(delays, 99, default=inf), " ms", most=AIM_P99_MS),
        Aim(f"{name}, greatest", percentile(delays, 100, default=inf), " ms"),
    ]
    # Leave out joins without a cap, for which both values are infinite.
    if last := [sample["delay_ms"] - sample["gap_ms"] for sample in samples if sample["gap_ms"] < inf]:
        name = f"{backend}: third ACK to the last packet that got past it"
        shares = (("median", 50), ("p99", 99), ("greatest", 100))
        aims += [Aim(f"{name}, {share}", percentile(last, n), " ms") for share, n in shares]
    for when, group in (("joined at once", early), ("joined in mid-transfer", late)):
        passed = [sample["bytes"] for sample in group]
        if passed:
            name = f"{backend}, {when}: passed unthrottled before"
            aims += [
                Aim(f"{name}, {share}", percentile(passed, n), " bytes") for share, n in (("median", 50), ("p99", 99))
            ]
    return aims
