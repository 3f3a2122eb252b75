# SPDX-License-Identifier: GPL-2.0-or-later
"""A page of small files under a cap: the rate of the capped path, and the duration of the page.

A batch downloads files through the real proxy and throttler, ten at a time, each on its own connection, over Ethernet,
which is capped, and Wi-Fi. The variants alternate: no policy; our throttler, freshly started, so that it does not know
the client; the same throttler, which now knows the client; and no throttler, but one static HTB class for the client's
address on the proxy. A client with only one path is measured, too, but without the class.

The cap is compared with all bytes of IP packets to the client, from the batch's first SYN to its last byte, even if a
connection was opened later. *× cap* is the mean rate of the capped path during the batch, as a multiple of the cap;
*worst* is the same for its worst 2 s. *s* is the batch's duration in seconds, and *× static* is this duration as a
multiple of that with the static class.
"""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from mptcp_lab.testbed import LiveNode, Testbed, TestbedError, paths, services
from mptcp_lab.testbed.plan import ETHERNET_HEADER
from mptcp_lab.testbed.recorder import Recorder, Sample
from mptcp_lab.testbed.services import PROXY_PORT, Origin, Throttler, mptcp_command, wait_until
from mptcp_lab.testbed.transfer import Added, Protocol
from mptcp_throttler.policy.model import Throttle
from mptcp_throttler.shaping.model import class_spec

from ..statistics import fmean
from .columns import RUNS, VARIANT, Column, Row, Table, Turn, columns_of, figure
from .devices import DEVICES, policy
from .parameters import choices, parameter, whole
from .scenario import Scenario
from .two_paths import one_subflow, two_paths

NEW, OURS = "ours, new", "ours"
"""Variants with our throttler, which does not know the client at first, and later does."""
WINDOW_SECONDS = 2.0
"""Length of the windows in which the capped path's rate must be near its cap."""
RATES, RTTS, CAP = (50, 20), (20, 20), 5
"""Rates in Mbit/s and RTTs in ms of the capped path and the other path, and the cap in Mbit/s."""
AT_ONCE = 10
"""Number of simultaneous downloads."""
LONE_DIVISOR = 4
"""Divisor of the number of files for a client with only the capped path, which is slower."""
BATCHES = {
    "20k": 200 * [20_000], "100k": 150 * [100_000], "500k": 50 * [500_000], "2M": 16 * [2_000_000],
    "mixed": 4 * [2_000 << n for n in range(10)],
}  # fmt: skip
"""The sizes of a batch's files in bytes. Each batch takes several seconds. *mixed*: as on a web page, half of the files
are smaller than 50 kB, and a tenth has a megabyte."""
PAUSE_SECONDS = 1.0
"""Seconds between the end of a batch's last connection and the next batch."""
FILE_TIMEOUT, CLOSE_TIMEOUT = 120.0, 60.0
"""Maximum seconds for a file, and until all connections of a batch have ended."""
_FORGET = "sysctl -qw net.mptcp.blackhole_timeout=$(sysctl -n net.mptcp.blackhole_timeout)"
"""Reset the client's blackhole detection (Linux 6.12). After handshakes of MPTCP were lost, but not those of plain TCP,
the client would open only plain TCP connections for an hour."""
MAX_FIRST_DELAY, MAX_LATER_RATIO = 0.25, 1.05
"""For a client with one path: maximum increase in seconds of the longest first download, and maximum duration of later
downloads, as a multiple of that without a policy, which allows for noise."""


@dataclass(frozen=True, slots=True)
class Settings:
    client: tuple[str, ...] = choices("client's paths", ("two", "lone"))
    size: tuple[str, ...] = choices("file size in bytes, or mixed for sizes as on a web page", BATCHES, quick="100k")
    runs: int = parameter("number of batches per variant", "2", whole(), quick="1")


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the options."""

    client: str
    size: str

    @property
    def sizes(self) -> list[int]:
        """The size of each file in bytes."""
        sizes = BATCHES[self.size]
        return sizes[: len(sizes) // LONE_DIVISOR] if self.lone else sizes

    @property
    def lone(self) -> bool:
        """Whether the client has only the path on which its connections open."""
        return self.client == "lone"

    def __str__(self) -> str:
        return f"{len(self.sizes)} × {self.size}" + ", one path" * self.lone


PageRow = Row[Cell, Any]


class Download(NamedTuple):
    """Times of one download on the samples' clock."""

    start: float
    end: float


def _is_ours(row: PageRow) -> bool:
    """Return whether our throttler caps the client of *row*, which has two paths."""
    return row.variant in (NEW, OURS) and not row.cell.lone


def _is_known(row: PageRow) -> bool:
    """Return whether our throttler caps the client of *row*, and knew the client before."""
    return _is_ours(row) and row.variant == OURS


