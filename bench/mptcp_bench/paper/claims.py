"""What the paper says of its Figures 2 to 7, judged by what was measured: one function for each claim."""

from __future__ import annotations

from mptcp_common.units import approximate_rate, approximate_size

from .judging import Claims, Finding, Measured, Missing, either, explained, separate
from .results import (
    DURATION,
    ETHERNET,
    GOODPUT,
    OUT_OF_ORDER,
    RECEIVER_DROPS,
    RETRANSMISSION_SHARE,
    RETRANSMISSIONS,
    TIME_TO_THROTTLE,
    WIFI,
    Statistic,
    rate,
    share,
)

CLAIMS = Claims()
UNUSED = 0.05
"""Share of all bytes below which a path is "almost fully underutilized"."""
SATISFACTORY = 0.8
"""Of the most that Wi-Fi was seen to carry: a "satisfactory throughput rate"."""
SATURATED = 0.95
"""Of the greatest goodput of the sweep: more buffer no longer helps."""
STABLE = 0.9
"""The same for Ethernet: "naturally stable behavior"."""
SEVERAL = 2
"""Times that make one rate "several times" another, at the least."""
HARDLY = 0.0005
"""Share of segments sent twice below which nothing to speak of was lost."""
AT_ONCE = 0.1
"""Seconds within which a cap is in force for a transfer to be throttled from its start."""
LANDED = 1.0
"""Seconds within which a cap that lands softly is in force (docs/soft-start.md)."""
HEADERS_LEAVE = ((1000 - 80) / 1014) / ((1500 - 80) / 1514)
"""Payload with MTU 1000 against 1500: IPv4 and TCP headers with timestamps and DSS are 80 bytes, and the shapers count
14 of Ethernet (experiments/scene.py)."""
SLIGHT = 0.5
"""Seconds of completion time that are "a miniature impact"."""
ON_TIME = 0.1
"""Share of a transfer's time by which a cap that is in force was in force from its start."""
CAP_TOLERANCE = 0.05


def mbit(statistic: Statistic) -> str:
    """Return a rate with its confidence interval for people."""
    half = f" ± {(statistic.high - statistic.mean) / 1e6:.1f}" if statistic.high is not None else ""
    return f"{statistic.mean / 1e6:.1f}{half} Mbit/s"


def _milliseconds(statistic: Statistic) -> str:
    """Return a time for people; one that is shorter than a sample is not known any closer."""
    if max(statistic.values) == 0:
        return "less than one sample"
    half = f" ± {1e3 * (statistic.high - statistic.mean):.0f}" if statistic.high is not None else ""
    return f"{1e3 * statistic.mean:.0f}{half} ms"


@CLAIMS.of(
    "fig2",
    "fallback",
    "The server does not know Multipath TCP: the client's attempt fails and one plain TCP connection carries all.",
)
def _fig2_fallback(m: Measured) -> Finding:
    asked = m.valid("tcp-ethernet") + m.valid("tcp-wifi")
    others = [run for run in m.result.failed() if "did not fall back" in run.reason]
    if not asked and not others:
        raise Missing("No download was measured")
    return Finding(
        f"In {asked} of {asked + len(others)} downloads the client sent MP_CAPABLE and fell back, by the kernel's "
        "own counters.",
        either(not others),
    )


@CLAIMS.of(
    "fig2", "alone", "Each interface gives its own link's throughput; Ethernet several times that of Wi-Fi (Figure 2)."
)
def _fig2_alone(m: Measured) -> Finding:
    ethernet, wifi = m("tcp-ethernet", GOODPUT), m("tcp-wifi", GOODPUT)
    return Finding(
        f"Ethernet {mbit(ethernet)}, Wi-Fi {mbit(wifi)} of payload.",
        either(separate(wifi, ethernet) and ethernet.mean >= SEVERAL * wifi.mean),
    )


@CLAIMS.of("fig3", "capacity", "Multipath TCP offers no less capacity than a legacy TCP session.")
def _fig3_capacity(m: Measured) -> Finding:
    both, alone = m("mptcp", GOODPUT), m("tcp-ethernet", GOODPUT)
    return Finding(
        f"{mbit(both)} over both paths, {mbit(alone)} by TCP over Ethernet: {both.mean / alone.mean:.2f} times.",
        either(not separate(both, alone)),
    )


