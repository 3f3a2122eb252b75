# SPDX-License-Identifier: GPL-2.0-or-later
"""The claims of "Multipath Transport for Virtual Private Networks" about its figures, and whether they hold here. Pure.

Most claims can fail here: kernel, OpenVPN and congestion controls are today's, and today's kernel does not have BALIA,
the paper's congestion control for MPTCP. A claim that fails is a result. Further aims check the measurement itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..statistics import fmean, geometric_mean, mean_or_nan
from .aims import Aim
from .relay_judging import median_or_nan
from .vpn_cells import GOOD_LOSS, WAYS, Cell, Claim, Condition, Point, Points, folded, loss_of, mean_ratio, ratio

BALIA = "Cubic takes much more of the bandwidth than BALIA (which no kernel of today has: BBR in its place)."
NOTICEABLE = 1.1
"""Least ratio that counts as "noticeable" or "much"."""
HALF = 0.5
"""Most difference from a rate of the paper in percentage points, because the paper rounds its rates to whole
percent."""
NOT_WORSE = 0.9
"""Least share of goodput that must remain if a degradation "did not worsen"."""


def sound(points: Points, planned: Sequence[tuple[Cell, Condition]], runs: int) -> list[Aim]:
    """Return the aims that check whether *runs* rounds of all *planned* points were measured as intended."""
    there = points.all
    both = {p.cell.way for p in there if WAYS[p.cell.way].both}
    fixed = {way: share for way in both if (share := WAYS[way].share) is not None}
    multipath = [p.joined for p in there if WAYS[p.cell.way].joined]
    plain = [p.joined for p in there if not WAYS[p.cell.way].joined]
    aims = [
        Aim("rounds of everything", min((len(points.of(*each)) for each in planned), default=0), least=runs),
        Aim("carried by a path, × its rate, most", _most(p.carried for p in there), most=1.1),
        Aim(
            "round trip inside, × that of the first path, least",
            _least(1e3 * p.round_trip / p.at.first for p in there),
            least=0.9,
        ),
    ]
    if both:
        greatest = [max(p.second for p in there if p.cell.way == way) for way in sorted(both)]
        aims.append(
            Aim("share of the second path, greatest of each way over both, least", _least(greatest), least=0.01)
        )
    if alone := [p.second for p in there if not WAYS[p.cell.way].both]:
        aims.append(Aim("share of the second path where one is used, most", _most(alone), most=0.01))
    if fixed:
        # Use the mean over all downloads, because one download over lossy paths has few packets.
        means = {way: fmean([p.second for p in there if p.cell.way == way]) for way in fixed}
        off = _most(abs(means[way] - share) for way, share in fixed.items())
        aims.append(Aim("share of the second path, off what was fixed by, most", off, most=0.05))
    if multipath:
        fallbacks = sum(p.fallbacks for p in there)
        aims.append(Aim("subflows joined to each connection of Multipath TCP, least", _least(multipath), least=1))
        aims.append(Aim("connections that fell back to plain TCP", fallbacks, most=0))
    if plain:
        aims.append(Aim("subflows joined where none is meant, most", _most(plain), most=0))
    return aims


def _least(values: Iterable[float]) -> float:
    return min(values, default=math.nan)


def _most(values: Iterable[float]) -> float:
    return max(values, default=math.nan)


def ours(points: Points) -> list[Aim]:
    """Return figures, without an aim, that compare our tunnel with the best of all other ways."""
    found = []
    for inner in _inner(points):
        best = [
            max(rates)
            for at in points.conditions
            if (rates := [_rate(points.of(c, at)) for c in _others(points, inner)])
        ]
        mine = [_rate(points.of(Cell("tunnel", inner), at)) for at in points.conditions]
        if best and all(value > 0 for value in (*best, *mine)):
            each = [one / other for one, other in zip(mine, best, strict=True)]
            what = f"goodput, ours × the best of the others, {inner} inside"
            found.append(Aim(f"{what}, mean over the conditions", geometric_mean(each)))
            found.append(Aim(f"{what}, least", min(each)))
    return found


def _others(points: Points, inner: str) -> list[Cell]:
    cells = dict.fromkeys(p.cell for p in points.all)
    return [cell for cell in cells if cell.inner == inner and not WAYS[cell.way].ours]


def _rate(points: Sequence[Point]) -> float:
    return median_or_nan([p.goodput for p in points])


def _inner(points: Points) -> list[str]:
    return sorted({p.cell.inner for p in points.all})


def _outer(points: Points) -> list[str]:
    return sorted({p.cell.outer for p in points.all if p.cell.outer})


def _by_loss(points: Points) -> dict[str, list[Condition]]:
    found: dict[str, list[Condition]] = {}
    for at in points.conditions:
        found.setdefault(at.loss, []).append(at)
    return found


def _asymmetric(points: Points) -> list[Condition]:
    return [at for at in points.conditions if at.second > at.first]


def _controls(inner: str, outer: str = "") -> str:
    return f"; {inner} inside" + (f", {outer} outside" if outer else "")


def _gains(points: Points, *, ndiffports: bool) -> list[Claim]:
    """Return the claims that two paths, or several subflows on one path, are better than TCP over one."""
    found = []
    for inner in _inner(points):
        for outer in _outer(points):
            tcp, controls = Cell("tcp", inner, outer), _controls(inner, outer)
            found.append(
                Claim(
                    "Multipath TCP over both paths shows a noticeable improvement over TCP over one.",
                    f"goodput, fullmesh × TCP{controls}",
                    ratio(points, Cell("mptcp", inner, outer), tcp, points.conditions),
                    least=NOTICEABLE,
                )
            )
            if ndiffports:
                found.append(
                    Claim(
                        "ndiffports (two endpoints on one path in its place) can improve the goodput.",
                        f"goodput, two subflows on one path × TCP{controls}",
                        ratio(points, Cell("ports", inner, outer), tcp, points.conditions),
                        least=1,
                    )
                )
    return found


def figure3(points: Points) -> list[Claim]:
    """Return the claims about two congestion controls outside, with a loss of 0.1 %."""
    found = []
    for inner in _inner(points):
        cubic, bbr = (Cell("mptcp", inner, outer) for outer in ("cubic", "bbr"))
        what = f"goodput of Multipath TCP, cubic × BBR outside{_controls(inner)}"
        found.append(Claim(BALIA, what, ratio(points, cubic, bbr, points.conditions), least=NOTICEABLE))
    return [*found, *_gains(points, ndiffports=True)]


def figure4(points: Points) -> list[Claim]:
    """Return the claims about Multipath TCP beside TCP, with a loss of 1 %, uniform and in bursts."""
    found = _gains(points, ndiffports=True)
    for inner in _inner(points):
        for outer in _outer(points):
            mptcp, tcp, controls = Cell("mptcp", inner, outer), Cell("tcp", inner, outer), _controls(inner, outer)
            for loss, ats in _by_loss(points).items():
                if len(ats) > 1:
                    sides = [(cell, at) for at in (ats[-1], ats[0]) for cell in (mptcp, tcp)]
                    gap = folded(points, sides, lambda a, b, c, d: ((a - b) - (c - d)) / 1e6)
                    what = f"gain at the longest RTT less that at the shortest, loss {loss}{controls}"
                    paper = "The improvement becomes less significant as the RTTs are increased."
                    found.append(Claim(paper, what, gap, " Mbit/s", most=0))
            bursts = [at for at in points.conditions if at.loss == "ge1"]
            uniform = [Condition(at.first, at.second, "1") for at in bursts]
            sides = [
                side for pair in zip(bursts, uniform, strict=True) for side in ((mptcp, pair[0]), (mptcp, pair[1]))
            ]
            values = folded(points, sides, mean_ratio)
            paper = "Multipath TCP performed better with losses in bursts than with uniform ones of 1 %."
            found.append(Claim(paper, f"goodput of Multipath TCP, bursts × uniform{controls}", values, least=1))
    return found


def figure5(points: Points) -> list[Claim]:
    """Return the claims about Multipath TCP over paths with different delays and losses in bursts."""
    found = []
    for inner in _inner(points):
        for outer in _outer(points):
            cell, controls = Cell("mptcp", inner, outer), _controls(inner, outer)
            for loss, ats in _by_loss(points).items():
                even, uneven = [at for at in ats if at.second == at.first], [at for at in ats if at.second > at.first]
                if even and uneven:
                    sides = [(cell, at) for at in (even[0], *uneven)]
                    values = folded(points, sides, lambda first, *others: first / max(others))
                    what = f"goodput with equal RTTs × the best with others, loss {loss}{controls}"
                    found.append(Claim("The best performance is with RTTs of 1:1.", what, values, least=1))
                if len(uneven) > 1:
                    values = folded(points, [(cell, uneven[-1]), (cell, uneven[0])], lambda last, first: last / first)
                    what = f"goodput at the greatest ratio × that at the least above 1:1, loss {loss}{controls}"
                    paper = "The degradation did not worsen as the degree of asymmetry was increased."
                    found.append(Claim(paper, what, values, least=NOT_WORSE))
    return found


def figure6(points: Points) -> list[Claim]:
    """Return the claims about UDP beside TCP over one path."""
    return [
        Claim(
            "A VPN over UDP has clear advantages over one over TCP, whatever RTT and loss.",
            f"goodput, UDP × TCP, one path, loss {loss}{_controls(inner, outer)}",
            ratio(points, Cell("udp", inner), Cell("tcp", inner, outer), ats),
            least=1,
        )
        for inner in _inner(points)
        for outer in _outer(points)
        for loss, ats in _by_loss(points).items()
    ]


def _multipath_udp(points: Points, inner: str, outer: str, loss: str, ats: Sequence[Condition]) -> Claim:
    return Claim(
        "Multipath UDP (50/50) performs better than Multipath TCP.",
        f"goodput, 50/50 × Multipath TCP, loss {loss}{_controls(inner, outer)}",
        ratio(points, Cell("50/50", inner), Cell("mptcp", inner, outer), ats),
        least=1,
    )


def figure7(points: Points) -> list[Claim]:
    """Return the claims about Multipath UDP beside Multipath TCP without loss."""
    found = []
    ats = points.conditions
    for inner in _inner(points):
        for outer in _outer(points):
            udp, mptcp, controls = Cell("50/50", inner), Cell("mptcp", inner, outer), _controls(inner, outer)
            found.append(_multipath_udp(points, inner, outer, "0", ats))
            if len(ats) > 1:
                sides = [(cell, at) for at in (ats[-1], ats[0]) for cell in (udp, mptcp)]
                values = folded(points, sides, lambda a, b, c, d: (a / b) / (c / d))
                what = f"50/50 × Multipath TCP at the longest RTT, × that at the shortest{controls}"
                found.append(
                    Claim("The difference becomes more significant as the RTT increases.", what, values, least=1)
                )
    return found


def figure9(points: Points) -> list[Claim]:
    """Return the claims about Multipath UDP beside Multipath TCP with losses."""
    found = []
    by_loss = _by_loss(points)
    clean = by_loss.pop("0", [])
    for inner in _inner(points):
        for outer in _outer(points):
            udp, mptcp, controls = Cell("50/50", inner), Cell("mptcp", inner, outer), _controls(inner, outer)
            for loss, ats in by_loss.items():
                found.append(_multipath_udp(points, inner, outer, loss, ats))
                pairs = [(at, without) for at in ats for without in clean if at.first == without.first]
                sides = [(cell, at) for pair in pairs for at in pair for cell in (udp, mptcp)]
                values = folded(points, sides, _mean_of_quotients)
                what = f"50/50 × Multipath TCP with loss {loss}, × that without{controls}"
                found.append(Claim("With losses the advantage is not as significant.", what, values, most=1))
    return found


def _mean_of_quotients(*rates: float) -> float:
    """Return the geometric mean of (a / b) / (c / d), over each group of four *rates*."""
    fours = zip(*(rates[start::4] for start in range(4)), strict=True)
    return geometric_mean([(a / b) / (c / d) for a, b, c, d in fours])


def figure10(points: Points) -> list[Claim]:
    """Return the claims about Multipath UDP beside Multipath TCP over paths with different delays."""
    found = []
    uneven = _asymmetric(points)
    losses = list(dict.fromkeys(at.loss for at in uneven))
    for inner in _inner(points):
        for outer in _outer(points):
            udp, mptcp, controls = Cell("50/50", inner), Cell("mptcp", inner, outer), _controls(inner, outer)
            for loss in losses:
                ats = [at for at in uneven if at.loss == loss]
                what = f"goodput, 50/50 × Multipath TCP, RTTs that differ, loss {loss}{controls}"
                paper = "Split at random, without putting it in order, Multipath UDP is poor where the delays differ."
                found.append(Claim(paper, what, ratio(points, udp, mptcp, ats), most=1))
                if len(ats) > 1:
                    sides = [(cell, at) for at in (ats[-1], ats[0]) for cell in (udp, mptcp)]
                    what = f"50/50 × Multipath TCP at the greatest ratio, × that at the least, loss {loss}{controls}"
                    values = folded(points, sides, _mean_of_quotients)
                    found.append(Claim("The effect is more pronounced, the more they differ.", what, values, most=1))
            if len(losses) > 1:
                pairs = [(Condition(at.first, at.second, losses[-1]), at) for at in uneven if at.loss == losses[0]]
                sides = [(cell, at) for pair in pairs for at in pair for cell in (udp, mptcp)]
                values = folded(points, sides, _mean_of_quotients)
                what = f"50/50 × Multipath TCP with loss {losses[-1]}, × that with {losses[0]}{controls}"
                found.append(
                    Claim("Relative to Multipath TCP it gets better as the loss rises.", what, values, least=1)
                )
    return found


def figure11(points: Points) -> list[Claim]:
    """Return the claims about sending less by the longer path, and about a scheduler that knows the delays."""
    found = []
    for inner in _inner(points):
        for loss in dict.fromkeys(at.loss for at in _asymmetric(points)):
            ats = [at for at in _asymmetric(points) if at.loss == loss]
            for split in ("75/25", "90/10"):
                values = ratio(points, Cell(split, inner), Cell("50/50", inner), ats)
                what = f"goodput, {split} × 50/50, loss {loss}{_controls(inner)}"
                found.append(Claim("Less by the longer path improves Multipath UDP.", what, values, least=1))
            for outer in _outer(points):
                mptcp, controls = Cell("mptcp", inner, outer), _controls(inner, outer)
                for way, paper in (
                    ("90/10", "So split, it outperforms Multipath TCP where the delays differ."),
                    ("tunnel", "A light scheduler that knows the delays outperforms Multipath TCP (here: ours)."),
                ):
                    values = ratio(points, Cell(way, inner), mptcp, ats)
                    what = f"goodput, {way} × Multipath TCP, loss {loss}{controls}"
                    found.append(Claim(paper, what, values, least=1))
    return found


def trace_claims(acknowledged: Mapping[tuple[Cell, int], int]) -> list[Claim]:
    """Return Figure 8's claims; *acknowledged* has the bytes after 0.3 s at the web server, by cell and round."""
    udp = {number: octets for (cell, number), octets in acknowledged.items() if cell.way == "50/50"}
    found = []
    for outer in sorted({cell.outer for cell, _ in acknowledged if cell.outer}):
        mptcp = {n: octets for (cell, n), octets in acknowledged.items() if (cell.way, cell.outer) == ("mptcp", outer)}
        values = tuple(udp[number] / max(1, mptcp[number]) for number in sorted(udp.keys() & mptcp.keys()))
        paper = "Multipath TCP is much slower in grabbing the available bandwidth than Multipath UDP."
        what = f"acknowledged after 0.3 s, 50/50 × Multipath TCP{_controls('cubic', outer)}"
        found.append(Claim(paper, what, values, least=NOTICEABLE))
    return found


