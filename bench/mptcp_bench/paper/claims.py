# SPDX-License-Identifier: GPL-2.0-or-later
"""The paper's claims about its Figures 2 to 5, judged by the measurements. Each claim has its own function."""

from __future__ import annotations

from collections import Counter

from mptcp_common.units import approximate_size, counted, parse_rate

from .judging import FEWEST, Finding, above, claim, either, explained, likely, no_less, within
from .results import (
    CASE_OF,
    ETHERNET,
    GOODPUT,
    LEAST_IDLE,
    NO_FALLBACK,
    OUT_OF_ORDER,
    RECEIVER_DROPS,
    RETRANSMISSION_SHARE,
    RETRANSMISSIONS,
    WIFI,
    Measurements,
    Missing,
    Statistic,
    rate,
    rtt,
    share,
)

MARGIN = 0.05
"""Non-inferiority margin: the largest accepted loss, as a share, for "no less"."""
UNUSED = 0.05
"""A path whose share of all bytes is lower is "almost fully underutilized"."""
SATISFACTORY = 0.8
"""Minimum share of Wi-Fi's greatest measured rate that is a "satisfactory throughput rate"."""
SATURATED = 0.95
"""From this share of the sweep's greatest goodput on, a larger buffer no longer helps."""
STABLE = 0.9
"""Minimum share of Ethernet's greatest measured rate that is "naturally stable behavior"."""
SEVERAL = 2
"""Minimum factor that counts as "several times"."""
OWN_LINK = 0.85, 1.0
"""Minimum and maximum payload rate of the only download on a link, as a share of the link's rate."""
LOWER = 0.99
"""Maximum ratio of two rates at which the first is "lower" than the second."""
HARDLY = 0.0005
"""If a smaller share of the segments is retransmitted, there were practically no losses."""
HEADERS_LEAVE = ((1000 - 80) / 1014) / ((1500 - 80) / 1514)
"""Payload share with MTU 1000 divided by the payload share with MTU 1500. IPv4 and TCP headers with timestamps and DSS
are 80 bytes, and the shapers count 14 bytes of Ethernet (experiments/payload.py)."""
FULL = 0.4
"""If samples every 0.1 s show this share of a receive buffer in use, the window, which is not measured, may be used up.
The buffer counts the kernel's memory for packets. About half of that is payload, which is the window."""
SPARE = 0.1
"""Minimum share of idle time of a host's busiest processor. With more idle time, no program on one processor had to
wait.

A busy thread that moves between processors leaves some idle time on each (``agent.processors``)."""


def mbit(statistic: Statistic) -> str:
    """Return a rate with its confidence interval as text."""
    half = f" ± {statistic.half / 1e6:.1f}" if statistic.half is not None else ""
    return f"{statistic.mean / 1e6:.1f}{half} Mbit/s"


@claim(
    "fig2",
    "fallback",
    "The server does not know Multipath TCP: the client's attempt fails and one plain TCP connection carries all.",
)
def _fig2_fallback(m: Measurements) -> Finding:
    valid = {case: len(m.valid(case)) for case in CASE_OF.values()}
    not_so = Counter(run.case for run in m.failed() if run.reason == NO_FALLBACK)
    asked, others = sum(valid.values()), not_so.total()
    if any(valid[case] + not_so[case] < FEWEST for case in valid):
        raise Missing(f"{counted(asked + others, 'download')}: too few over one of the interfaces to tell")
    return Finding(
        f"In {asked} of {asked + others} downloads the client sent MP_CAPABLE and fell back, by the kernel's own "
        "counters.",
        either(not others),
    )


@claim(
    "fig2", "alone", "Each interface gives its own link's throughput; Ethernet several times that of Wi-Fi (Figure 2)."
)
def _fig2_alone(m: Measurements) -> Finding:
    alone = {path: m(CASE_OF[path], GOODPUT) for path in (ETHERNET, WIFI)}
    several = above(alone[ETHERNET], alone[WIFI], SEVERAL)
    own, links = True, []
    for path, goodput in alone.items():
        # On real hosts, a link's rate is known only if the user stated it.
        if (text := m.parameters.get(f"{path}.rate")) is not None:
            link = parse_rate(str(text))
            links.append(f"{goodput.mean / link:.1%}")
            own &= within(goodput, OWN_LINK[0] * link, OWN_LINK[1] * link)
    of_links = f", {' and '.join(links)} of their links" if links else ""
    return Finding(
        f"Ethernet {mbit(alone[ETHERNET])}, Wi-Fi {mbit(alone[WIFI])} of payload{of_links}.", either(several and own)
    )