def _is_lone(row: PageRow) -> bool:
    """Return whether the client of *row* has one path, which our throttler does not cap."""
    return row.variant in (NEW, OURS) and row.cell.lone


def _aim_name(row: PageRow) -> str:
    return "capped path, × its cap" if _is_known(row) else "capped path of a new client, × its cap"


@dataclass(frozen=True, slots=True)
class Batch:
    """The measurements of one batch. Durations are in seconds, from the first SYN to the last byte."""

    mean: float = figure("× cap", aim=_aim_name, most=1.05, judged=_is_ours)
    """Mean rate of the capped path over the batch, as a multiple of the cap."""
    worst: float = figure(
        "worst", by="most", aim=f"capped path, worst {WINDOW_SECONDS:g} s, × its cap", most=1.25, judged=_is_known
    )
    """Greatest mean rate over a window, as a multiple of the cap. After the batch, the rate counts as 0."""
    seconds: float = figure("s", digits=1)
    first: float = figure("longest first download, s", by="most", digits=3)
    """Duration of the longest of the first downloads, which start at the same time."""
    later: float = figure("later downloads, s", digits=3)
    """Mean duration of the other downloads."""


def octets_at(samples: Sequence[Sample], device: str) -> Callable[[Any], Any]:
    """Return a function: the bytes that *device* had received at a time, or at an array of times, interpolated."""
    times, octets = [sample.time for sample in samples], [sample.octets[device] for sample in samples]
    return lambda at: np.interp(at, times, octets)


def judge(samples: Sequence[Sample], downloads: Sequence[Download]) -> Batch:
    """Return the measurements of a batch. Raises ValueError if the *samples* do not span the batch."""
    begin, end = min(each.start for each in downloads), max(each.end for each in downloads)
    if not samples or samples[0].time > begin or samples[-1].time < end:
        raise ValueError("the samples do not span the batch")
    capped, cap = octets_at(samples, DEVICES[0]), CAP * 1e6 / 8
    times = np.array([begin, *(sample.time for sample in samples if begin < sample.time < end), end])
    durations = [each.end - each.start for each in sorted(downloads)]
    return Batch(
        mean=float(capped(end) - capped(begin)) / (cap * (end - begin)),
        worst=max(capped(np.minimum(times + WINDOW_SECONDS, end)) - capped(times)) / (cap * WINDOW_SECONDS),
        seconds=end - begin,
        first=max(durations[:AT_ONCE]),
        later=fmean(durations[AT_ONCE:] or durations),
    )


def ip_recorder(node: LiveNode) -> Recorder:
    """Return a recorder of the bytes of IP packets that *node* receives, without Ethernet headers."""

    def read() -> dict[str, int]:
        counters = node.counters()
        return {name: counters[name].received - ETHERNET_HEADER * counters[name].packets for name in DEVICES}

    return Recorder(node, DEVICES, interval=0.02, read=read)


