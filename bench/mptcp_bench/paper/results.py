# SPDX-License-Identifier: GPL-2.0-or-later
"""The measurements of an experiment of the paper: cases, runs, and statistics of the runs that are data points. Pure.

A run that is not a data point remains among the runs, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..result_file import Scalar
from ..statistics import Interval, mean_interval, of_median

ETHERNET = "ethernet"
WIFI = "wifi"
CASE_OF = {ETHERNET: "tcp-ethernet", WIFI: "tcp-wifi"}
"""Key of the case that uses only this path, by path."""
NO_FALLBACK = "the connection did not fall back to plain TCP"
"""Reason why a run of Figure 2 is not a data point if the server accepted MPTCP."""

GOODPUT = "goodput"
DURATION = "duration"
TIME_TO_THROTTLE = "time_to_throttle"
CAPPED = "capped"
"""1 if the cap came into force before the transfer ended, otherwise 0. If 0, ``time_to_throttle`` is missing."""
BEFORE_CAP = "before_cap"
LEAST_IDLE = "least_idle"
"""Idle share of the busiest single processor."""
JOINED = "joined"
RECEIVER_DROPS = "receiver_drops"
RETRANSMISSIONS = "retransmissions"
RETRANSMISSION_SHARE = "retransmission_share"
OUT_OF_ORDER = "out_of_order_bytes"
"""Name of the metric, and of the extra series: bytes that the receiver's MPTCP sockets hold. The client reads in-order
data at once, so nearly all of these bytes wait for a gap to be filled."""
OUT_OF_ORDER_SEGMENTS = "out_of_order_segments"
"""Number of segments that passed the MPTCP out-of-order queue (MPTcpExtOFOQueue)."""

SYN, WHOLE, DATA, STREAM, BULK = "syn", "syn-whole", "data", "stream", "bulk"
"""Kinds of distributions: connections (two kinds); short requests and responses; segments of a transfer that does not
wait; and segments of a transfer that arrives faster than the client's paths can carry it."""
UP, DOWN = "up", "down"
"""Direction of a distribution: ``syn up`` goes from client to origin, ``data down`` from origin to client."""
MPTCP, TCP = "mptcp", "tcp"
PROTOCOLS = {MPTCP: "Multipath TCP", TCP: "plain TCP"}
"""Cases of Table 1."""
OWN_SYN, ANSWER = "syn_own", "answer"
PARTS = (ANSWER, OWN_SYN)
"""Fields of ``wire.exchanges.Exchange`` that are parts of Table 1's intervals. Their medians are metrics."""

