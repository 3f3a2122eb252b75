# SPDX-License-Identifier: GPL-2.0-or-later
"""The claims of "Multipath Transport for Virtual Private Networks" about its figures, and whether they hold here. Pure.

Most claims can fail: kernel, OpenVPN and congestion controls are newer than the paper, and today's kernel does not have
BALIA, the paper's congestion control for MPTCP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ..statistics import geometric_mean
from .claims import Claim
from .columns import Results
from .findings import Aim
from .vpn_cells import LOSSES, MAX_UNUSED_SHARE, OVER_TCP, VPNS, WAYS, Condition, Vpn

NOTICEABLE = 1.1
"""Minimum ratio for the paper's words "noticeable" and "much"."""
NOT_WORSE = 0.9
"""Minimum share of the goodput that remains if a degradation "did not worsen"."""
Rounds = Mapping[int, float]
"""Values by round."""
VpnResults = Results[Condition, Any]


def conditions(results: VpnResults) -> tuple[Condition, ...]:
    """Return the measured conditions, ordered by loss as in :data:`LOSSES`, then by RTT."""
    measured = dict.fromkeys(run.turn.cell for run in results.runs)
    return tuple(sorted(measured, key=lambda cell: (LOSSES.index(cell.loss), cell.first, cell.second)))


def values(results: VpnResults, vpn: Vpn, inner: str, cell: Condition, name: str = "goodput") -> dict[int, float]:
    """Return the attribute *name* of the downloads through *vpn* under the condition *cell*, by round."""
    return {
        run.turn.number: float(getattr(run.measured, name))
        for run in results.runs
        if (VPNS[run.turn.variant], run.part, run.turn.cell) == (vpn, inner, cell)
    }


def quotients(dividends: Rounds | None, divisors: Rounds | None) -> Rounds | None:
    """Return the quotients for the rounds that both have; None if one of them is None."""
    if dividends is None or divisors is None:
        return None
    return {number: dividends[number] / divisors[number] for number in sorted(dividends.keys() & divisors.keys())}


@dataclass(frozen=True, slots=True)
class Group:
    """The downloads of a claim, with one inner congestion control, one outer one for VPNs over TCP, and one loss."""

    results: VpnResults
    inner: str
    outer: str
    loss: str
    conditions: tuple[Condition, ...]
    """The conditions with this loss, ordered by RTT."""

    def under(self, conditions: Iterable[Condition]) -> Self:
        """Return only the downloads under these *conditions*."""
        return replace(self, conditions=tuple(conditions))

    @property
    def uneven(self) -> Self:
        """The downloads under the conditions in which the second path's RTT is longer."""
        return self.under(cell for cell in self.conditions if cell.second > cell.first)

    def mean(self, way: str, name: str = "goodput") -> Rounds | None:
        """Return the geometric mean of *way*'s values over all conditions, for the rounds that have all values."""
        if not self.conditions:
            return None
        vpn = Vpn(way, self.outer if way in OVER_TCP else "")
        each = [values(self.results, vpn, self.inner, cell, name) for cell in self.conditions]
        rounds = sorted(set.intersection(*map(set, each)))
        return {number: geometric_mean([measured[number] for measured in each]) for number in rounds}


def groups(results: VpnResults) -> Iterator[Group]:
    """Yield a group for each inner and outer congestion control and each loss."""
    for inner in sorted({run.part for run in results.runs}):
        for outer in sorted({VPNS[run.turn.variant].outer for run in results.runs} - {""}):
            for loss in dict.fromkeys(cell.loss for cell in conditions(results)):
                yield Group(
                    results, inner, outer, loss, tuple(cell for cell in conditions(results) if cell.loss == loss)
                )


Value = Callable[[Group], Rounds | None]
"""The value of a claim in each round; None if the claim is not about the group."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of the paper about each group of downloads."""

    paper: str
    what: str
    value: Value
    least: float | None = None
    most: float | None = None

    def claims(self, results: VpnResults) -> Iterator[Claim]:
        for group in groups(results):
            if (rounds := self.value(group)) is not None:
                what = f"{self.what}, loss {group.loss}; {group.inner} inside, {group.outer} outside"
                # There are few rounds, but two suffice for an interval of the mean.
                yield Claim(self.paper, what, tuple(rounds.values()), "", self.least, self.most, by="mean")


def ratio(way: str, reference: str, name: str = "goodput") -> Value:
    """Return the mean of *way* divided by the mean of the way *reference*, as a claim's value."""
    return lambda group: quotients(group.mean(way, name), group.mean(reference, name))


def uneven(value: Value) -> Value:
    """Return *value* for only those conditions in which the RTTs differ."""
    return lambda group: value(group.uneven)


def growth(value: Value) -> Value:
    """Return *value* at the longest RTT divided by *value* at the shortest RTT, if there are several RTTs."""

    def grown(group: Group) -> Rounds | None:
        first, last = group.under(group.conditions[:1]), group.under(group.conditions[-1:])
        return quotients(value(last), value(first)) if len(group.conditions) > 1 else None

    return grown


def by_loss(value: Value, loss: str) -> Value:
    """Return *value* divided by *value* with another *loss*."""

    def compared(group: Group) -> Rounds | None:
        other = replace(group, loss=loss).under(cell for cell in conditions(group.results) if cell.loss == loss)
        return quotients(value(group), value(other)) if group.loss != loss else None

    return compared


def mptcp(group: Group) -> Rounds | None:
    return group.mean("mptcp")


def _cubic_by_bbr(group: Group) -> Rounds | None:
    return quotients(mptcp(group), mptcp(replace(group, outer="bbr"))) if group.outer == "cubic" else None


