# SPDX-License-Identifier: GPL-2.0-or-later
"""The paper's claims about its Figures 2 to 7, and whether they hold here. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ..experiments.claims import Claim, Reason, condition, judged
from ..result_file import Verdict
from .measurements import COLUMNS, Found, Trial, values

MARGIN = 0.05
"""Non-inferiority margin: the largest accepted loss, as a share, for "no less"."""
SATURATED_SHARE = 0.95
"""A buffer is large enough if it gives at least this share of the goodput with an ample buffer."""
MAX_LOWER_RATIO = 0.99
"""Maximum ratio of two rates at which the first is "lower" than the second."""
MIN_LOSS = 0.0005
"""If a smaller share of the segments is retransmitted, there were practically no losses."""
HEADER_RATIO = ((1000 - 80) / 1014) / ((1500 - 80) / 1514)
"""Payload share with MTU 1000 divided by the payload share with MTU 1500. IPv4 and TCP headers with timestamps and DSS
are 80 bytes, and the shapers count 14 bytes of Ethernet."""
MIN_IDLE_SHARE = 0.1
"""If a host's busiest processor was idle for this share of the time, the processors did not limit the host."""
AT_ONCE_SECONDS = 0.1
"""Maximum seconds until the cap of a repeated transfer is in force."""
SOFT_CAP_SECONDS = 1.0
"""Maximum seconds until a soft cap is in force (docs/soft-start.md)."""
SLIGHT_SECONDS = 0.5
"""Maximum additional seconds of completion time that count as "a miniature impact"."""
ON_TIME_SHARE = 0.1
"""A cap that is in force after this share of the transfer's duration counts as in force from the transfer's start."""
MORE_FACTOR, LESS_FACTOR = 1.05, 0.95
"""Minimum ratio of two rates at which the first is "more" than the second; maximum ratio at which it is "less"."""
MIN_FULL_SHARE = 0.9
"""Wi-Fi counts as full if it carries this share of its unthrottled rate."""


QUANTITIES: dict[str, tuple[str, str, float]] = {
    "fell_back": ("downloads that fell back", "", 1.0),
    "rate_both": ("both paths on the wire, steady", " Mbit/s", 1e-6),
    "until_cap": ("time until the cap or the end", " ms", 1e3),
}
"""Values that no column shows: their names and units in texts, and factors from SI units."""


