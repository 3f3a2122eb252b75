# SPDX-License-Identifier: GPL-2.0-or-later
"""The claims of "Multipath Transport for Virtual Private Networks" about its figures, and whether they hold here. Pure.

Most claims can fail here: kernel, OpenVPN and congestion controls are newer than the paper, and today's kernel does not
have BALIA, the paper's congestion control for MPTCP. A claim that fails is a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ..statistics import geometric_mean
from .aims import Aim
from .claims import Claim
from .columns import Results
from .vpn_cells import LOSSES, OVER_TCP, VPNS, WAYS, Condition, Point, Vpn

NOTICEABLE = 1.1
"""Minimum ratio that counts as "noticeable" or "much"."""
NOT_WORSE = 0.9
"""Minimum share of goodput that must remain if a degradation "did not worsen"."""
OFF, UNUSED = 0.08, 0.01
"""Maximum difference between the second path's share of a download and a fixed share; maximum of this share if only one
path is used."""
Rounds = Mapping[int, float]
"""A value of each round."""


Found = Results[Condition, Any]


def conditions(results: Found) -> tuple[Condition, ...]:
    """Return the measured conditions, ordered by loss as in :data:`LOSSES`, then by RTT."""
    there = dict.fromkeys(run.turn.cell for run in results.runs)
    return tuple(sorted(there, key=lambda at: (LOSSES.index(at.loss), at.first, at.second)))


def values(results: Found, vpn: Vpn, inner: str, at: Condition, name: str = "goodput") -> dict[int, float]:
    """Return the attribute *name* of the downloads through *vpn* under one condition, by round."""
    return {
        run.turn.number: float(getattr(run.measured, name))
        for run in results.runs
        if (VPNS[run.turn.variant], run.part, run.turn.cell) == (vpn, inner, at)
    }


def divided(one: Rounds, other: Rounds) -> Rounds:
    """Return the quotients of the rounds that both have."""
    return {number: one[number] / other[number] for number in sorted(one.keys() & other.keys())}


@dataclass(frozen=True, slots=True)
class Group:
    """The downloads that one claim is about: one congestion control inside, one outside, and some conditions."""

    results: Found
    inner: str
    outer: str
    """The congestion control of VPNs over TCP; empty if the claim is about both controls, or only about VPNs over
    UDP."""
    ats: tuple[Condition, ...]
    """The conditions, by loss, then by RTT."""
    loss: str = ""
    """The loss of the conditions; empty if they have several losses."""

    @property
    def label(self) -> str:
        outside = f", {self.outer} outside" if self.outer else ""
        return (f", loss {self.loss}" if self.loss else "") + f"; {self.inner} inside{outside}"

    def with_loss(self, loss: str) -> Self:
        """Return the part with this *loss*."""
        return replace(self, ats=tuple(at for at in self.ats if at.loss == loss), loss=loss)

    @property
    def even(self) -> Self:
        """The part in which both paths have the same RTT."""
        return replace(self, ats=tuple(at for at in self.ats if at.second == at.first))

    @property
    def uneven(self) -> Self:
        """The part in which the second path's RTT is longer."""
        return replace(self, ats=tuple(at for at in self.ats if at.second > at.first))

    @property
    def longest(self) -> Self:
        """The part with the longest RTT."""
        return replace(self, ats=self.ats[-1:])

    @property
    def shortest(self) -> Self:
        return replace(self, ats=self.ats[:1])

    def goodput(self, way: str, outer: str = "", name: str = "goodput") -> Rounds:
        """Return the geometric mean of *way*'s goodput over the conditions, for the rounds that have all of them."""
        vpn = Vpn(way, (outer or self.outer) if way in OVER_TCP else "")
        each = [values(self.results, vpn, self.inner, at, name) for at in self.ats]
        rounds = sorted(set.intersection(*map(set, each))) if each else []
        return {number: geometric_mean([rates[number] for rates in each]) for number in rounds}


Value = Callable[[Group], Rounds | None]
"""The value of a claim; None if the claim is not about these conditions."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of the paper about each group of downloads."""

    paper: str
    what: str
    value: Value
    least: float | None = None
    most: float | None = None
    unit: str = ""
    by_loss: bool = True
    """Whether each loss has its own group."""
    outside: bool = True
    """Whether each congestion control outside has its own group."""

    def claims(self, results: Found) -> Iterator[Claim]:
        losses = dict.fromkeys(at.loss for at in conditions(results))
        for group in groups(results, outside=self.outside):
            for part in [group.with_loss(loss) for loss in losses] if self.by_loss else [group]:
                if (found := self.value(part)) is not None:
                    # There are few rounds, because a download takes ten seconds. Two rounds suffice for an interval of
                    # the mean.
                    what, each = self.what + part.label, tuple(found.values())
                    yield Claim(self.paper, what, each, self.unit, self.least, self.most, by="mean")


