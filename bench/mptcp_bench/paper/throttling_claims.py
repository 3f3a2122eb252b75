# SPDX-License-Identifier: GPL-2.0-or-later
"""The paper's claims about its Figures 6 and 7, the throttled transfers. Each claim has its own function.

Each claim is about a transfer whose cap on Ethernet was in force. If the cap never came into force, the claim fails,
whatever the rates were, because nothing was throttled.
"""

from __future__ import annotations

from mptcp_common.units import approximate_rate

from .claims import MARGIN, mbit
from .judging import FEWEST, Finding, above, claim, either, explained, no_less, shifted, within
from .results import (
    BEFORE_CAP,
    CAPPED,
    DURATION,
    ETHERNET,
    GOODPUT,
    JOINED,
    TIME_TO_THROTTLE,
    WIFI,
    Measurements,
    Missing,
    Statistic,
    rate,
    share,
    statistic_of,
)

AT_ONCE = 0.1
"""A cap that is in force within these seconds counts from the transfer's start. On first transfers it comes later."""
LANDED = 1.0
"""Maximum seconds until a soft cap is in force (docs/soft-start.md)."""
FULL_SPEED = 0.8
"""Minimum rate of Ethernet until a soft cap is in force, as a share of its unthrottled rate."""
SLIGHT = 0.5
"""Maximum additional seconds of completion time that count as "a miniature impact"."""
ON_TIME = 0.1
"""If a cap comes within this share of the transfer's duration, it counts as in force from the transfer's start."""
CAP_TOLERANCE = 0.05
MORE = 1.05
"""A rate is "more" than another if it exceeds the other by this factor."""
LESS = 0.95
FULL = 0.9
"""Wi-Fi counts as full if it carries this share of its unthrottled rate."""


def _milliseconds(statistic: Statistic) -> str:
    """Return a time as text. A time below one sample is not known more precisely."""
    if max(statistic.values) == 0:
        return "less than one sample"
    half = f" ± {1e3 * statistic.half:.0f}" if statistic.half is not None else ""
    return f"{1e3 * statistic.mean:.0f}{half} ms"


def _never(m: Measurements, case: str) -> Finding | None:
    """Return a finding if a transfer of *case* was never capped, or None. Raises Missing for a single transfer."""
    capped = m(case, CAPPED)
    if capped.n < FEWEST:
        raise Missing(f"A single transfer of {m.case(case).title} does not tell whether its cap comes")
    if min(capped.values) == 1:
        return None
    return Finding(
        f"The cap on Ethernet never came into force in {capped.values.count(0.0)} of {capped.n} transfers of "
        f"{m.case(case).title}.",
        "fails",
    )


def _first_after(m: Measurements) -> Statistic:
    """Return the time from the join to the throttling of first transfers; if they ended before, their duration."""
    least = [
        run.values.get(TIME_TO_THROTTLE, run.values[DURATION] - run.values.get(JOINED, 0.0))
        for run in m.valid("first")
        if DURATION in run.values
    ]
    if not least:
        raise Missing("The first transfer was not measured")
    return statistic_of("first", TIME_TO_THROTTLE, least)


def _steady(m: Measurements, case: str) -> Statistic:
    """Return the steady rate of both paths together in bits/s. Raises Missing if no run has both."""
    runs = [run.values for run in m.valid(case)]
    both = [run[rate(ETHERNET)] + run[rate(WIFI)] for run in runs if {rate(ETHERNET), rate(WIFI)} <= run.keys()]
    if not both:
        raise Missing(f"What both paths carried of {case} was not measured")
    return statistic_of(case, "rate of both paths", both)


@claim(
    "fig6",
    "first-escapes",
    "The first transfer runs for a while before the queueing disciplines are configured, a repeated one does not.",
)
def _fig6_first_escapes(m: Measurements) -> Finding:
    if never := _never(m, "repeated"):
        return never
    first, again, duration = _first_after(m), m("repeated", TIME_TO_THROTTLE), m("first", DURATION)
    later = above(shifted(first, -AT_ONCE), again)
    missed = m("first", CAPPED).values.count(0.0)
    late = f" (in {missed} of them not before their end)" if missed else ""
    return Finding(
        f"The cap is in force {_milliseconds(first)} after the second subflow joined in first transfers{late}, "
        f"{_milliseconds(again)} in repeated ones; the first takes {duration.mean:.2f} s.",
        *explained(
            later and not above(again, AT_ONCE),
            lambda: not missed and not later and not above(first, LANDED),
            "Classes are made when the policy is loaded, so that a first transfer is throttled like any other: its cap "
            "is in force as soon as that of a repeated one.",
        ),
    )


@claim(
    "fig6",
    "small-impact",
    f"On the first transfer of 5 MB the throttling has a miniature impact on delivery time (up to {SLIGHT:g} s).",
)
def _fig6_small_impact(m: Measurements) -> Finding:
    if never := _never(m, "repeated"):
        return never
    free, first = m("free", DURATION), m("first", DURATION)
    cap = m.case("first").caps[ETHERNET]
    more = first.mean - free.mean
    late = above(shifted(first, -SLIGHT), free)
    return Finding(
        f"{free.mean:.2f} s not throttled, {first.mean:.2f} s with Ethernet at {approximate_rate(cap)}: {more:+.2f} s.",
        *explained(
            not late,
            lambda: (
                _never(m, "first") is None
                and not above(m("first", TIME_TO_THROTTLE), LANDED)
                and above(m("first", rate(WIFI)), m("tcp-wifi", rate(WIFI)), FULL)
            ),
            "The paper's first transfer was over before its throttle was in place. Here the cap is in force within a "
            "second, so that part of 5 MB has to take the slower path, as the policy asks, and that one is full.",
        ),
    )