@CLAIMS.of(
    "fig3",
    "ethernet-first",
    "The largest percentage of packets goes over Ethernet, which has more capacity and the shorter RTT.",
)
def _fig3_ethernet_first(m: Measured) -> Finding:
    ethernet, wifi = m("mptcp", share(ETHERNET)), m("mptcp", share(WIFI))
    return Finding(
        f"Ethernet carried {ethernet.mean:.0%} of the bytes, Wi-Fi {wifi.mean:.0%}.",
        either(ethernet.mean > wifi.mean),
    )


@CLAIMS.of("fig3", "wifi-unused", "Wi-Fi remains almost fully underutilized as long as Ethernet is not congested.")
def _fig3_wifi_unused(m: Measured) -> Finding:
    wifi, alone = m("mptcp", rate(WIFI)), m("tcp-wifi", rate(WIFI))
    part = m.mean("mptcp", share(WIFI))
    return Finding(
        f"Wi-Fi carried {mbit(wifi)}, {wifi.mean / alone.mean:.0%} of what it gives alone, {part:.0%} of the bytes.",
        *explained(
            part < UNUSED,
            wifi.mean >= SATISFACTORY * alone.mean,
            "The scheduler of today's Linux gives a segment to the subflow that will have sent its queue soonest, so "
            "that a full Ethernet window spills over to Wi-Fi at once. MPTCP 0.89 took the subflow with the shortest "
            "RTT as long as its window was open, and its coupled congestion control (LIA) held the worse path's "
            "window down; upstream Linux has no coupled congestion control: each subflow takes what its path gives.",
        ),
    )


@CLAIMS.of("fig4", "small-degrades", "With 0.18 MB, less than required, the service is degraded.")
def _fig4_small_degrades(m: Measured) -> Finding:
    small, large = m("small", GOODPUT), m("large", GOODPUT)
    return Finding(
        f"{mbit(small)} with 0.18 MB, {mbit(large)} with 0.72 MB.",
        either(separate(small, large)),
    )


@CLAIMS.of(
    "fig4", "small-loses", "A buffer that is too small makes the receiver lose data, which has to be retransmitted."
)
def _fig4_small_loses(m: Measured) -> Finding:
    small, large = m("small", RETRANSMISSIONS), m("large", RETRANSMISSIONS)
    shares = m("small", RETRANSMISSION_SHARE), m("large", RETRANSMISSION_SHARE)
    drops = [m.result.statistic(case, RECEIVER_DROPS) for case in ("small", "large")]
    dropped = drops[0] is not None and drops[1] is not None and separate(drops[1], drops[0])
    told = "" if drops[0] is None else f"The receiver dropped {drops[0].mean:.0f} with 0.18 MB. "
    return Finding(
        f"{told}Segments retransmitted by the proxy: {small.mean:.0f} with 0.18 MB ({shares[0].mean:.2%}), "
        f"{large.mean:.0f} with 0.72 MB ({shares[1].mean:.2%}). Greatest receive memory in use: "
        f"{approximate_size(m.mean('small', OUT_OF_ORDER))} and {approximate_size(m.mean('large', OUT_OF_ORDER))}.",
        *explained(
            separate(shares[1], shares[0]) or dropped,
            shares[0].mean < HARDLY and (drops[0] is None or drops[0].mean < 1),
            "A receiver of today never advertises more than it can hold: the connection's window (RFC 8684, 3.3.1) "
            "keeps the sender waiting, and a small buffer costs throughput instead of packets. What is retransmitted "
            "was lost in the queue of a link.",
        ),
    )


@CLAIMS.of(
    "fig4", "large-suffices", "With 0.72 MB the wired path is stable and Wi-Fi achieves a satisfactory throughput."
)
def _fig4_large_suffices(m: Measured) -> Finding:
    wifi, ethernet = m("large", rate(WIFI)), m("large", rate(ETHERNET))
    swept = [case.key for case in m.result.of_kind("sweep")]
    most = {
        path: max((s.mean for s in m.result.summary if s.case in swept and s.metric == rate(path)), default=0.0)
        for path in (ETHERNET, WIFI)
    }
    if not all(most.values()):
        raise Missing("The most that each path carries with any buffer was not measured")
    parts = ethernet.mean / most[ETHERNET], wifi.mean / most[WIFI]
    return Finding(
        f"Ethernet {mbit(ethernet)}, Wi-Fi {mbit(wifi)}: {parts[0]:.0%} and {parts[1]:.0%} of their most in the sweep.",
        either(parts[0] >= STABLE and parts[1] >= SATISFACTORY),
    )


