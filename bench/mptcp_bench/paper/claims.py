# SPDX-License-Identifier: GPL-2.0-or-later
"""The paper's claims about its Figures 2 to 7, and whether they hold here. Pure.

Each claim has mutants that break it (tests/bench/unit/paper_mutants.py); a new claim needs such a mutant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ..experiments.claims import Claim, Reason, judged
from ..result_file import Verdict
from ..statistics import fmean
from .measurements import COLUMNS, Download, Found, Trial, values

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
MIN_LOSS = 0.0005
"""If a smaller share of the segments is retransmitted, there were practically no losses."""
HEADERS_LEAVE = ((1000 - 80) / 1014) / ((1500 - 80) / 1514)
"""Payload share with MTU 1000 divided by the payload share with MTU 1500. IPv4 and TCP headers with timestamps and DSS
are 80 bytes, and the shapers count 14 bytes of Ethernet (experiments/payload.py)."""
MEMORY_IN_USE = 0.4
"""If samples every 0.1 s show this share of a receive buffer in use, the window, which is not measured, may be used up.
The buffer counts the kernel's memory for packets. About half of that is payload, which is the window."""
SPARE = 0.1
"""Minimum share of idle time of a host's busiest processor. With more idle time, no program on one processor had to
wait.

A busy thread that moves between processors leaves some idle time on each (``agent.processors``)."""
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
MORE, LESS = 1.05, 0.95
"""A rate is "more" or "less" than another if it differs by this factor."""
FULL = 0.9
"""Wi-Fi counts as full if it carries this share of its unthrottled rate."""


class Measured:
    """The downloads of a figure by the keys of their trials."""

    def __init__(self, found: Found) -> None:
        self.trials: Mapping[str, Trial] = {trial.key: trial for trial in found.cells}
        self._found = found

    def downloads(self, key: str) -> list[Download]:
        return self._found.of(self.trials[key]) if key in self.trials else []

    def values(self, key: str, name: str) -> tuple[float, ...]:
        return values(self.downloads(key), name)

    def title(self, key: str) -> str:
        return self.trials[key].title if key in self.trials else key

    def claim(
        self,
        key: str,
        name: str,
        other: str | tuple[str, str] = "",
        *,
        least: float | None = None,
        most: float | None = None,
        minus: float = 0.0,
    ) -> Claim:
        """Return the claim that the value *name* of the trial *key*, *minus* a constant, is within the bounds.

        *other* is the trial whose same value is the reference, or a pair of trial and name.
        """
        quantity = COLUMNS[name].heading.rpartition(", ")[0] or COLUMNS[name].heading
        what = f"{quantity} of {self.title(key)}" + (f", minus {minus:g}" if minus else "")
        reference = None
        if other:
            of, value = (other, name) if isinstance(other, str) else other
            reference = self.values(of, value)
            of_value = "" if value == name else f"{COLUMNS[value].heading.rpartition(', ')[0]} of "
            what += f", × {of_value}{self.title(of)}"
        sample = tuple(value - minus for value in self.values(key, name))
        return Claim("", what, sample, least=least, most=most, by="mean", reference=reference)

    def each_capped(self, key: str) -> Claim:
        """Return the claim that the cap came into force in each transfer. If not, nothing was throttled."""
        what = f"transfers in which the cap came into force, {self.title(key)}"
        return Claim("", what, self.values(key, "capped"), least=1, by="each")

    def until_cap(self, key: str, other: str = "", **bounds: float) -> Claim:
        """Return the claim about the time until the cap, or until the end of transfers that were not capped."""
        found = self.claim(key, "time_to_throttle", other, **bounds)
        minus = bounds.get("minus", 0.0)
        seconds = tuple(
            (each.duration - (each.joined or 0.0) if each.time_to_throttle is None else each.time_to_throttle) - minus
            for each in self.downloads(key)
            if each.duration is not None
        )
        return Claim("", found.what, seconds, " s" * (not other), found.least, found.most, "mean", found.reference)