@dataclass(frozen=True, slots=True)
class Lost:
    """Losses over one path in one round, as shares."""

    loss: str
    round: int
    one_way: float
    """Share of packets lost in one direction, the mean of both directions."""
    pings: float
    """Share of packets lost that cross the path in both directions, as pings do."""
    short: float
    """Share of bursts with only one or two packets."""


def bursts(lost: Sequence[int]) -> list[int]:
    """Return the lengths of the runs of consecutive numbers in *lost*, which is ascending."""
    lengths: list[int] = []
    for number, one in enumerate(lost):
        if number and one == lost[number - 1] + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def loss_claims(found: Sequence[Lost]) -> list[Claim]:
    """Return the claims of Table 1."""
    claims = []
    for loss in GOOD_LOSS:
        own = [each for each in found if each.loss == loss]
        percent = float(loss.removeprefix("ge"))
        pings, short = tuple(100 * each.pings for each in own), tuple(100 * each.short for each in own)
        paper = f"With 1 - k of {GOOD_LOSS[loss]:.1%} the observed loss rate is {percent:g} %."
        claims.append(Claim(paper, f"lost of pings, {loss}", pings, " %", least=percent - HALF, most=percent + HALF))
        paper = "Most of the bursts (more than 90 %) have no more than two packets."
        claims.append(Claim(paper, f"bursts of one or two, {loss}", short, " %", least=90))
    return claims


def loss_aims(found: Sequence[Lost], runs: int) -> list[Aim]:
    """Return the aims that *runs* rounds were measured, over paths with the intended loss."""
    rounds = min((sum(each.loss == loss for each in found) for loss in GOOD_LOSS), default=0)
    aims = [Aim("rounds of everything", rounds, least=runs)]
    for loss in GOOD_LOSS:
        model = loss_of(loss)
        assert model is not None
        own = [each.one_way for each in found if each.loss == loss]
        aims.append(
            Aim(f"lost one way, {loss}, × what the model says", mean_or_nan(own) / model.mean, least=0.8, most=1.2)
        )
    return aims
