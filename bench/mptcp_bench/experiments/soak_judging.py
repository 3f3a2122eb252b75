# SPDX-License-Identifier: GPL-2.0-or-later
"""Judge whether a throttler grew, missed a subflow or capped a wrong one over a long time. Pure.

What cannot be read of a dead throttler is NaN, and misses its aim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from ..statistics import mean_or_nan, median
from .aims import Aim

GROWTH = 0.05
"""As a share, from the second third of the time to the last; the first third is warm-up."""
PROXY_GROWTH = 0.1
"""The same for Squid, whose memory pools are not ours."""
CHECKED = 500
"""Connections drawn at each sample; their caps are compared with the kernel's entries."""
EXAMPLES = 3
"""Wrong connections that are kept."""
CAP = 1e9
"""Bits/s."""
KEPT = 0.95
"""Share of the cap, as the mean of all samples."""
STANDING = 0.95
"""Share of the wanted tunnels, in the sample with the fewest."""
REPLACED = 0.9
"""Share of the tunnels to be replaced. With fewer there was no churn, and a lack of growth proves nothing."""


@dataclass(frozen=True, slots=True)
class ProcessSize:
    """Memory and descriptors of a process."""

    resident: float = math.nan
    """MB (10^6)."""
    descriptors: float = math.nan


@dataclass(frozen=True, slots=True)
class Reading:
    """State at one moment."""

    time: float
    """Seconds since churn began."""
    standing: int
    """Tunnels."""
    opened: int
    """Tunnels since the start."""
    daemon: ProcessSize
    proxy: ProcessSize
    bpf: float
    """Bytes of the throttler's BPF maps."""
    entries: int
    """In the throttler's sets."""
    classes: int
    shown: int
    """Connections in ``status``."""
    missed: int
    """Connections with two subflows in the kernel before and after, but not in ``status``."""
    invented: int
    """The reverse of :attr:`missed`."""
    checked: int
    """Connections whose entries were compared."""
    wrong: int
    """Checked connections with a subflow in the wrong class, or in none."""
    examples: tuple[str, ...] = ()
    """The first wrong ones."""
    ceil: float = math.nan
    """Of the cap's class, bits/s; NaN if there is none."""


@dataclass(frozen=True, slots=True)
class Soak:
    """All measurements."""

    seconds: float
    """Planned duration."""
    interval: float
    """Seconds between two samples."""
    tunnels: int
    churn: int
    """Tunnels to be replaced per second."""
    samples: tuple[Reading, ...]
    ended: int
    """Tunnels that the proxy ended."""
    cores: float
    """Processor share of the throttler."""
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

    *subflows* has the remote end (ADDRESS:PORT) and the path of each subflow by token, *entries* the class of each
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
    """Return the growth of *value*'s median from the second to the last third, a share; NaN without values."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    found = [value(each) for each in (*middle, *last)]
    if not middle or not all(map(math.isfinite, found)):
        return math.nan
    before, after = median([value(each) for each in middle]), median([value(each) for each in last])
    # A count of one, such as a class, may grow by one.
    return (after - before) / max(before, 1.0)


def judge(soak: Soak) -> list[Aim]:
    """Return the aims."""
    samples = soak.samples
    wanted = int(soak.seconds / soak.interval)
    replaced = (samples[-1].opened - samples[0].opened) / (samples[-1].time - samples[0].time) if samples[1:] else 0.0
    # Tunnels that are replaced while status and the kernel are read are not compared.
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
        # A cap that repays an overshoot halves its class; with little to repay, that lasts a moment in many seconds.
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