def _fig2(m: Measured) -> Iterator[Verdict]:
    alone = {path: f"tcp-{path}" for path in ("ethernet", "wifi")}
    fallbacks = [
        Claim("", f"fallbacks, {m.title(key)}", tuple(float(each.fell_back) for each in m.downloads(key)),
              least=1, by="each")
        for key in alone.values()
    ]  # fmt: skip
    yield judged(
        "The server does not know Multipath TCP: the client's attempt fails and one plain TCP connection carries all.",
        fallbacks,
    )
    # On real hosts, a link's rate is known only if the user stated it.
    own = [
        Claim("", f"goodput of {m.title(key)}, × its link", tuple(v / link for v in m.values(key, "goodput")),
              least=OWN_LINK[0], most=OWN_LINK[1], by="mean")
        for key in alone.values()
        if key in m.trials and (link := m.trials[key].link) is not None
    ]  # fmt: skip
    yield judged(
        "Each interface gives its own link's throughput; Ethernet several times that of Wi-Fi (Figure 2).",
        [m.claim("tcp-ethernet", "goodput", "tcp-wifi", least=SEVERAL), *own],
    )


def _fig3(m: Measured) -> Iterator[Verdict]:
    yield judged(
        f"Multipath TCP offers no less capacity than a legacy TCP session (margin {MARGIN:.0%}).",
        [m.claim("mptcp", "goodput", "tcp-ethernet", least=1 - MARGIN)],
    )
    yield judged(
        "The largest percentage of packets goes over Ethernet, which has more capacity and the shorter RTT.",
        [m.claim("mptcp", "share_ethernet", ("mptcp", "share_wifi"), least=1)],
        given=[
            m.claim("tcp-ethernet", "goodput", "tcp-wifi", least=1),
            m.claim("mptcp", "rtt_wifi", ("mptcp", "rtt_ethernet"), least=1),
        ],
    )
    yield judged(
        "Wi-Fi remains almost fully underutilized as long as Ethernet is not congested.",
        [m.claim("mptcp", "share_wifi", most=UNUSED)],
        Reason(
            "the scheduler of today's Linux gives a segment to the subflow that will have sent its queue soonest, so "
            "that what a full Ethernet does not take goes to Wi-Fi; MPTCP 0.89 left it unused because its coupled "
            "congestion control (LIA) held the worse path's window down, which upstream Linux does not have.",
            [
                m.claim("mptcp", "rate_wifi", "tcp-wifi", least=SATISFACTORY),
                m.claim("mptcp", "rate_ethernet", "tcp-ethernet", least=SATURATED),
            ],
            is_measured=False,
        ),
    )


def _fig4(m: Measured) -> Iterator[Verdict]:
    yield judged(
        "With 0.18 MB, less than required, the service is degraded.",
        [m.claim("small", "goodput", "large", most=SATURATED)],
    )
    yield judged(
        "A buffer that is too small makes the receiver lose data, which has to be retransmitted.",
        [
            m.claim("small", "retransmission_share", least=MIN_LOSS),
            m.claim("small", "retransmission_share", "large", least=1),
        ],
        Reason(
            "a receiver of today never advertises more than it can hold, so that the connection's window (RFC 8684, "
            "3.3.1) keeps the sender waiting, and a small buffer costs throughput instead of packets.",
            [
                m.claim("small", "retransmission_share", most=MIN_LOSS),
                m.claim("small", "receiver_drops", most=0),
                m.claim("small", "out_of_order_bytes", least=MEMORY_IN_USE * _buffer(m, "small")),
                m.claim("large", "goodput", "small", least=1),
            ],
            is_measured=False,
        ),
    )
    yield judged(
        "With 0.72 MB the wired path is stable and Wi-Fi achieves a satisfactory throughput.",
        [_of_most(m, "large", "rate_ethernet", STABLE), _of_most(m, "large", "rate_wifi", SATISFACTORY)],
    )
    sufficient, given = _sufficient(m)
    yield judged(
        "The buffer required is at most 2 × sum of bandwidth × greatest RTT, 0.48 MB in the paper's testbed.",
        [sufficient],
        Reason(
            "tcp_rmem counts the kernel's memory for a packet, not its payload, and the window is about half of it; "
            "queues at the links add to the RTT that the formula knows.",
            is_measured=False,
        ),
        given=given,
    )


def _buffer(m: Measured, key: str) -> int:
    return m.trials[key].receive_buffer or 0 if key in m.trials else 0