def _even_by_best_of_others(group: Group) -> Rounds | None:
    others = [rounds for cell in group.uneven.conditions if (rounds := mptcp(group.under([cell]))) is not None]
    if not others:
        return None
    best = {number: max(each[number] for each in others) for number in set.intersection(*map(set, others))}
    return quotients(mptcp(group.under(cell for cell in group.conditions if cell.second == cell.first)), best)


MPTCP_BY_TCP, UDP_BY_MPTCP = ratio("mptcp", "tcp"), ratio("50/50", "mptcp")
GAINS = (
    Statement("Multipath TCP over both paths shows a noticeable improvement over TCP over one.",
              "goodput, fullmesh × TCP", MPTCP_BY_TCP, least=NOTICEABLE),
    Statement("ndiffports (two endpoints on one path in its place) can improve the goodput.",
              "goodput, two subflows on one path × TCP", ratio("ports", "tcp"), least=1),
)  # fmt: skip
MULTIPATH_UDP = Statement(
    "Multipath UDP (50/50) performs better than Multipath TCP.", "goodput, 50/50 × Multipath TCP", UDP_BY_MPTCP, least=1
)
STATEMENTS: Mapping[str, Sequence[Statement]] = {
    "vpn-fig3": (
        Statement("Cubic takes much more of the bandwidth than BALIA (which no kernel of today has: BBR in its place).",
                  "goodput of Multipath TCP, × BBR outside", _cubic_by_bbr, least=NOTICEABLE),
        *GAINS,
    ),
    "vpn-fig4": (
        *GAINS,
        Statement("The improvement becomes less significant as the RTTs are increased.",
                  "fullmesh × TCP at the longest RTT, × that at the shortest", growth(MPTCP_BY_TCP), most=1),
        Statement("Multipath TCP performed better with losses in bursts than with uniform ones of 1 %.",
                  "goodput of Multipath TCP, × uniform losses", by_loss(mptcp, "1"), least=1),
    ),
    "vpn-fig5": (
        Statement("The best performance is with RTTs of 1:1.", "goodput with equal RTTs × the best with others",
                  _even_by_best_of_others, least=1),
        Statement("The degradation did not worsen as the degree of asymmetry was increased.",
                  "goodput at the greatest ratio × that at the least above 1:1", uneven(growth(mptcp)),
                  least=NOT_WORSE),
    ),
    "vpn-fig6": (
        Statement("A VPN over UDP has clear advantages over one over TCP, whatever RTT and loss.",
                  "goodput, UDP × TCP, one path", ratio("udp", "tcp"), least=1),
    ),
    "vpn-fig7": (
        MULTIPATH_UDP,
        Statement("The difference becomes more significant as the RTT increases.",
                  "50/50 × Multipath TCP at the longest RTT, × that at the shortest", growth(UDP_BY_MPTCP), least=1),
    ),
    "vpn-fig8": (
        Statement("Multipath TCP is much slower in grabbing the available bandwidth than Multipath UDP.",
                  "acknowledged after 0.3 s, 50/50 × Multipath TCP", ratio("50/50", "mptcp", "acknowledged"),
                  least=NOTICEABLE),
    ),
    "vpn-fig9": (
        MULTIPATH_UDP,
        Statement("With losses the advantage is not as significant.", "50/50 × Multipath TCP, × the same without loss",
                  by_loss(UDP_BY_MPTCP, "0"), most=1),
    ),
    "vpn-fig10": (
        Statement("Split at random, without putting it in order, Multipath UDP is poor where the delays differ.",
                  "goodput, 50/50 × Multipath TCP, RTTs that differ", uneven(UDP_BY_MPTCP), most=1),
        Statement("The effect is more pronounced, the more they differ.",
                  "50/50 × Multipath TCP at the greatest ratio, × that at the least", uneven(growth(UDP_BY_MPTCP)),
                  most=1),
        Statement("Relative to Multipath TCP it gets better as the loss rises.",
                  "50/50 × Multipath TCP, × the same with the loss ge1", by_loss(uneven(UDP_BY_MPTCP), "ge1"), least=1),
    ),
    "vpn-fig11": (
        *(Statement("Less by the longer path improves Multipath UDP.", f"goodput, {split} × 50/50",
                    uneven(ratio(split, "50/50")), least=1) for split in ("75/25", "90/10")),
        Statement("So split, it outperforms Multipath TCP where the delays differ.", "goodput, 90/10 × Multipath TCP",
                  uneven(ratio("90/10", "mptcp")), least=1),
        Statement("A light scheduler that knows the delays outperforms Multipath TCP (here: ours).",
                  "goodput, tunnel × Multipath TCP", uneven(ratio("tunnel", "mptcp")), least=1),
    ),
}  # fmt: skip
"""The paper's statements about each figure, by the experiment's name."""


def claims_of(figure: str, results: VpnResults) -> list[Claim]:
    return [claim for statement in STATEMENTS[figure] for claim in statement.claims(results)]


def verdicts(figure: str, results: VpnResults) -> Iterator[Aim]:
    """Yield the aim that each way over both paths used the second path, and the verdicts on the claims."""
    shares: dict[str, list[float]] = {}
    for run in results.runs:
        if WAYS[VPNS[run.turn.variant].way].uses_both_paths:
            shares.setdefault(run.turn.variant, []).append(run.measured.second)
    if shares:
        least = min(map(max, shares.values()))
        yield Aim("share of the second path, greatest of each way over both, least", least, least=MAX_UNUSED_SHARE)
    yield from (claim.judged for claim in claims_of(figure, results))