@claim("fig3", "capacity", f"Multipath TCP offers no less capacity than a legacy TCP session (margin {MARGIN:.0%}).")
def _fig3_capacity(m: Measurements) -> Finding:
    both, alone = m("mptcp", GOODPUT), m("tcp-ethernet", GOODPUT)
    return Finding(
        f"{mbit(both)} over both paths, {mbit(alone)} by TCP over Ethernet: {both.mean / alone.mean:.2f} times.",
        either(no_less(both, alone, MARGIN)),
    )


@claim(
    "fig3",
    "ethernet-first",
    "The largest percentage of packets goes over Ethernet, which has more capacity and the shorter RTT.",
)
def _fig3_ethernet_first(m: Measurements) -> Finding:
    if not above(m("tcp-ethernet", GOODPUT), m("tcp-wifi", GOODPUT)) or not above(
        m("mptcp", rtt(WIFI)), m("mptcp", rtt(ETHERNET))
    ):
        raise Missing("Here Ethernet has not both more capacity and the shorter RTT")
    ethernet, wifi = m("mptcp", share(ETHERNET)), m("mptcp", share(WIFI))
    times = " and ".join(f"{1e3 * m.mean('mptcp', rtt(path)):.1f} ms" for path in (ETHERNET, WIFI))
    return Finding(
        f"Ethernet carried {ethernet.mean:.0%} of the bytes, Wi-Fi {wifi.mean:.0%}; their idle RTTs are {times}.",
        either(above(ethernet, wifi)),
    )


@claim("fig3", "wifi-unused", "Wi-Fi remains almost fully underutilized as long as Ethernet is not congested.")
def _fig3_wifi_unused(m: Measurements) -> Finding:
    wifi, ethernet = m("mptcp", rate(WIFI)), m("mptcp", rate(ETHERNET))
    alone = m("tcp-wifi", rate(WIFI)), m("tcp-ethernet", rate(ETHERNET))
    used = wifi.mean / alone[0].mean, ethernet.mean / alone[1].mean
    part = m("mptcp", share(WIFI))
    return Finding(
        f"Wi-Fi carried {mbit(wifi)}, {part.mean:.0%} of the bytes: {used[0]:.0%} of what it gives alone, beside an "
        f"Ethernet that carried {used[1]:.0%} of what that does.",
        *likely(
            not above(part, UNUSED),
            "the scheduler of today's Linux gives a segment to the subflow that will have sent its queue soonest, so "
            "that what a full Ethernet does not take goes to Wi-Fi; MPTCP 0.89 left it unused because its coupled "
            "congestion control (LIA) held the worse path's window down, which upstream Linux does not have.",
            signs=lambda: above(wifi, alone[0], SATISFACTORY) and above(ethernet, alone[1], SATURATED),
        ),
    )


@claim("fig4", "small-degrades", "With 0.18 MB, less than required, the service is degraded.")
def _fig4_small_degrades(m: Measurements) -> Finding:
    small, large = m("small", GOODPUT), m("large", GOODPUT)
    return Finding(
        f"{mbit(small)} with 0.18 MB, {mbit(large)} with 0.72 MB.",
        either(not above(small, large, SATURATED)),
    )


@claim("fig4", "small-loses", "A buffer that is too small makes the receiver lose data, which has to be retransmitted.")
def _fig4_small_loses(m: Measurements) -> Finding:
    small, large = m("small", RETRANSMISSIONS), m("large", RETRANSMISSIONS)
    shares = m("small", RETRANSMISSION_SHARE), m("large", RETRANSMISSION_SHARE)
    memory = [m("small", OUT_OF_ORDER), m("large", OUT_OF_ORDER)]
    drops = m("small", RECEIVER_DROPS)
    lost = above(shares[0], HARDLY)
    buffer = float(m.case("small").parameters["receive_buffer"] or 0)
    return Finding(
        f"The receiver dropped {drops.mean:.0f} with 0.18 MB. Segments retransmitted by the proxy: {small.mean:.0f} "
        f"with 0.18 MB ({shares[0].mean:.2%}), {large.mean:.0f} with 0.72 MB ({shares[1].mean:.2%}). Greatest receive "
        f"memory in use: {approximate_size(memory[0].mean)}, {memory[0].mean / buffer:.0%} of the buffer, and "
        f"{approximate_size(memory[1].mean)}.",
        *likely(
            lost and above(shares[0], shares[1]),
            "a receiver of today never advertises more than it can hold, so that the connection's window (RFC 8684, "
            "3.3.1) keeps the sender waiting, and a small buffer costs throughput instead of packets.",
            signs=lambda: (
                not lost
                and not any(drops.values)
                and above(memory[0], FULL * buffer)
                and above(m("large", GOODPUT), m("small", GOODPUT))
            ),
        ),
    )