Kind = Literal["panel", "baseline", "sweep"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A quantity for which a run may have a value."""

    key: str
    title: str
    unit: str
    """``bit/s``, ``s``, ``B``, ``ratio``, ``count``, or a word that is printed as it is."""


def share(path: str) -> str:
    """Return the name of the metric "share of all received bytes that came over *path*"."""
    return f"share_{path}"


def rate(path: str) -> str:
    """Return the name of the metric "bits per second on the wire over *path* while the download was steady"."""
    return f"rate_{path}"


def rtt(path: str) -> str:
    """Return the name of the metric "minimum seconds to open a connection over the idle *path*"."""
    return f"rtt_{path}"


def metric_of_median(distribution: str) -> str:
    """Return the name of the metric that is the median of *distribution*."""
    return f"median_{distribution.replace(' ', '_')}"


METRICS: Mapping[str, Metric] = {
    m.key: m
    for m in (
        Metric(GOODPUT, "goodput", "bit/s"),
        Metric(DURATION, "completion time", "s"),
        Metric(share(ETHERNET), "share of Ethernet", "ratio"),
        Metric(share(WIFI), "share of Wi-Fi", "ratio"),
        Metric(rate(ETHERNET), "Ethernet on the wire, steady", "bit/s"),
        Metric(rate(WIFI), "Wi-Fi on the wire, steady", "bit/s"),
        Metric(JOINED, "second subflow joined after", "s"),
        Metric(CAPPED, "transfers in which the cap came into force", "ratio"),
        Metric(TIME_TO_THROTTLE, "time to throttle", "s"),
        Metric(BEFORE_CAP, "Ethernet on the wire, greatest before the cap was in force", "bit/s"),
        Metric(RETRANSMISSIONS, "retransmitted segments", "count"),
        Metric(RETRANSMISSION_SHARE, "retransmitted / sent segments", "ratio"),
        Metric(RECEIVER_DROPS, "segments that the receiver dropped", "count"),
        Metric(OUT_OF_ORDER, "receive memory, greatest", "B"),
        Metric(OUT_OF_ORDER_SEGMENTS, "segments that came out of order", "count"),
        Metric(rtt(ETHERNET), "RTT of Ethernet, idle", "s"),
        Metric(rtt(WIFI), "RTT of Wi-Fi, idle", "s"),
        Metric(LEAST_IDLE, "time that the busiest processor was idle", "ratio"),
        Metric("median_syn_up", "client's connection established → SYN to origin, median", "s"),
        Metric("median_syn-whole_up", "client's SYN in → SYN to origin, median", "s"),
        Metric("median_data_up", "request in → out, handshake with origin within, median", "s"),
        Metric("median_data_down", "segment of a short response in → out, median", "s"),
        Metric("median_stream_up", "segment of an upload in → out, median", "s"),
        Metric("median_stream_down", "segment of a download in → out, origin the slower, median", "s"),
        Metric("median_bulk_down", "segment of a download in → out, client the slower, median", "s"),
        Metric(ANSWER, "client's SYN in → SYN/ACK out", "s"),
        Metric(OWN_SYN, "request in → SYN to origin", "s"),
    )
}


def metric(key: str) -> Metric:
    """Return the metric *key*. If it is not listed, its title is its key, and it has no unit."""
    return METRICS.get(key) or Metric(key, key.replace("_", " "), "")


@dataclass(frozen=True, slots=True)
class Case:
    """One setting of an experiment, which is run several times."""

    key: str
    title: str
    parameters: dict[str, Scalar] = field(default_factory=dict)
    """The parameters in which the case differs from the others."""
    kind: Kind = "panel"
    """``panel``: it has its own plots over time; ``baseline``: a line in other cases' plots; ``sweep``: a point of the
    sweep."""
    path: str | None = None
    """The only path that the case uses; None if the case uses all paths."""
    caps: dict[str, float] = field(default_factory=dict)
    """Rate in bits per second that the policy allows for each capped path."""
    at: float | None = None
    """Position on the axis of the sweep, in bytes of receive buffer."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time. Each is the mean over the interval that ends at its time."""

    times: tuple[float, ...]
    """Seconds since the client's program started."""
    paths: dict[str, tuple[float, ...]]
    """Rate of the bytes that the client received over each path, in bits per second."""
    extra: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition of one case."""

    case: str
    repetition: int
    valid: bool
    """Whether the run is a data point. Figures and statistics include only data points."""
    reason: str = ""
    end: float = 0.0
    """Time at which the client's program ended, in seconds on the clock of the series."""
    series: Series | None = None
    values: dict[str, float] = field(default_factory=dict)
    """The values by metric, in SI units."""
    distributions: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Delays in seconds, by kind and direction, such as ``syn up``."""


@dataclass(frozen=True, slots=True)
class Statistic(Interval):
    """Mean of a metric over the valid runs of a case, with its 95 % confidence interval (Student's t)."""

    case: str
    metric: str
    values: tuple[float, ...]

    @property
    def unit(self) -> str:
        return metric(self.metric).unit


def statistic_of(case: str, name: str, values: Sequence[float]) -> Statistic:
    """Return the statistic of *values*, at least one, of metric *name*."""
    found = mean_interval(values)
    return Statistic(found.n, found.mean, found.low, found.high, case, name, tuple(values))


@dataclass(frozen=True, slots=True)
class Reference:
    """A value for comparison, which is drawn as a line."""

    where: str
    """The plot in which it is drawn: a kind of distribution (seconds), or ``sweep`` (bytes)."""
    value: float
    title: str


_DATA = 0.0153311 + 0.0080645
DELAYS = (
    *(Reference(kind, 0.0078341 + 0.0006805, "paper, SYN: 8.5 ms") for kind in (SYN, WHOLE)),
    *(Reference(kind, _DATA, "paper, data: 23.4 ms") for kind in (DATA, STREAM, BULK)),
)
"""The paper's Table 1."""


class Missing(Exception):
    """The measurements are not enough to judge a claim. The text names what is missing."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """The runs of one experiment of the paper."""

    experiment: str
    title: str
    paper: str
    """The paper's name for the experiment, such as ``Figure 3``."""
    repetitions: int
    """Planned number of runs of each case."""
    cases: tuple[Case, ...]
    parameters: Mapping[str, Scalar]
    references: tuple[Reference, ...] = ()
    runs: tuple[Run, ...] = ()
    complete: bool = False

    def case(self, key: str) -> Case:
        """Return the case with this key. Raises KeyError."""
        return {case.key: case for case in self.cases}[key]

    def of_kind(self, kind: Kind) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.kind == kind)

    def valid(self, case: str) -> tuple[Run, ...]:
        """Return the runs of *case* that are data points."""
        return tuple(run for run in self.runs if run.case == case and run.valid)

    def failed(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if not run.valid)

    def values(self, case: str, metric: str) -> tuple[float, ...]:
        """Return the values of *metric* in the valid runs of *case* that have it."""
        return tuple(run.values[metric] for run in self.valid(case) if metric in run.values)

    def statistic(self, case: str, metric: str) -> Statistic | None:
        """Return the statistic of *metric* over the valid runs of *case*; None if no run has the metric."""
        values = self.values(case, metric)
        return statistic_of(case, metric, values) if values else None

    def __call__(self, case: str, metric: str) -> Statistic:
        """Return this statistic. Raises Missing if there is none."""
        found = self.statistic(case, metric)
        if found is None:
            raise Missing(f"{metric.replace('_', ' ')} of {case} was not measured")
        return found

    def mean(self, case: str, metric: str) -> float:
        return self(case, metric).mean

    def metrics(self, cases: Iterable[Case]) -> list[str]:
        """Return the metrics that valid runs of *cases* have, in the order of METRICS; unknown metrics come last."""
        order = {key: number for number, key in enumerate(METRICS)}
        there = dict.fromkeys(name for case in cases for run in self.valid(case.key) for name in run.values)
        return sorted(there, key=lambda name: order.get(name, len(order)))

    def pooled(self, distribution: str, case: str) -> tuple[float, ...]:
        """Return the values of *distribution* of all valid runs of *case* together."""
        return tuple(value for run in self.valid(case) for value in run.distributions.get(distribution, ()))


def representative(runs: Sequence[Run]) -> Run | None:
    """Return the run of median goodput (of two in the middle, the lower); None if no run has a time series."""
    with_series = [run for run in runs if run.series is not None]
    return of_median(with_series, lambda run: run.values.get(GOODPUT, 0.0)) if with_series else None
