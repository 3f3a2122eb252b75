# SPDX-License-Identifier: GPL-2.0-or-later
"""The downloads of the demo, their measurements and their aims. Pure.

An unused path and an exceeded cap are always faults; a remark tells whether the guard relaxed the cap. A low rate or an
unfinished download may be the machine's fault: it misses an aim only if neither the hypervisor nor other programs used
much processor time. The demo's own programs do not count as others. The capacity of a link is the rate that plain TCP
reached over the link in the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed.recorder import Sample
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

from ..experiments.columns import Column, Results, Row, Table, for_pictures

LINKS = {"ethernet": ETHERNET_RATE, "wifi": WIFI_RATE}
"""Rate of each link in bits per second."""
PAYLOAD_SHARE = 0.94
"""Approximate share of payload in the bytes on a link. It is used only to choose the sizes of the files."""
MIN_FILLED = 0.8
"""Minimum rate of a path that counts as filled, as a share of the capacity of its link or cap."""
MAX_OVER_LIMIT = 1.1
"""Maximum rate of a path that respects its cap or link, as a multiple of the rate of the cap or link."""
MAX_UNUSED = 0.02
"""A path with a rate below this share of its capacity counts as unused."""
MIN_STEADY_SECONDS = 1.0
RELAXED, BUSY = "the guard relaxed the cap", "machine too busy to judge the rates"
"""Remarks about a download."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One download, and the rates that links and policy allow for it."""

    key: str
    title: str
    subtitle: str
    seconds: float
    """Duration of the download if the links are full."""
    settle_seconds: float
    """Seconds from the download's start to the steady state."""
    ethernet: int | None = None
    wifi: int | None = None
    """Rate in bits per second that link and policy allow for a path; None if the path must be idle."""
    is_capped: bool = False
    """Whether the throttler enforces the policy."""

    def __str__(self) -> str:
        return self.title

    def allowed_rate(self, path: str) -> int | None:
        rate: int | None = getattr(self, path)
        return rate

    @property
    def is_multipath(self) -> bool:
        """Whether the download uses MPTCP through the proxy, and not TCP over one path."""
        return None not in (self.ethernet, self.wifi)

    @property
    def size(self) -> int:
        """Size of the downloaded file in bytes."""
        return int(((self.ethernet or 0) + (self.wifi or 0)) / 8 * PAYLOAD_SHARE * self.seconds)


def trials(cap: int, scale: float = 1.0) -> list[Trial]:
    """Return the downloads, first plain TCP as the reference.

    *cap* is the policy's cap for Ethernet in bits per second, *scale* a factor on the durations without a cap.
    """
    direct, through = "directly from the origin", "MPTCP through the proxy"
    policy = f"Ethernet {cap / 1e6:g} Mbit/s once two subflows are active"
    return [
        Trial("tcp-ethernet", "TCP over Ethernet", direct, 6 * scale, 1.0, ethernet=ETHERNET_RATE),
        Trial("tcp-wifi", "TCP over Wi-Fi", direct, 6 * scale, 1.0, wifi=WIFI_RATE),
        Trial("mptcp", through, "no policy: both links at once", 9 * scale, 1.0, ETHERNET_RATE, WIFI_RATE),
        Trial("mptcp-policy", f"{through} + policy", policy, 16, 5.0, min(cap, ETHERNET_RATE), WIFI_RATE, True),
    ]


@dataclass(frozen=True, slots=True)
class Download:
    """The measurements of one download."""

    start: float
    end: float
    """Start and end of the download in seconds, on the clock of the samples."""
    octets: int
    is_finished: bool
    subflows: int
    ethernet: float
    wifi: float
    """Rate of a path on the wire in the steady state, bits per second."""
    steady_seconds: float
    """Length of the steady state. If the download was too short for one, the rates are those of the whole download."""
    processors: Usage
    relaxations: int
    """Number of times that the guard relaxed the cap."""
    samples: Sequence[Sample] = for_pictures()

    @property
    def goodput(self) -> float:
        """Payload bits per second over the whole download."""
        return self.octets * 8 / (self.end - self.start)


DemoRow = Row[Trial, Download]
DemoResults = Results[Trial, Download]