def _of_most(m: Measured, key: str, name: str, least: float) -> Claim:
    """Return the claim that *key* has at least this share of the greatest mean of *name* in the sweep."""
    swept = [other for other, trial in m.trials.items() if trial.kind == "sweep" and any(m.values(other, name))]
    best = max(swept, key=lambda other: fmean(m.values(other, name)), default="any buffer")
    return m.claim(key, name, best, least=least)


def _sufficient(m: Measured) -> tuple[Claim, list[Claim]]:
    """Return the claim that the computed buffer suffices, and the condition that the smallest buffer does not."""
    sizes = sorted((_buffer(m, key), key) for key, t in m.trials.items() if t.kind == "sweep" and m.downloads(key))
    needed = next((trial.buffer_needed for trial in m.trials.values()), None)
    below = [key for size, key in sizes if needed is not None and size <= needed]
    if needed is None or not below or len(sizes) < 2:
        return m.claim("the computed buffer", "goodput", "any buffer"), []
    claim = _of_most(m, below[-1], "goodput", SATURATED)
    above = [key for _, key in sizes if key not in below]
    if claim.verdict == "fails" and _buffer(m, below[-1]) < needed and above:
        larger = _of_most(m, above[0], "goodput", SATURATED)
        # If the next larger buffer suffices, no buffer was measured that decides whether the computed one does.
        claim = larger if larger.verdict == "fails" else m.claim("the computed buffer", "goodput", "any buffer")
    smallest = _of_most(m, sizes[0][1], "goodput", SATURATED)
    return claim, [Claim("", smallest.what, smallest.values, "", None, SATURATED, "mean", smallest.reference)]


def _fig5(m: Measured) -> Iterator[Verdict]:
    yield judged(
        f"Smaller packets lower the throughput (by {1 - LOWER:.0%} at the least).",
        [m.claim("mtu-1000", "goodput", "mtu-1500", most=LOWER)],
    )
    yield judged(
        "With MTU 1000 the receiver drops packets and the connection loses its stability.",
        [
            m.claim("mtu-1000", "goodput", "mtu-1500", most=SATURATED * HEADERS_LEAVE),
            m.claim("mtu-1000", "retransmission_share", least=MIN_LOSS),
            m.claim("mtu-1000", "retransmission_share", "mtu-1500", least=1),
        ],
        Reason(
            "The paper's Raspberry Pi Model B (700 MHz, Ethernet behind USB) was short of processor time for half as "
            "many packets again; the hosts measured here had some to spare, and pay for the headers alone.",
            [
                m.claim("mtu-1000", "goodput", "mtu-1500", least=SATURATED * HEADERS_LEAVE),
                m.claim("mtu-1000", "retransmission_share", most=MIN_LOSS),
                m.claim("mtu-1000", "least_idle", least=SPARE),
            ],
        ),
    )