def groups(results: Found, *, outside: bool = True) -> Iterator[Group]:
    """Yield the downloads of each congestion control inside and, if *outside*, of each congestion control outside."""
    outer = sorted({VPNS[run.turn.variant].outer for run in results.runs} - {""}) if outside else [""]
    for inner in sorted({run.part for run in results.runs}):
        for control in outer:
            yield Group(results, inner, control, conditions(results))


def ratio(one: str, other: str) -> Callable[[Group], Rounds]:
    """Return the value: goodput of the way *one* divided by goodput of the way *other*."""
    return lambda group: divided(group.goodput(one), group.goodput(other))


def uneven(value: Value) -> Value:
    """Return *value* for the conditions with different RTTs only."""
    return lambda group: value(group.uneven) if group.uneven.ats else None


UDP_BY_TCP = ratio("50/50", "mptcp")


def _growth(group: Group) -> Rounds | None:
    """Multipath UDP's advantage at the longest RTT, divided by the advantage at the shortest RTT."""
    return divided(UDP_BY_TCP(group.longest), UDP_BY_TCP(group.shortest)) if len(group.ats) > 1 else None


def _gain(group: Group) -> Rounds:
    """Goodput of Multipath TCP minus goodput of TCP, in Mbit/s."""
    both, one = group.goodput("mptcp"), group.goodput("tcp")
    return {number: (both[number] - one[number]) / 1e6 for number in both.keys() & one.keys()}


def _gain_growth(group: Group) -> Rounds | None:
    longest, shortest = _gain(group.longest), _gain(group.shortest)
    both = longest.keys() & shortest.keys()
    return {number: longest[number] - shortest[number] for number in both} if len(group.ats) > 1 else None


def _even_by_best_of_others(group: Group) -> Rounds | None:
    others = [replace(group, ats=(at,)).goodput("mptcp") for at in group.uneven.ats]
    if not others or not group.even.ats:
        return None
    best = {number: max(each[number] for each in others) for number in set.intersection(*map(set, others))}
    return divided(group.even.goodput("mptcp"), best)


def _greatest_by_least_asymmetry(group: Group) -> Rounds | None:
    part = group.uneven
    return divided(part.longest.goodput("mptcp"), part.shortest.goodput("mptcp")) if len(part.ats) > 1 else None


def _by_lossless(group: Group) -> Rounds | None:
    without = replace(group, ats=conditions(group.results)).with_loss("0")
    return divided(UDP_BY_TCP(group), UDP_BY_TCP(without)) if group.loss != "0" else None


def _by_least_loss(group: Group) -> Rounds | None:
    losses = list(dict.fromkeys(at.loss for at in group.ats))
    if len(losses) < 2:
        return None
    most, least = (group.uneven.with_loss(loss) for loss in (losses[-1], losses[0]))
    return divided(UDP_BY_TCP(most), UDP_BY_TCP(least))