def _is_relaxed(row: DemoRow) -> bool:
    return any(each.relaxations for each in row.measured)


def _usages_while_busy(row: DemoRow) -> list[Usage]:
    """Return the processors' usage of each download whose low rate, or missing end, may be the machine's fault."""

    def is_sound(each: Download) -> bool:
        rates = ((getattr(each, path), _capacity(row, path) or 0) for path in LINKS)
        return each.is_finished and all(rate >= MIN_FILLED * capacity for rate, capacity in rates)

    return [each.processors for each in row.measured if each.processors.busy and not is_sound(each)]


def _remark(row: DemoRow) -> str:
    busy = [f"{BUSY} ({usage}): run the demo again" for usage in _usages_while_busy(row)]
    return "; ".join([RELAXED] * _is_relaxed(row) + busy)


def words_for_picture(row: DemoRow) -> str:
    """Return what the picture must say about the cap or the download; empty if all is as it should be.

    Each reason is a line, because a download with an exceeded cap is short, and its band in the picture narrow.
    """
    trial, aims = row.cell, [column.verdict(row) for column in TABLE.columns]
    exceeded = trial.is_capped and any(each.ethernet > MAX_OVER_LIMIT * (trial.ethernet or 0) for each in row.measured)
    words = {
        "not held": exceeded,
        RELAXED: _is_relaxed(row),
        BUSY: bool(_usages_while_busy(row)),
        "an aim is missed": not exceeded and any(aim is not None and not aim.met for aim in aims),
    }
    return "\n".join(text for text, is_true in words.items() if is_true)


def _capacity(row: DemoRow, path: str) -> float | None:
    """Return the rate of *path* in bits per second that the download can reach; None if the path must be idle."""
    allowed = row.cell.allowed_rate(path)
    direct_cells = [cell for cell in row.results.cells if not cell.is_multipath and cell.allowed_rate(path)]
    rates = [getattr(each, path) for cell in direct_cells if row.cell.is_multipath for each in row.results.of(cell)]
    return None if allowed is None else min([float(allowed), *rates])


def _path_columns(heading: str, path: str) -> tuple[Column[Trial, Download], ...]:
    """Return two columns for the steady rate of *path*: one judges its limits, one whether the path is filled."""

    def least(row: DemoRow) -> float | None:
        allowed = row.cell.allowed_rate(path)
        return None if allowed is None else MAX_UNUSED * allowed / 1e6

    def most(row: DemoRow) -> float:
        allowed = row.cell.allowed_rate(path)
        return (MAX_UNUSED * LINKS[path] if allowed is None else MAX_OVER_LIMIT * allowed) / 1e6

    def text(row: DemoRow) -> str:
        capacity, rate = _capacity(row, path), row.values(path)[0] / 1e6
        return f"{rate:.{2 if rate < 10 else 1}f} of {'0' if capacity is None else f'{capacity / 1e6:.3g}'}"

    return (
        Column(heading, path, aim=f"{heading}, Mbit/s", scale=1e-6, least=least, most=most, text=text),
        Column(
            "", path, aim=f"{heading} is filled, Mbit/s", scale=1e-6,
            least=lambda row: MIN_FILLED * (_capacity(row, path) or 0) / 1e6,
            judged=lambda row: row.cell.allowed_rate(path) is not None and not _usages_while_busy(row),
        ),
    )  # fmt: skip


TABLE: Table[Trial, Download] = Table(
    "Mbit/s of each download; each path in the steady state, measured and expected",
    (
        Column("payload", "goodput", scale=1e-6, digits=1),
        *_path_columns("Ethernet", "ethernet"),
        *_path_columns("Wi-Fi", "wifi"),
        Column("subflows", "subflows", digits=0),
        Column("MB", "octets", scale=1e-6, digits=1),
        Column("", "is_finished", aim="the download ended in time", least=1,
               judged=lambda row: not _usages_while_busy(row)),
        Column("", "steady_seconds", aim="steady state, s", least=MIN_STEADY_SECONDS,
               judged=lambda row: all(each.is_finished for each in row.measured)),
        Column("remark", "octets", text=_remark),
    ),
    labels=(("download", str),),
    wrapped=("download", "remark"),
)  # fmt: skip