@CLAIMS.of(
    "fig4",
    "required",
    "The buffer required is at most 2 × sum of bandwidth × greatest RTT, 0.48 MB in the paper's testbed.",
)
def _fig4_required(m: Measured) -> Finding:
    found = ((case.at, m.result.statistic(case.key, GOODPUT)) for case in m.result.of_kind("sweep"))
    points = sorted((at, statistic) for at, statistic in found if at is not None and statistic is not None)
    if len(points) < 2:
        raise Missing("The sweep was not measured")
    best = max(s.mean for _, s in points)
    # From there on: a sweep is not smooth, and a smaller buffer may have had luck.
    short = [at for at, s in points if s.mean < SATURATED * best]
    enough = next(at for at, _ in points if at > max(short, default=0.0))
    needed = next((r.value for r in m.result.references if r.where == "sweep"), None)
    if needed is None:
        raise Missing("The requirement was not computed")
    before = max((at for at, _ in points if at < enough), default=0.0)
    held = enough <= needed
    nearest = next((s for at, s in reversed(points) if at <= needed), None)
    if nearest is not None and (nearest.low or 0.0) <= SATURATED * best <= (nearest.high or 0.0):
        raise Missing(
            f"Goodput with the buffer that was computed, {approximate_size(needed)}, is {mbit(nearest)}: whether that "
            f"is {SATURATED:.0%} of the greatest, {best / 1e6:.1f} Mbit/s, more repetitions would tell"
        )
    return Finding(
        f"Computed {approximate_size(needed)}. Goodput is {SATURATED:.0%} of its greatest, {best / 1e6:.1f} Mbit/s, "
        f"with {approximate_size(enough)}; the next smaller buffer tried was {approximate_size(before)}.",
        *explained(
            held,
            enough <= 2 * needed,
            "tcp_rmem counts the kernel's memory for a packet, not its payload, and the window is about half of it; "
            "queues at the links add to the RTT that the formula knows.",
        ),
    )


@CLAIMS.of("fig5", "lower", "Smaller packets lower the throughput.")
def _fig5_lower(m: Measured) -> Finding:
    small, full = m("mtu-1000", GOODPUT), m("mtu-1500", GOODPUT)
    ratio = small.mean / full.mean
    return Finding(
        f"{mbit(small)} with MTU 1000, {mbit(full)} with 1500: {ratio:.3f}; headers alone make {HEADERS_LEAVE:.3f}.",
        either(separate(small, full)),
    )


@CLAIMS.of("fig5", "unstable", "With MTU 1000 the receiver drops packets and the connection loses its stability.")
def _fig5_unstable(m: Measured) -> Finding:
    small, full = m("mtu-1000", RETRANSMISSION_SHARE), m("mtu-1500", RETRANSMISSION_SHARE)
    rates = m("mtu-1000", GOODPUT), m("mtu-1500", GOODPUT)
    left = rates[0].mean / rates[1].mean / HEADERS_LEAVE
    worse = left < SATURATED
    return Finding(
        f"Retransmitted: {small.mean:.2%} of the segments with MTU 1000, {full.mean:.2%} with 1500; goodput is "
        f"{left:.3f} of what the headers leave.",
        *explained(
            worse and separate(full, small),
            not worse and small.mean < HARDLY,
            "The paper's Raspberry Pi Model B (700 MHz, Ethernet behind USB) was short of processor time for half as "
            "many packets again; a host that is not pays for the headers and no more.",
        ),
    )


@CLAIMS.of(
    "fig6", "first-escapes", "The first transfer runs for a while before the queueing disciplines are configured."
)
def _fig6_first_escapes(m: Measured) -> Finding:
    first, duration = m("first", TIME_TO_THROTTLE), m("first", DURATION)
    again = m("repeated", TIME_TO_THROTTLE)
    return Finding(
        f"The cap is in force {_milliseconds(first)} after the second subflow joined in the first transfer, "
        f"{_milliseconds(again)} in the repeated one; the first takes {duration.mean:.2f} s.",
        *explained(
            first.mean > ON_TIME * duration.mean,
            first.mean <= AT_ONCE,
            "Classes are made when the policy is loaded and a subflow costs one entry in a set, set within "
            "milliseconds of its third ACK: a first transfer is throttled like any other.",
        ),
    )


@CLAIMS.of(
    "fig6", "small-impact", "On the first transfer of 5 MB the throttling has a miniature impact on delivery time."
)
def _fig6_small_impact(m: Measured) -> Finding:
    free, first = m("free", DURATION), m("first", DURATION)
    cap = m.result.case("first").caps[ETHERNET]
    more = first.mean - free.mean
    return Finding(
        f"{free.mean:.2f} s not throttled, {first.mean:.2f} s with Ethernet at {approximate_rate(cap)}: +{more:.2f} s.",
        *explained(
            more <= SLIGHT,
            m.mean("first", TIME_TO_THROTTLE) <= LANDED,
            "The paper's first transfer was over before its throttle was in place. Here the cap is in force within a "
            "second, so that part of 5 MB has to take the slower path, as the policy asks.",
        ),
    )