class Figure:
    """The measured downloads of a figure, by the keys of their trials."""

    def __init__(self, found: Found) -> None:
        self.trials: Mapping[str, Trial] = {trial.key: trial for trial in found.cells}
        self._found = found

    def values(self, key: str, name: str) -> tuple[float, ...]:
        return values(self._found.of(self.trials[key]), name)

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

        *other* is the trial whose same value is the reference, or a pair of trial and name. All values are in SI units.
        """
        quantity, unit, scale = _quantity(name)
        what = f"{quantity}, {self.trials[key]}" + (f", minus {minus:g} s" if minus else "")
        if other:
            trial, value = (other, name) if isinstance(other, str) else other
            what += f", × {_quantity(value)[0]}, {self.trials[trial]}"
            reference, unit, scale = self.values(trial, value), "", 1.0
        else:
            reference = None
            least, most = (None if bound is None else scale * bound for bound in (least, most))
        sample = tuple(scale * (value - minus) for value in self.values(key, name))
        return condition(what, sample, unit, least, most, "mean", reference)

    def claim_of_each(self, key: str, name: str) -> Claim:
        """Return the claim that *name* is true of each download of *key*."""
        return condition(f"{_quantity(name)[0]}, {self.trials[key]}", self.values(key, name), least=1, by="each")


def _quantity(name: str) -> tuple[str, str, float]:
    """Return name and unit of a value in texts, and the factor from SI units."""
    if name in QUANTITIES:
        return QUANTITIES[name]
    title, _, unit = COLUMNS[name].heading.rpartition(", ")
    return title or unit, f" {unit}" if title else "", COLUMNS[name].scale


def _fig2(figure: Figure) -> Iterator[Verdict]:
    yield judged(
        "The server does not know Multipath TCP: the client's attempt fails and one plain TCP connection carries all.",
        [figure.claim_of_each("tcp-ethernet", "fell_back"), figure.claim_of_each("tcp-wifi", "fell_back")],
    )
    # On real hosts, a link's rate is known only if the user stated it.
    link_claims = [
        figure.claim(key, "goodput", least=0.85 * trial.link, most=trial.link)
        for key, trial in figure.trials.items()
        if trial.link is not None
    ]
    yield judged(
        "Each interface gives its own link's throughput; Ethernet several times that of Wi-Fi (Figure 2).",
        [figure.claim("tcp-ethernet", "goodput", "tcp-wifi", least=2), *link_claims],
    )


def _fig3(figure: Figure) -> Iterator[Verdict]:
    # On real hosts, an RTT is known only if the user stated it.
    ethernet, wifi = (figure.trials[key].rtt for key in ("tcp-ethernet", "tcp-wifi"))
    rtts = () if None in (ethernet, wifi) else (float(wifi or 0), float(wifi or 0))
    yield judged(
        f"Multipath TCP offers no less capacity than a legacy TCP session (margin {MARGIN:.0%}).",
        [figure.claim("mptcp", "goodput", "tcp-ethernet", least=1 - MARGIN)],
    )
    yield judged(
        "The largest percentage of packets goes over Ethernet, which has more capacity and the shorter RTT.",
        [figure.claim("mptcp", "share_ethernet", ("mptcp", "share_wifi"), least=1)],
        given=[
            figure.claim("tcp-ethernet", "goodput", "tcp-wifi", least=1),
            condition("RTT of Wi-Fi", rtts, " µs", least=ethernet, by="each"),
        ],
    )
    yield judged(
        "Wi-Fi remains almost fully underutilized as long as Ethernet is not congested.",
        [figure.claim("mptcp", "share_wifi", most=0.05)],
    )


def _fig4(figure: Figure) -> Iterator[Verdict]:
    yield judged(
        "With 0.18 MB, less than required, the service is degraded.",
        [figure.claim("small", "goodput", "large", most=SATURATED_SHARE)],
    )
    yield judged(
        "A buffer that is too small makes the receiver lose data, which has to be retransmitted.",
        [
            figure.claim("small", "retransmission_share", least=MIN_LOSS),
            figure.claim("small", "retransmission_share", "large", least=1),
        ],
    )
    yield judged(
        "With 0.72 MB the wired path is stable and Wi-Fi achieves a satisfactory throughput.",
        [
            figure.claim("large", "rate_ethernet", "ample", least=0.9),
            figure.claim("large", "rate_wifi", "ample", least=0.8),
        ],
    )
    # On real hosts, the formula has a value only if the user stated rates and RTTs.
    computed = condition("goodput with the computed buffer", ())
    if "needed" in figure.trials:
        computed = figure.claim("needed", "goodput", "ample", least=SATURATED_SHARE)
    yield judged(
        "The buffer required is at most 2 × sum of bandwidth × greatest RTT, 0.48 MB in the paper's testbed.",
        [computed],
        given=[figure.claim("small", "goodput", "ample", most=SATURATED_SHARE)],
    )


def _fig5(figure: Figure) -> Iterator[Verdict]:
    yield judged(
        f"Smaller packets lower the throughput (by {1 - MAX_LOWER_RATIO:.0%} at the least).",
        [figure.claim("mtu-1000", "goodput", "mtu-1500", most=MAX_LOWER_RATIO)],
    )
    yield judged(
        "With MTU 1000 the receiver drops packets and the connection loses its stability.",
        [
            figure.claim("mtu-1000", "goodput", "mtu-1500", most=SATURATED_SHARE * HEADER_RATIO),
            figure.claim("mtu-1000", "retransmission_share", least=MIN_LOSS),
            figure.claim("mtu-1000", "retransmission_share", "mtu-1500", least=1),
        ],
        Reason(
            "The paper's Raspberry Pi Model B (700 MHz, Ethernet over USB) had too little processor time for 1.5 "
            "times as many packets. The hosts measured here had enough, and lose only the share of the headers.",
            [
                figure.claim("mtu-1000", "goodput", "mtu-1500", least=SATURATED_SHARE * HEADER_RATIO),
                figure.claim("mtu-1000", "retransmission_share", most=MIN_LOSS),
                figure.claim("mtu-1000", "least_idle", least=MIN_IDLE_SHARE),
            ],
        ),
    )


def _fig6(figure: Figure) -> Iterator[Verdict]:
    capped, first_capped = figure.claim_of_each("repeated", "capped"), figure.claim_of_each("first", "capped")
    yield judged(
        "The first transfer runs for a while before the queueing disciplines are configured, a repeated one does not.",
        [
            capped,
            figure.claim("first", "until_cap", ("repeated", "time_to_throttle"), minus=AT_ONCE_SECONDS, least=1),
            figure.claim("repeated", "time_to_throttle", most=AT_ONCE_SECONDS),
        ],
        Reason(
            "Classes are created when the policy is loaded, so that a first transfer is throttled like any other: its "
            "cap is in force as soon as the cap of a repeated transfer.",
            [
                capped,
                first_capped,
                figure.claim("first", "until_cap", ("repeated", "time_to_throttle"), minus=AT_ONCE_SECONDS, most=1),
                figure.claim("first", "until_cap", most=SOFT_CAP_SECONDS),
            ],
        ),
    )
    yield judged(
        "On the first transfer of 5 MB the throttling has a miniature impact on delivery time (up to "
        f"{SLIGHT_SECONDS:g} s).",
        [capped, figure.claim("first", "duration", "free", minus=SLIGHT_SECONDS, most=1)],
        Reason(
            "The paper's first transfer ended before its throttle was in place. Here the cap is in force within a "
            "second, so that part of the 5 MB has to take the slower path, which is full.",
            [
                capped,
                first_capped,
                figure.claim("first", "time_to_throttle", most=SOFT_CAP_SECONDS),
                figure.claim("first", "rate_wifi", "tcp-wifi", least=MIN_FULL_SHARE),
            ],
        ),
    )
    less_on_ethernet = figure.claim("repeated", "share_ethernet", "free", most=LESS_FACTOR)
    cap_delay = ("repeated", "time_to_throttle", ("repeated", "duration"))
    yield judged(
        "A repeated transfer finds the policy installed and is throttled without the first one's overhead.",
        [
            capped,
            less_on_ethernet,
            figure.claim(*cap_delay, most=ON_TIME_SHARE),
            figure.claim("first", "until_cap", ("repeated", "time_to_throttle"), minus=AT_ONCE_SECONDS, least=1),
        ],
        Reason(
            "A first transfer has no more overhead than a repeated transfer: classes are created when the policy is "
            "loaded.",
            [
                capped,
                less_on_ethernet,
                figure.claim(*cap_delay, most=ON_TIME_SHARE),
                figure.claim("first", "until_cap", most=AT_ONCE_SECONDS),
            ],
        ),
        Reason(
            "The cap takes effect softly, on a repeated transfer too: data queued for Ethernet leave at full speed "
            "before the rate falls.",
            [
                capped,
                less_on_ethernet,
                figure.claim(*cap_delay, least=ON_TIME_SHARE),
                figure.claim("repeated", "time_to_throttle", most=SOFT_CAP_SECONDS),
                figure.claim("repeated", "before_cap", ("free", "rate_ethernet"), least=0.8),
            ],
        ),
    )
    # Also compare steady rates, because goodput may include bytes that Ethernet carried before its cap was in force.
    yield judged(
        "A throttled connection has no less capacity than a single-path TCP session, here over Wi-Fi (section 3.4; "
        f"margin {MARGIN:.0%}).",
        [
            capped,
            figure.claim("repeated", "goodput", "tcp-wifi", least=1 - MARGIN),
            figure.claim("repeated", "rate_both", ("tcp-wifi", "rate_wifi"), least=1 - MARGIN),
        ],
    )


def _fig7(figure: Figure) -> Iterator[Verdict]:
    capped = figure.claim_of_each("throttled", "capped")
    cap = figure.trials["throttled"].cap
    yield judged(
        "Ethernet is held at the limit that the operator chose.",
        [capped, figure.claim("throttled", "rate_ethernet", least=0.95 * cap, most=1.05 * cap)],
    )
    more_on_wifi = figure.claim("throttled", "share_wifi", "free", least=MORE_FACTOR)
    yield judged(
        "Data moves to Wi-Fi, which achieves a higher throughput than without the throttle.",
        [capped, more_on_wifi, figure.claim("throttled", "rate_wifi", "free", least=MORE_FACTOR)],
        Reason(
            "The share of Wi-Fi rises as the paper says. Its throughput cannot rise, because Wi-Fi is full without a "
            "throttle, too (Figure 3).",
            [
                capped,
                more_on_wifi,
                figure.claim("free", "rate_wifi", "tcp-wifi", least=LESS_FACTOR),
                figure.claim("throttled", "rate_wifi", "free", least=MIN_FULL_SHARE),
            ],
        ),
    )
    # Also compare Wi-Fi's rates, because goodput includes the bytes of both paths before the cap was in force.
    yield judged(
        "The whole is inferior to a transfer that is not throttled, by what the limit takes from Ethernet.",
        [
            capped,
            figure.claim("throttled", "goodput", "free", most=LESS_FACTOR),
            figure.claim("throttled", "rate_wifi", "free", least=1 - MARGIN),
        ],
    )
    yield judged(
        "Multipath TCP still outperforms legacy TCP over the better remaining path.",
        [capped, figure.claim("throttled", "goodput", "tcp-wifi", least=MORE_FACTOR)],
    )


CLAIMS: Mapping[str, Callable[[Figure], Iterator[Verdict]]] = {
    "fig2": _fig2,
    "fig3": _fig3,
    "fig4": _fig4,
    "fig5": _fig5,
    "fig6": _fig6,
    "fig7": _fig7,
}


def verdicts(name: str, found: Found) -> Sequence[Verdict]:
    """Return a verdict on each claim about the figure *name*, in the paper's order."""
    return tuple(CLAIMS[name](Figure(found)))
