# SPDX-License-Identifier: GPL-2.0-or-later
"""The result of one experiment of the paper, as frozen dataclasses with the paper's own fields.

A run that is not a data point stays in the result, with the reason.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .. import result_file
from ..result_file import JudgedClaim, Result, Scalar
from ..statistics import Interval

ETHERNET = "ethernet"
WIFI = "wifi"
CASE_OF = {ETHERNET: "tcp-ethernet", WIFI: "tcp-wifi"}
"""Key of the case that uses only this path, by path."""

GOODPUT = "goodput"
DURATION = "duration"
TIME_TO_THROTTLE = "time_to_throttle"
CAPPED = "capped"
"""1 if the cap came into force before the transfer ended, otherwise 0. If 0, ``time_to_throttle`` is missing."""
BEFORE_CAP = "before_cap"
IDLE = "idle"
LEAST_IDLE = "least_idle"
"""Idle share of the busiest single processor. Results before 2026-11-23 do not have it."""
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
wait; and of one that arrives faster than the client's paths can take it."""
UP, DOWN = "up", "down"
"""Direction of a distribution: ``syn up`` goes from client to origin, ``data down`` from origin to client."""

Kind = Literal["panel", "baseline", "sweep"]


class Cause(enum.StrEnum):
    """Why a run is not a data point, for claims that need to know."""

    OTHER = ""
    NO_FALLBACK = "no-fallback"
    """The server accepted MPTCP."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A quantity that a run may have a value of."""

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
    """Return the name of the metric "least seconds to open a connection over the idle *path*"."""
    return f"rtt_{path}"


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
        Metric(IDLE, "processor time idle, of the busier host", "ratio"),
        Metric(LEAST_IDLE, "time that the busiest processor was idle", "ratio"),
        Metric("median_syn_up", "client's connection established → SYN to origin, median", "s"),
        Metric("median_syn-whole_up", "client's SYN in → SYN to origin, median", "s"),
        Metric("median_data_up", "request in → out, handshake with origin within, median", "s"),
        Metric("median_data_down", "segment of a short response in → out, median", "s"),
        Metric("median_stream_up", "segment of an upload in → out, median", "s"),
        Metric("median_stream_down", "segment of a download in → out, origin the slower, median", "s"),
        Metric("median_bulk_down", "segment of a download in → out, client the slower, median", "s"),
        Metric("handshake", "client's SYN in → its third ACK in", "s"),
        Metric("answer", "client's SYN in → SYN/ACK out", "s"),
        Metric("request_wait", "client's third ACK in → request in", "s"),
        Metric("syn_whole", "client's SYN in → SYN to origin", "s"),
        Metric("syn_own", "request in → SYN to origin", "s"),
        Metric("request_own", "request in → out, without the origin's answer", "s"),
        Metric("response", "first byte of the response in → out", "s"),
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
    """The only path that the case uses; None if it uses all."""
    caps: dict[str, float] = field(default_factory=dict)
    """Rate in bits per second that the policy allows each capped path."""
    at: float | None = None
    """Position on the axis of the sweep, in bytes of receive buffer."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time. Each is the mean over the interval that ends at its time."""

    times: tuple[float, ...]
    """Seconds since the client's program started."""
    paths: dict[str, tuple[float, ...]]
    """Rate at which the client received over each path, in bits per second."""
    extra: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in {**self.paths, **self.extra}.items():
            if len(values) != len(self.times):
                raise ValueError(f"series {name!r} has {len(values)} values for {len(self.times)} times")


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition of one case."""

    case: str
    repetition: int
    valid: bool
    """Whether the run is a data point. Figures and statistics include only data points."""
    reason: str = ""
    start: float = 0.0
    end: float = 0.0
    """Begin and end of the client's program in seconds, on the clock of the series."""
    series: Series | None = None
    values: dict[str, float] = field(default_factory=dict)
    """The values by metric, in SI units."""
    distributions: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Delays in seconds, by kind and direction, such as ``syn up``."""
    cause: Cause = Cause.OTHER
    """The kind of :attr:`reason`, for claims that need to know."""


@dataclass(frozen=True, slots=True)
class Statistic(Interval):
    """Mean of a metric over the valid runs of a case, with its 95 % confidence interval (Student's t)."""

    case: str
    metric: str
    unit: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """A value for comparison, which is drawn as a line."""

    where: str
    """The plot in which it is drawn: a kind of distribution (seconds), or ``sweep`` (bytes)."""
    value: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperResult(Result):
    """The result of one experiment of the paper that was run again."""

    paper: str
    """The paper's name for it, such as ``Figure 3``."""
    repetitions: int
    """Planned number of runs of each case."""
    cases: tuple[Case, ...]
    runs: tuple[Run, ...]
    summary: tuple[Statistic, ...] = ()
    claims: tuple[JudgedClaim, ...] = ()
    references: tuple[Reference, ...] = ()

    def __post_init__(self) -> None:
        keys = [case.key for case in self.cases]
        if len(set(keys)) != len(keys):
            raise ValueError("two cases have the same key")
        for of, names in (("run", [r.case for r in self.runs]), ("statistic", [s.case for s in self.summary])):
            for name in names:
                if name not in keys:
                    raise ValueError(f"{of} of case {name!r}; there are {', '.join(keys)}")

    def case(self, key: str) -> Case:
        """Return the case with this key. Raises KeyError."""
        for case in self.cases:
            if case.key == key:
                return case
        raise KeyError(key)

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
        """Return the summary's line for *case* and *metric*, or None."""
        return next((s for s in self.summary if (s.case, s.metric) == (case, metric)), None)


def load(source: Path) -> PaperResult:
    """Read a result of the paper. Raises ResultError, whose text is one line with file, key and value."""
    return result_file.load(source, PaperResult)