GAINS = (
    Statement("Multipath TCP over both paths shows a noticeable improvement over TCP over one.",
              "goodput, fullmesh × TCP", ratio("mptcp", "tcp"), least=NOTICEABLE, by_loss=False),
    Statement("ndiffports (two endpoints on one path in its place) can improve the goodput.",
              "goodput, two subflows on one path × TCP", ratio("ports", "tcp"), least=1, by_loss=False),
)  # fmt: skip
MULTIPATH_UDP = Statement(
    "Multipath UDP (50/50) performs better than Multipath TCP.", "goodput, 50/50 × Multipath TCP", UDP_BY_TCP, least=1
)
STATEMENTS: Mapping[str, Sequence[Statement]] = {
    "vpn-fig3": (
        Statement("Cubic takes much more of the bandwidth than BALIA (which no kernel of today has: BBR in its place).",
                  "goodput of Multipath TCP, cubic × BBR outside",
                  lambda group: divided(group.goodput("mptcp", "cubic"), group.goodput("mptcp", "bbr")),
                  least=NOTICEABLE, by_loss=False, outside=False),
        *GAINS,
    ),
    "vpn-fig4": (
        *GAINS,
        Statement("The improvement becomes less significant as the RTTs are increased.",
                  "gain at the longest RTT less that at the shortest", _gain_growth, most=0, unit=" Mbit/s"),
        Statement("Multipath TCP performed better with losses in bursts than with uniform ones of 1 %.",
                  "goodput of Multipath TCP, bursts × uniform",
                  lambda group: divided(group.with_loss("ge1").goodput("mptcp"), group.with_loss("1").goodput("mptcp")),
                  least=1, by_loss=False),
    ),
    "vpn-fig5": (
        Statement("The best performance is with RTTs of 1:1.", "goodput with equal RTTs × the best with others",
                  _even_by_best_of_others, least=1),
        Statement("The degradation did not worsen as the degree of asymmetry was increased.",
                  "goodput at the greatest ratio × that at the least above 1:1", _greatest_by_least_asymmetry,
                  least=NOT_WORSE),
    ),
    "vpn-fig6": (
        Statement("A VPN over UDP has clear advantages over one over TCP, whatever RTT and loss.",
                  "goodput, UDP × TCP, one path", ratio("udp", "tcp"), least=1),
    ),
    "vpn-fig7": (
        MULTIPATH_UDP,
        Statement("The difference becomes more significant as the RTT increases.",
                  "50/50 × Multipath TCP at the longest RTT, × that at the shortest", _growth, least=1),
    ),
    "vpn-fig9": (
        replace(MULTIPATH_UDP, value=lambda group: UDP_BY_TCP(group) if group.loss != "0" else None),
        Statement("With losses the advantage is not as significant.", "50/50 × Multipath TCP, × the same without loss",
                  _by_lossless, most=1),
    ),
    "vpn-fig10": (
        Statement("Split at random, without putting it in order, Multipath UDP is poor where the delays differ.",
                  "goodput, 50/50 × Multipath TCP, RTTs that differ", uneven(UDP_BY_TCP), most=1),
        Statement("The effect is more pronounced, the more they differ.",
                  "50/50 × Multipath TCP at the greatest ratio, × that at the least", uneven(_growth), most=1),
        Statement("Relative to Multipath TCP it gets better as the loss rises.",
                  "50/50 × Multipath TCP with the greatest loss, × that with the least", _by_least_loss, least=1,
                  by_loss=False),
    ),
    "vpn-fig11": (
        *(Statement("Less by the longer path improves Multipath UDP.", f"goodput, {split} × 50/50",
                    uneven(ratio(split, "50/50")), least=1, outside=False) for split in ("75/25", "90/10")),
        Statement("So split, it outperforms Multipath TCP where the delays differ.", "goodput, 90/10 × Multipath TCP",
                  uneven(ratio("90/10", "mptcp")), least=1),
        Statement("A light scheduler that knows the delays outperforms Multipath TCP (here: ours).",
                  "goodput, tunnel × Multipath TCP", uneven(ratio("tunnel", "mptcp")), least=1),
    ),
}  # fmt: skip
"""The paper's statements about each figure, by the experiment's name."""


def claims_of(figure: str, results: Found) -> list[Claim]:
    return [claim for statement in STATEMENTS[figure] for claim in statement.claims(results)]


def verdicts(results: Found) -> Iterator[Aim]:
    """Yield the aims that all rounds were measured, over both paths, with the configured rates."""
    rows = results.rows()
    yield Aim("rounds of everything", min(len(row.measured) for row in rows), least=max(row.planned for row in rows))
    most = max((run.measured.carried for run in results.runs), default=math.nan)
    yield Aim("carried by a path, × its rate, most", most, most=1.1)
    both = {way: [0.0] for name in dict.fromkeys(row.variant for row in rows) if WAYS[way := VPNS[name].way].both}
    for run in results.runs:
        both.get(VPNS[run.turn.variant].way, []).append(run.measured.second)
    if both:
        least = min(map(max, both.values()))
        yield Aim("share of the second path, greatest of each way over both, least", least, least=UNUSED)


def unlike(vpn: Vpn, point: Point) -> str | None:
    """Return how the carriage of a download's VPN differed from *vpn*; None if it did not differ."""
    way = WAYS[vpn.way]
    if (point.joined, point.fallbacks) != (way.joined, 0):
        return f"{vpn}: {point.joined} subflows joined, {point.fallbacks} connections fell back to plain TCP"
    if way.share is not None and abs(point.second - way.share) > (OFF if way.both else UNUSED):
        return f"{vpn}: the second path has {point.second:.0%} of the bytes"
    return None


TRACE = Statement(
    "Multipath TCP is much slower in grabbing the available bandwidth than Multipath UDP.",
    "acknowledged after 0.3 s, 50/50 × Multipath TCP",
    lambda group: divided(group.goodput("50/50", name="acknowledged"), group.goodput("mptcp", name="acknowledged")),
    least=NOTICEABLE, by_loss=False,
)  # fmt: skip
