# SPDX-License-Identifier: GPL-2.0-or-later
"""Judge whether a throttler grew, missed a subflow or capped a wrong one over a long time. Pure.

If the throttler was dead, its values are NaN, and miss their aims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from ..statistics import mean_or_nan, median
from .aims import Aim

GROWTH = 0.05
"""Most growth, as a share, from the second third of the time to the last. The first third is warm-up."""
PROXY_GROWTH = 0.1
"""Most growth of Squid, which is larger because Squid's memory pools are not ours."""
CHECKED = 500
"""Number of connections that are drawn at each sample. Their caps are compared with the kernel's entries."""
EXAMPLES = 3
"""Number of wrong connections that each sample keeps."""
CAP = 1e9
"""The crowd's cap in bits/s."""
KEPT = 0.95
"""Least mean rate of the cap's class over all samples, as a share of the cap."""
STANDING = 0.95
"""Least number of tunnels in any sample, as a share of the wanted number."""
REPLACED = 0.9
"""Least number of replaced tunnels, as a share of the wanted number. Without replacements, no growth proves nothing."""


@dataclass(frozen=True, slots=True)
class ProcessSize:
    """Memory and number of descriptors of one or several processes."""

    resident: float = math.nan
    """Resident memory in MB (10^6 bytes)."""
    descriptors: float = math.nan


@dataclass(frozen=True, slots=True)
class Reading:
    """Measurements at one moment."""

    time: float
    """Seconds since churn began."""
    standing: int
    """Number of established tunnels."""
    opened: int
    """Number of tunnels opened since the start."""
    daemon: ProcessSize
    proxy: ProcessSize
    bpf: float
    """Bytes of the throttler's BPF maps."""
    entries: int
    """Number of entries in the throttler's sets."""
    classes: int
    shown: int
    """Number of connections in ``status``."""
    missed: int
    """Number of connections that had two subflows in the kernel before and after ``status``, which does not show
    them."""
    invented: int
    """Number of connections that ``status`` shows, but the kernel had neither before nor after."""
    checked: int
    """Number of connections whose entries were compared."""
    wrong: int
    """Number of compared connections with a subflow in the wrong class, or in none."""
    examples: tuple[str, ...] = ()
    """The first of the wrong connections."""
    ceil: float = math.nan
    """Rate of the cap's class in bits/s; NaN if it does not exist."""


@dataclass(frozen=True, slots=True)
class Soak:
    """All measurements of the experiment."""

    seconds: float
    """Planned duration."""
    interval: float
    """Seconds between two samples."""
    tunnels: int
    churn: int
    """Tunnels to be replaced per second."""
    samples: tuple[Reading, ...]
    ended: int
    """Number of tunnels that the proxy ended; it should end none."""
    cores: float
    """Processor cores that the throttler used."""
    left: tuple[str, ...]
    """Dumps that differ between before the start and after SIGTERM, and an exit code other than 0."""


def misplaced(
    checked: Set[str],
    subflows: Mapping[str, Sequence[tuple[str, str]]],
    entries: Mapping[str, str],
    capped: str,
    cap: str,
) -> list[str]:
    """Return a line for each *checked* connection with a subflow whose class contradicts the policy.

    *subflows* has, by token, each subflow's remote end (ADDRESS:PORT) and path. *entries* has the class of each
    remote end. *capped* is the capped path, *cap* its class, empty if it has none.
    """
    found = []
    for token in sorted(checked):
        there = subflows.get(token, ())
        classes = [(remote, path, entries.get(remote)) for remote, path in there]
        if not there or any((entry == cap) is not (path == capped) for _, path, entry in classes):
            words = [f"{remote}, {path}, {entry or 'no entry'}" for remote, path, entry in classes]
            found.append(f"{token} (class of the cap: {cap or 'none'}): {'; '.join(words) or 'no subflows'}")
    return found


def growth(samples: Sequence[Reading], value: Callable[[Reading], float]) -> float:
    """Return the growth of *value*'s median from the second third to the last, as a share; NaN without values."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    found = [value(each) for each in (*middle, *last)]
    if not middle or not all(map(math.isfinite, found)):
        return math.nan
    before, after = median([value(each) for each in middle]), median([value(each) for each in last])
    # Divide by at least 1, because a median can be 0.
    return (after - before) / max(before, 1.0)


def judge(soak: Soak) -> list[Aim]:
    """Return the aims for all measurements."""
    samples = soak.samples
    wanted = int(soak.seconds / soak.interval)
    replaced = (samples[-1].opened - samples[0].opened) / (samples[-1].time - samples[0].time) if samples[1:] else 0.0
    # Fewer connections are compared than tunnels exist, because some are replaced while status and kernel are read.
    least = max(1, min(CHECKED, soak.tunnels // 2))
    kinds: tuple[tuple[str, float, Callable[[Reading], float]], ...] = (
        ("throttler's resident memory", GROWTH, lambda each: each.daemon.resident),
        ("throttler's descriptors", GROWTH, lambda each: each.daemon.descriptors),
        ("throttler's BPF maps", GROWTH, lambda each: each.bpf),
        ("set entries", GROWTH, lambda each: each.entries),
        ("classes", GROWTH, lambda each: each.classes),
        ("connections in status", GROWTH, lambda each: each.shown),
        ("proxy's resident memory", PROXY_GROWTH, lambda each: each.proxy.resident),
        ("proxy's descriptors", PROXY_GROWTH, lambda each: each.proxy.descriptors),
    )
    return [
        Aim("samples", len(samples), least=max(3, round(0.9 * wanted))),
        Aim(
            "tunnels, in the sample with the fewest",
            min((s.standing for s in samples), default=0),
            least=STANDING * soak.tunnels,
        ),
        Aim("tunnels replaced, /s", replaced, least=REPLACED * soak.churn),
        Aim("tunnels that the proxy ended", soak.ended, most=0),
        Aim(
            "subflows: connections missed, most in a sample", max((s.missed for s in samples), default=math.inf), most=0
        ),
        Aim(
            "subflows: connections invented, most in a sample",
            max((s.invented for s in samples), default=math.inf),
            most=0,
        ),
        Aim(
            "caps: connections compared, fewest in a sample", min((s.checked for s in samples), default=0), least=least
        ),
        Aim("caps: wrong, most in a sample", max((s.wrong for s in samples), default=math.inf), most=0),
        # While a cap repays an overshoot, its class has half of the rate. With little to repay, this is short and rare.
        Aim(
            "caps: rate of the class / the cap's, mean",
            mean_or_nan([s.ceil for s in samples]) / CAP,
            least=KEPT,
            most=1.0,
        ),
        *(Aim(f"growth of {name}", growth(samples, value), most=most) for name, most, value in kinds),
        Aim("throttler's resident memory at the end", samples[-1].daemon.resident if samples else math.nan, " MB"),
        Aim("throttler's processor share", soak.cores, " cores"),
        Aim("SIGTERM: dumps that differ", len(soak.left), most=0),
    ]
