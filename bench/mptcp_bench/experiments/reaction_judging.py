"""What the experiment ``reaction`` asks of the delays that its probe measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..statistics import percentile
from .aims import Aim
from .reaction_probe_client import LATE_EVERY

LATE_MS = 200.0
"""Age from which a connection's transfer is well under way."""
AIM_P99_MS = 5.0

Sample = Mapping[str, float]
"""Of one connection: ``delay_ms``, ``age_ms`` and ``bytes``, which passed before the entry was there."""


def judge(found: Mapping[str, Sequence[Sample]], offered: Sequence[str], count: int) -> list[Aim]:
    """Return the aims for the samples of each adapter that is *offered*; *count* connections were made with each."""
    return [aim for backend in offered for aim in _judge(backend, found.get(backend, ()), count)]


def _judge(backend: str, samples: Sequence[Sample], count: int) -> list[Aim]:
    delays = [sample["delay_ms"] for sample in samples]
    late = [sample for sample in samples if sample["age_ms"] > LATE_MS]
    early = [sample for sample in samples if sample["age_ms"] <= LATE_MS]
    aims = [
        Aim(f"{backend}: connections whose entry was seen", len(samples), least=count),
        Aim(f"{backend}: of these, joined in mid-transfer", len(late), least=count // LATE_EVERY),
        Aim(f"{backend}: third ACK to entry, median", percentile(delays, 50), " ms"),
        Aim(f"{backend}: third ACK to entry, p99", percentile(delays, 99), " ms", most=AIM_P99_MS),
        Aim(f"{backend}: third ACK to entry, greatest", percentile(delays, 100), " ms"),
    ]
    for when, group in (("joined at once", early), ("joined in mid-transfer", late)):
        passed = [sample["bytes"] for sample in group]
        if passed:
            name = f"{backend}, {when}: passed unthrottled before"
            aims += [
                Aim(f"{name}, {share}", percentile(passed, n), " bytes") for share, n in (("median", 50), ("p99", 99))
            ]
    return aims
