# SPDX-License-Identifier: GPL-2.0-or-later
"""The paper's claims about Table 1, judged by the measurements. Each claim has its own function.

Two quantities are compared by the medians of each repetition, since one median over all segments would hide how much
the repetitions differ.
"""

from __future__ import annotations

from ..result_file import Judgement
from ..statistics import compare, percentiles
from .claims import SPARE
from .judging import Finding, above, claim, either, explained
from .quantities import show
from .results import (
    ANSWER,
    BULK,
    DATA,
    DELAYS,
    DOWN,
    LEAST_IDLE,
    MPTCP,
    OWN_SYN,
    STREAM,
    SYN,
    TCP,
    UP,
    WHOLE,
    Measurements,
    Missing,
    Statistic,
    metric_of_median,
)

SAME_SIZE = 2.0
"""A median within this factor of the paper's counts as the same, because the machines are ten years apart."""
PERCENTILES = (50, 95, 99)


def _values(m: Measurements, kind: str, direction: str, case: str = MPTCP) -> tuple[float, ...]:
    values = m.pooled(f"{kind} {direction}", case)
    if not values:
        raise Missing(f"{kind} {direction} of {m.case(case).title} was not measured")
    return values


def _tail(values: tuple[float, ...]) -> str:
    middle, *tail = (show(value, "s") for value in percentiles(values, PERCENTILES))
    return f"{middle} at the median, p95 {tail[0]}, p99 {tail[1]} (n = {len(values)})"


def _paper(kind: str) -> float:
    return next(reference.value for reference in DELAYS if reference.where == kind)


def _against(m: Measurements, kind: str, found: Statistic, more: str) -> tuple[Judgement, str]:
    """Return the verdict on medians compared with the paper's, and the reason. *more* is added if ours are shorter."""
    paper = _paper(kind)
    if above(found, paper, SAME_SIZE):
        return "fails", f"{found.mean / paper:.1f} times the paper's."
    idle = m(MPTCP, LEAST_IDLE)
    return explained(
        above(found, paper, 1 / SAME_SIZE),
        lambda: above(idle, SPARE),
        "The paper's proxy was a guest of ESXi, short of memory and processor time, as its authors say. This one, "
        f"{paper / found.mean:.0f} times as fast, had {idle.mean:.0%} of its busiest processor to spare. {more}",
    )


def _median(m: Measurements, kind: str, direction: str) -> Statistic:
    return m(MPTCP, metric_of_median(f"{kind} {direction}"))


@claim(
    "table1",
    "syn",
    "From the client's connection to the SYN towards the origin: 8.5 ms (0.0078341 + 0.0006805 s; "
    f"within a factor of {SAME_SIZE:g}).",
)
def _syn(m: Measurements) -> Finding:
    plain = percentiles(_values(m, SYN, UP, TCP), (50,))[0]
    whole = _tail(_values(m, WHOLE, UP))
    return Finding(
        f"Client's third ACK in to SYN out: {_tail(_values(m, SYN, UP))}. From the client's SYN, its handshake "
        f"within: {whole}. By plain TCP {show(plain, 's')}: the time is Squid's, Multipath TCP has little part in it.",
        *_against(m, SYN, _median(m, SYN, UP), "What is left is Squid reading the request, deciding, and connecting."),
    )


@claim(
    "table1",
    "data",
    f"A data segment takes 23.4 ms through the proxy (0.0153311 + 0.0080645 s; within a factor of {SAME_SIZE:g}).",
)
def _data(m: Measurements) -> Finding:
    up, down = _values(m, DATA, UP), _values(m, DATA, DOWN)
    bulk = _values(m, BULK, DOWN)
    return Finding(
        f"Request in to request out: {_tail(up)}. Response in to response out: {_tail(down)}. In 1 MB downloads, which "
        f"come faster than the client's paths take them: {_tail(bulk)}.",
        *_against(
            m,
            DATA,
            max((_median(m, DATA, way) for way in (UP, DOWN)), key=lambda found: found.mean),
            "Times like the paper's are had where data waits: in bulk downloads it stands in the proxy's send buffer "
            "until the client's window opens. The paper does not say whether its segments did.",
        ),
    )


@claim(
    "table1", "data-slower", "Data takes longer than the SYN, since it has to go up to the application and down again."
)
def _slower(m: Measurements) -> Finding:
    syn, datas = _median(m, SYN, UP), [_median(m, DATA, way) for way in (UP, DOWN)]
    slower = [compare(data.values, syn.values).holds for data in datas]
    if not all(slower) and False not in slower:
        raise Missing("The medians of SYN and data are too close, or too few, to tell which takes longer")
    own, segment = m(MPTCP, OWN_SYN), _median(m, STREAM, UP)
    return Finding(
        f"Medians: SYN {show(syn.mean, 's')}, request {show(datas[0].mean, 's')}, response {show(datas[1].mean, 's')}. "
        f"From the whole request to the SYN Squid takes {show(own.mean, 's')}; a segment that waits for nobody passes "
        f"it in {show(segment.mean, 's')}.",
        *explained(
            all(slower),
            lambda: above(own, segment),
            "Squid sends the SYN only after it has read and understood the whole request: that SYN goes through the "
            "application as well, and through more of it than a piece of content, which is read and written.",
        ),
    )


@claim(
    "table1",
    "user-space",
    "The passage between kernel and user space adds to the delay of each data segment.",
)
def _user_space(m: Measurements) -> Finding:
    kernel, passage, own = m(MPTCP, ANSWER), _median(m, STREAM, DOWN), m.mean(MPTCP, OWN_SYN)
    return Finding(
        f"A segment of content goes up to Squid and down again in {show(passage.mean, 's')} at the median; the kernel "
        f"alone answers a client's SYN in {show(kernel.mean, 's')}. What Squid does with a request before it connects "
        f"takes {show(own, 's')}, from the request's last byte to the SYN.",
        either(above(passage, kernel, SAME_SIZE)),
    )