@CLAIMS.of(
    "fig6",
    "repeated-throttled",
    "A repeated transfer finds the policy installed and is throttled without the first one's overhead.",
)
def _fig6_repeated_throttled(m: Measured) -> Finding:
    free, repeated = m("free", share(ETHERNET)), m("repeated", share(ETHERNET))
    again, duration = m("repeated", TIME_TO_THROTTLE), m("repeated", DURATION)
    return Finding(
        f"Ethernet carries {repeated.mean:.0%} of a repeated transfer ({free.mean:.0%} when not throttled); the "
        f"cap is in force after {_milliseconds(again)} of {duration.mean:.2f} s.",
        *explained(
            separate(repeated, free) and again.mean <= ON_TIME * duration.mean,
            separate(repeated, free) and again.mean <= LANDED,
            "The cap lands softly, on a repeated transfer too: what waits for Ethernet leaves at full speed before its "
            "rate falls, so that Wi-Fi does not wait for it.",
        ),
    )


@CLAIMS.of(
    "fig6",
    "no-less",
    "A throttled connection has no less capacity than a single-path TCP session, here over Wi-Fi (section 3.4).",
)
def _fig6_no_less(m: Measured) -> Finding:
    alone, repeated = m("tcp-wifi", GOODPUT), m("repeated", GOODPUT)
    held = not separate(repeated, alone)
    return Finding(
        f"{mbit(repeated)} in the repeated transfer, {mbit(alone)} by TCP over Wi-Fi alone; Wi-Fi carried "
        f"{mbit(m('repeated', rate(WIFI)))} while Ethernet was throttled.",
        either(held),
        ""
        if held
        else "The cap falls on a subflow in full flight. What the scheduler had given to it before has to pass at the "
        "capped rate, and Wi-Fi waits for it (head-of-line blocking): a transfer this short has nothing left to make "
        "up for it.",
    )


@CLAIMS.of("fig7", "cap", "Ethernet is held at the limit that the operator chose.")
def _fig7_cap(m: Measured) -> Finding:
    ethernet, cap = m("throttled", rate(ETHERNET)), m.result.case("throttled").caps[ETHERNET]
    return Finding(
        f"{mbit(ethernet)} on the wire once steady, {ethernet.mean / cap:.3f} of its cap.",
        either(abs(ethernet.mean / cap - 1) <= CAP_TOLERANCE),
    )


@CLAIMS.of("fig7", "offload", "Data moves to Wi-Fi, which achieves a higher throughput than without the throttle.")
def _fig7_offload(m: Measured) -> Finding:
    free, throttled = m("free", rate(WIFI)), m("throttled", rate(WIFI))
    parts = m.mean("free", share(WIFI)), m.mean("throttled", share(WIFI))
    alone = m.mean("tcp-wifi", rate(WIFI))
    return Finding(
        f"Wi-Fi carries {parts[1]:.0%} of the bytes instead of {parts[0]:.0%}, {mbit(throttled)} on the wire "
        f"instead of {mbit(free)}.",
        *explained(
            separate(free, throttled),
            free.mean >= 0.95 * alone and throttled.mean >= 0.9 * free.mean and parts[1] > parts[0],
            "Its share rises as the paper says; its throughput cannot, since today's scheduler fills Wi-Fi without "
            "any throttle (Figure 3).",
        ),
    )


@CLAIMS.of(
    "fig7",
    "inferior",
    "The whole is inferior to a transfer that is not throttled, by what the limit takes from Ethernet.",
)
def _fig7_inferior(m: Measured) -> Finding:
    free, throttled = m("free", GOODPUT), m("throttled", GOODPUT)
    return Finding(
        f"{mbit(throttled)} instead of {mbit(free)}.",
        either(separate(throttled, free)),
    )


@CLAIMS.of("fig7", "outperforms", "Multipath TCP still outperforms legacy TCP over the better remaining path.")
def _fig7_outperforms(m: Measured) -> Finding:
    throttled, alone = m("throttled", GOODPUT), m("tcp-wifi", GOODPUT)
    return Finding(
        f"{mbit(throttled)} against {mbit(alone)} by TCP over Wi-Fi alone: {throttled.mean / alone.mean:.2f} times.",
        either(separate(alone, throttled)),
    )