def _fig6(m: Measured) -> Iterator[Verdict]:
    capped, first_capped = m.each_capped("repeated"), m.each_capped("first")
    yield judged(
        "The first transfer runs for a while before the queueing disciplines are configured, a repeated one does not.",
        [
            capped,
            m.until_cap("first", "repeated", minus=AT_ONCE, least=1),
            m.claim("repeated", "time_to_throttle", most=AT_ONCE),
        ],
        Reason(
            "Classes are made when the policy is loaded, so that a first transfer is throttled like any other: its cap "
            "is in force as soon as that of a repeated one.",
            [
                capped,
                first_capped,
                m.until_cap("first", "repeated", minus=AT_ONCE, most=1),
                m.until_cap("first", most=LANDED),
            ],
        ),
    )
    yield judged(
        f"On the first transfer of 5 MB the throttling has a miniature impact on delivery time (up to {SLIGHT:g} s).",
        [capped, m.claim("first", "duration", "free", minus=SLIGHT, most=1)],
        Reason(
            "The paper's first transfer was over before its throttle was in place. Here the cap is in force within a "
            "second, so that part of 5 MB has to take the slower path, as the policy asks, and that one is full.",
            [
                capped,
                first_capped,
                m.claim("first", "time_to_throttle", most=LANDED),
                m.claim("first", "rate_wifi", "tcp-wifi", least=FULL),
            ],
        ),
    )
    relieved = m.claim("repeated", "share_ethernet", "free", most=LESS)
    on_time = ("repeated", "time_to_throttle", ("repeated", "duration"))
    yield judged(
        "A repeated transfer finds the policy installed and is throttled without the first one's overhead.",
        [
            capped,
            relieved,
            m.claim(*on_time, most=ON_TIME),
            m.until_cap("first", "repeated", minus=AT_ONCE, least=1),
        ],
        Reason(
            "A first transfer has no overhead that a repeated one could be without: classes are made when the policy "
            "is loaded.",
            [capped, relieved, m.claim(*on_time, most=ON_TIME), m.until_cap("first", most=AT_ONCE)],
        ),
        Reason(
            "The cap lands softly, on a repeated transfer too: what waits for Ethernet leaves at full speed before its "
            "rate falls.",
            [
                capped,
                relieved,
                m.claim(*on_time, least=ON_TIME),
                m.claim("repeated", "time_to_throttle", most=LANDED),
                m.claim("repeated", "before_cap", ("free", "rate_ethernet"), least=FULL_SPEED),
            ],
        ),
    )
    # Also compare steady rates, because goodput may include bytes that Ethernet carried before its cap was in force.
    steady = tuple(
        each.rate_ethernet + each.rate_wifi
        for each in m.downloads("repeated")
        if each.rate_ethernet is not None and each.rate_wifi is not None
    )
    both = f"rate of both paths, {m.title('repeated')}, × Wi-Fi of {m.title('tcp-wifi')}"
    yield judged(
        "A throttled connection has no less capacity than a single-path TCP session, here over Wi-Fi (section 3.4; "
        f"margin {MARGIN:.0%}).",
        [
            capped,
            m.claim("repeated", "goodput", "tcp-wifi", least=1 - MARGIN),
            Claim("", both, steady, "", 1 - MARGIN, None, "mean", m.values("tcp-wifi", "rate_wifi")),
        ],
    )


def _fig7(m: Measured) -> Iterator[Verdict]:
    capped = m.each_capped("throttled")
    cap = m.trials["throttled"].cap if "throttled" in m.trials else 1
    yield judged(
        "Ethernet is held at the limit that the operator chose.",
        [
            capped,
            Claim("", "Ethernet on the wire once steady, × its cap",
                  tuple(rate / cap for rate in m.values("throttled", "rate_ethernet")),
                  least=1 - CAP_TOLERANCE, most=1 + CAP_TOLERANCE, by="mean"),
        ],
    )  # fmt: skip
    moved = m.claim("throttled", "share_wifi", "free", least=MORE)
    yield judged(
        "Data moves to Wi-Fi, which achieves a higher throughput than without the throttle.",
        [capped, moved, m.claim("throttled", "rate_wifi", "free", least=MORE)],
        Reason(
            "Its share rises as the paper says; its throughput cannot, since Wi-Fi carries all it can without any "
            "throttle (Figure 3).",
            [
                capped,
                moved,
                m.claim("free", "rate_wifi", "tcp-wifi", least=LESS),
                m.claim("throttled", "rate_wifi", "free", least=FULL),
            ],
        ),
    )
    # Also compare Wi-Fi's rates, because goodput includes the bytes of both paths before the cap was in force.
    yield judged(
        "The whole is inferior to a transfer that is not throttled, by what the limit takes from Ethernet.",
        [
            capped,
            m.claim("throttled", "goodput", "free", most=LESS),
            m.claim("throttled", "rate_wifi", "free", least=1 - MARGIN),
        ],
    )
    yield judged(
        "Multipath TCP still outperforms legacy TCP over the better remaining path.",
        [capped, m.claim("throttled", "goodput", "tcp-wifi", least=MORE)],
    )


CLAIMS: Mapping[str, Callable[[Measured], Iterator[Verdict]]] = {
    "fig2": _fig2,
    "fig3": _fig3,
    "fig4": _fig4,
    "fig5": _fig5,
    "fig6": _fig6,
    "fig7": _fig7,
}


def verdicts(figure: str, found: Found) -> Sequence[Verdict]:
    """Return a verdict on each claim about *figure*, in the paper's order."""
    return tuple(CLAIMS[figure](Measured(found)))
