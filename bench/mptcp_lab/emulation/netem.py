# SPDX-License-Identifier: GPL-2.0-or-later
"""Arguments of tc-netem(8) for a direction of a path, for kernels that have netem. Pure.

netem does not limit the rate; a TBF below it does, as for all links. With jitter, netem nevertheless gets a rate, far
above any link's: then a packet's delay begins at the earliest when the previous packet leaves, which keeps the order.
Without a rate, netem would reorder packets (net/sched/sch_netem.c, netem_enqueue).
"""

from __future__ import annotations

from .model import QUEUE_LENGTH, Direction, GilbertElliott, Loss

ORDERING_RATE = "100gbit"
"""Rate for netem with jitter. A full packet takes 0.12 µs at this rate."""


def _percent(probability: float) -> str:
    return f"{100 * probability:.10g}%"


def _loss(loss: Loss) -> tuple[str, ...]:
    if isinstance(loss, GilbertElliott):
        chain = (loss.p, loss.r, loss.one_minus_h, loss.one_minus_k)
        return ("loss", "gemodel", *map(_percent, chain))
    return ("loss", "random", _percent(loss.probability))


def arguments(direction: Direction, seed: int | None = None) -> tuple[str, ...]:
    """Return the qdisc and its arguments. A *seed* needs kernel and iproute2 6.6; with None it is left out."""
    words: list[str] = ["netem", "limit", str(QUEUE_LENGTH)]
    if direction.delay:
        words += ["delay", f"{direction.delay}us"]
    if direction.jitter:
        words += [f"{direction.jitter}us"]
    if direction.loss is not None:
        words += _loss(direction.loss)
    if direction.jitter:
        words += ["rate", ORDERING_RATE]
    if seed is not None:
        words += ["seed", str(seed)]
    return tuple(words)