@dataclass(slots=True)
class Bed:
    """A testbed with all services."""

    testbed: Testbed
    origin: Origin
    throttler: Throttler | None = None

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    @property
    def proxy(self) -> LiveNode:
        return self.testbed["proxy"]

    def stop_throttler(self) -> None:
        if self.throttler is not None:
            self.throttler.process.stop()
        self.throttler = None

    def start_throttler(self, rule: str) -> None:
        """Start a throttler that has never seen the client, with *rule* for Ethernet."""
        self.stop_throttler()
        file = self.proxy.write("policy.yaml", policy(f"[{{name: cap, paths: [ethernet], {rule}}}]"))
        self.throttler = services.start_throttler(self.proxy, services.write_throttler_config(self.proxy, file))

    def static_class(self, cap: float, subflows: int) -> AbstractContextManager[None]:
        """Add a class of *cap* Mbit/s for the client's address, as an administrator would, during the scope.

        Its burst and queue length are those that the throttler computes for the same number of subflows.
        """
        spec = class_spec(1, Throttle(rate=round(cap * 1_000_000)), 1 << (subflows - 1).bit_length())
        rates = f"rate {spec.rate}bit ceil {spec.ceil}bit burst {spec.burst} cburst {spec.cburst}"
        commands = (
            "tc qdisc add dev wan0 root handle 1: htb",
            f"tc class add dev wan0 parent 1: classid 1:1 htb {rates} quantum {spec.quantum}",
            f"tc qdisc add dev wan0 parent 1:1 handle 10: pfifo limit {spec.queue_packets}",
            "tc filter add dev wan0 parent 1: protocol ip u32 match ip dst 10.77.1.0/24 flowid 1:1",
        )
        undo = ["tc", "qdisc", "del", "dev", "wan0", "root"]
        return self.proxy.changed(["sh", "-ec", "; ".join(commands)], undo)

    def fetch(self, cell: Cell) -> Batch:
        """Download the files of *cell*. Raises TestbedError for an incomplete file or unintended paths."""
        self.wait_until_quiet()
        self.client.run(["sh", "-c", _FORGET], check=False)
        order = {
            "proxy": [self.proxy.service_address(), PROXY_PORT],
            "target": [self.origin.host.service_address(), 80],
            "kind": "get",
            "at_once": AT_ONCE,
            "files": [(str(size), size) for size in cell.sizes],
            "timeout": FILE_TIMEOUT,
        }
        file = self.client.write("order.json", json.dumps(order))
        argv = mptcp_command(self.client.agent("fetch", str(file)))
        added = Added(self.client, self.proxy)
        with ip_recorder(self.client) as recorder:
            answers = json.loads(self.client.run(argv, timeout=FILE_TIMEOUT * 5).stdout)
            # The last byte may have arrived after the last sample.
            recorder.wait(recorder.now + 0.1)
        broken = [each for each in answers if each["error"]]
        if broken:
            raise TestbedError(f"{len(broken)} of {len(answers)} downloads are incomplete, first {broken[0]}")
        downloads = [Download(each["began"] - recorder.started, each["end"] - recorder.started) for each in answers]
        joins = Protocol.of(*added.read()).joins
        if bool(joins) is cell.lone:
            raise TestbedError(f"{joins} second subflows of a client with the option {cell.client}")
        return judge(recorder.samples, downloads)

    def wait_until_quiet(self) -> None:
        """Wait until all connections of the last batch have ended, then wait for ``PAUSE_SECONDS``."""
        closed = "the last batch's connections are closed"
        wait_until(lambda: not self._has_connections(), closed, timeout=CLOSE_TIMEOUT)
        time.sleep(PAUSE_SECONDS)

    def _has_connections(self) -> bool:
        listing = self.proxy.run(["ss", "-tanH", "sport", "=", f":{PROXY_PORT}"]).stdout
        if any(not line.startswith(("LISTEN", "TIME-WAIT")) for line in listing.splitlines()):
            return True
        return self.throttler is not None and bool(self.throttler.status()["connections"])


@contextmanager
def bed_with(sizes: Iterable[int], seed: int) -> Iterator[Bed]:
    """Build a testbed with all services except the throttler. Files are named after their *sizes*."""
    with Testbed(paths(two_paths(RATES, RTTS)), seed=seed) as testbed:
        origin = services.start_origin(testbed["origin"], {str(size): size for size in sizes})
        services.start_proxy(testbed["proxy"])
        yield Bed(testbed, origin)


def measure(bed: Bed, turn: Turn[Cell]) -> Batch:
    if turn.variant == NEW:
        bed.start_throttler(f"throttle: {{rate: {CAP} Mbit/s}}")
    elif turn.variant != OURS:
        bed.stop_throttler()
    elif bed.throttler is None:
        raise TestbedError("no throttler knows the client, because the batch of the new client failed")
    with (
        one_subflow(bed.testbed) if turn.cell.lone else nullcontext(),
        bed.static_class(CAP, AT_ONCE) if turn.variant == "static" else nullcontext(),
    ):
        return bed.fetch(turn.cell)


def _compared(name: str, variant: str, compare: Callable[[float, float], float]) -> Callable[[PageRow], list[float]]:
    """Return a function that compares the value *name* of each batch with its mean under another *variant*."""

    def values(row: PageRow) -> list[float]:
        others = [getattr(each, name) for each in row.other_runs(variant)]
        return [compare(value, fmean(others)) for value in row.values(name)] if others else []

    return values


TABLE = Table(
    "Many downloads under a cap",
    (
        RUNS,
        *columns_of(Batch),
        Column(
            "× static", _compared("seconds", "static", operator.truediv), by="median", most=1.02, judged=_is_known,
            aim="duration, × that with a static class",
        ),
        Column(
            "", _compared("first", "none", operator.sub), by="most", unit=" s", most=MAX_FIRST_DELAY, judged=_is_lone,
            aim="longest first download of a client with one path, added time",
        ),
        Column(
            "", _compared("later", "none", operator.truediv), most=MAX_LATER_RATIO, judged=_is_lone,
            aim="later downloads of a client with one path, × without a policy",
        ),
    ),
    (("downloads", lambda row: str(row.cell)), VARIANT),
    wrapped=("downloads",),
)  # fmt: skip
SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "ss", "mptcpize"),
    cells=lambda chosen: [Cell(*each) for each in product(chosen.client, chosen.size)],
    shared_bed=lambda cell: None,
    variants=lambda chosen, cell: ("none", NEW, OURS) if cell.lone else ("none", NEW, OURS, "static"),
    bed=lambda chosen, cells, seed: bed_with({size for cell in cells for size in cell.sizes}, seed),
    measure=measure,
    tables=(TABLE,),
)