@claim("fig4", "large-suffices", "With 0.72 MB the wired path is stable and Wi-Fi achieves a satisfactory throughput.")
def _fig4_large_suffices(m: Measurements) -> Finding:
    parts, enough = [], True
    for path, least in ((ETHERNET, STABLE), (WIFI, SATISFACTORY)):
        found = m("large", rate(path))
        swept = [m.statistic(case.key, rate(path)) for case in m.of_kind("sweep")]
        most = max((s for s in swept if s is not None), key=lambda s: s.mean, default=None)
        if most is None or not most.mean:
            raise Missing("The most that each path carries with any buffer was not measured")
        parts.append((found, found.mean / most.mean))
        enough &= above(found, most, least)
    (ethernet, first), (wifi, second) = parts
    return Finding(
        f"Ethernet {mbit(ethernet)}, Wi-Fi {mbit(wifi)}: {first:.0%} and {second:.0%} of their most in the sweep.",
        either(enough),
    )


@claim(
    "fig4",
    "required",
    "The buffer required is at most 2 × sum of bandwidth × greatest RTT, 0.48 MB in the paper's testbed.",
)
def _fig4_required(m: Measurements) -> Finding:
    found = ((case.at, m.statistic(case.key, GOODPUT)) for case in m.of_kind("sweep"))
    points = sorted(((at, s) for at, s in found if at is not None and s is not None), key=lambda point: point[0])
    if len(points) < 2:
        raise Missing("The sweep was not measured")
    needed = next((r.value for r in m.references if r.where == "sweep"), None)
    if needed is None:
        raise Missing("The requirement was not computed")
    best = max((s for _, s in points), key=lambda s: s.mean)
    at, nearest = max(((at, s) for at, s in points if at <= needed), default=(0.0, None), key=lambda point: point[0])
    if nearest is None:
        raise Missing(f"No buffer up to {approximate_size(needed)} was tried")
    if above(points[0][1], best, SATURATED):
        raise Missing(
            f"The smallest buffer tried, {approximate_size(points[0][0])}, already gives {mbit(points[0][1])}: these "
            "paths need none to speak of"
        )
    suffices = above(nearest, best, SATURATED)
    larger = next((more for more, _ in points if more > at), at)
    if not suffices and at < needed <= larger and above(dict(points)[larger], best, SATURATED):
        raise Missing(f"{approximate_size(at)} do not suffice, {approximate_size(larger)} do; none between was tried")
    # Take the buffers above the largest insufficient buffer. The sweep is not smooth, so a smaller buffer may suffice
    # by chance.
    short = max((at for at, s in points if s.mean < SATURATED * best.mean), default=0.0)
    enough = next((f"from {approximate_size(at)} on" for at, _ in points if at > short), "with no buffer for certain")
    return Finding(
        f"Computed {approximate_size(needed)}. With {approximate_size(at)} goodput is {mbit(nearest)}, "
        f"{nearest.mean / best.mean:.0%} of its greatest; it is {SATURATED:.0%} {enough}.",
        *likely(
            suffices,
            "tcp_rmem counts the kernel's memory for a packet, not its payload, and the window is about half of it; "
            "queues at the links add to the RTT that the formula knows.",
        ),
    )


@claim("fig5", "lower", f"Smaller packets lower the throughput (by {1 - LOWER:.0%} at the least).")
def _fig5_lower(m: Measurements) -> Finding:
    small, full = m("mtu-1000", GOODPUT), m("mtu-1500", GOODPUT)
    ratio = small.mean / full.mean
    return Finding(
        f"{mbit(small)} with MTU 1000, {mbit(full)} with 1500: {ratio:.3f}; headers alone make {HEADERS_LEAVE:.3f}.",
        either(not above(small, full, LOWER)),
    )


@claim("fig5", "unstable", "With MTU 1000 the receiver drops packets and the connection loses its stability.")
def _fig5_unstable(m: Measurements) -> Finding:
    small, full = m("mtu-1000", RETRANSMISSION_SHARE), m("mtu-1500", RETRANSMISSION_SHARE)
    rates = m("mtu-1000", GOODPUT), m("mtu-1500", GOODPUT)
    left = rates[0].mean / rates[1].mean / HEADERS_LEAVE
    worse = not above(rates[0], rates[1], SATURATED * HEADERS_LEAVE)
    lost, idle = above(small, HARDLY), m("mtu-1000", LEAST_IDLE)
    return Finding(
        f"Retransmitted: {small.mean:.2%} of the segments with MTU 1000, {full.mean:.2%} with 1500; goodput is "
        f"{left:.3f} of what the headers leave. The busiest processor was idle {idle.mean:.0%} of the time.",
        *explained(
            worse and lost and above(small, full),
            lambda: not worse and not lost and above(idle, SPARE),
            "The paper's Raspberry Pi Model B (700 MHz, Ethernet behind USB) was short of processor time for half as "
            "many packets again; the hosts measured here had some to spare, and pay for the headers alone.",
        ),
    )