@claim(
    "fig6",
    "repeated-throttled",
    "A repeated transfer finds the policy installed and is throttled without the first one's overhead.",
)
def _fig6_repeated_throttled(m: Measurements) -> Finding:
    if never := _never(m, "repeated"):
        return never
    free, repeated = m("free", share(ETHERNET)), m("repeated", share(ETHERNET))
    first, again, duration = _first_after(m), m("repeated", TIME_TO_THROTTLE), m("repeated", DURATION)
    relieved = not above(repeated, free, LESS)
    on_time = relieved and not above(again, duration, ON_TIME)
    speed, full = m.statistic("repeated", BEFORE_CAP), m("free", rate(ETHERNET))
    before = (
        ""
        if speed is None
        else f"; until then Ethernet carried up to {mbit(speed)}, not throttled {full.mean / 1e6:.1f}"
    )
    if on_time:
        verdict = explained(
            above(shifted(first, -AT_ONCE), again),
            lambda: not above(first, AT_ONCE),
            "A first transfer has no overhead that a repeated one could be without: classes are made when the policy "
            "is loaded.",
        )
    else:
        verdict = explained(
            False,
            lambda: relieved and not above(again, LANDED) and speed is not None and above(speed, full, FULL_SPEED),
            "The cap lands softly, on a repeated transfer too: what waits for Ethernet leaves at full speed before its "
            "rate falls.",
        )
    return Finding(
        f"Ethernet carries {repeated.mean:.0%} of a repeated transfer ({free.mean:.0%} when not throttled); the "
        f"cap is in force after {_milliseconds(again)} of {duration.mean:.2f} s, of a first transfer after "
        f"{_milliseconds(first)}{before}.",
        *verdict,
    )


@claim(
    "fig6",
    "no-less",
    "A throttled connection has no less capacity than a single-path TCP session, here over Wi-Fi (section 3.4; margin "
    f"{MARGIN:.0%}).",
)
def _fig6_no_less(m: Measurements) -> Finding:
    if never := _never(m, "repeated"):
        return never
    alone, repeated = m("tcp-wifi", GOODPUT), m("repeated", GOODPUT)
    # Also compare steady rates, because goodput may include bytes that Ethernet carried before its cap was in force.
    steady, link = _steady(m, "repeated"), m("tcp-wifi", rate(WIFI))
    return Finding(
        f"{mbit(repeated)} in the repeated transfer, {mbit(alone)} by TCP over Wi-Fi alone; while Ethernet was "
        f"throttled both paths carried {mbit(steady)}, Wi-Fi {mbit(m('repeated', rate(WIFI)))}, and {mbit(link)} by "
        "TCP alone.",
        either(no_less(repeated, alone, MARGIN) and no_less(steady, link, MARGIN)),
    )


@claim("fig7", "cap", "Ethernet is held at the limit that the operator chose.")
def _fig7_cap(m: Measurements) -> Finding:
    if never := _never(m, "throttled"):
        return never
    ethernet, cap = m("throttled", rate(ETHERNET)), m.case("throttled").caps[ETHERNET]
    return Finding(
        f"{mbit(ethernet)} on the wire once steady, {ethernet.mean / cap:.3f} of its cap.",
        either(within(ethernet, (1 - CAP_TOLERANCE) * cap, (1 + CAP_TOLERANCE) * cap)),
    )


@claim("fig7", "offload", "Data moves to Wi-Fi, which achieves a higher throughput than without the throttle.")
def _fig7_offload(m: Measurements) -> Finding:
    if never := _never(m, "throttled"):
        return never
    free, throttled = m("free", rate(WIFI)), m("throttled", rate(WIFI))
    parts = m("free", share(WIFI)), m("throttled", share(WIFI))
    alone = m("tcp-wifi", rate(WIFI))
    moved = above(parts[1], parts[0], MORE)
    return Finding(
        f"Wi-Fi carries {parts[1].mean:.0%} of the bytes instead of {parts[0].mean:.0%}, {mbit(throttled)} on the wire "
        f"instead of {mbit(free)}.",
        *explained(
            moved and above(throttled, free, MORE),
            lambda: moved and above(free, alone, LESS) and above(throttled, free, FULL),
            "Its share rises as the paper says; its throughput cannot, since Wi-Fi carries all it can without any "
            "throttle (Figure 3).",
        ),
    )


@claim(
    "fig7",
    "inferior",
    "The whole is inferior to a transfer that is not throttled, by what the limit takes from Ethernet.",
)
def _fig7_inferior(m: Measurements) -> Finding:
    if never := _never(m, "throttled"):
        return never
    free, throttled = m("free", GOODPUT), m("throttled", GOODPUT)
    # Also compare Wi-Fi's rates, because goodput includes the bytes of both paths before the cap was in force.
    kept, link = m("throttled", rate(WIFI)), m("free", rate(WIFI))
    return Finding(
        f"{mbit(throttled)} instead of {mbit(free)}; Wi-Fi carried {mbit(kept)} on the wire instead of {mbit(link)}.",
        either(not above(throttled, free, LESS) and no_less(kept, link, MARGIN)),
    )


@claim("fig7", "outperforms", "Multipath TCP still outperforms legacy TCP over the better remaining path.")
def _fig7_outperforms(m: Measurements) -> Finding:
    if never := _never(m, "throttled"):
        return never
    throttled, alone = m("throttled", GOODPUT), m("tcp-wifi", GOODPUT)
    return Finding(
        f"{mbit(throttled)} against {mbit(alone)} by TCP over Wi-Fi alone: {throttled.mean / alone.mean:.2f} times.",
        either(above(throttled, alone, MORE)),
    )
