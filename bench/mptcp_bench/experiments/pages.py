# SPDX-License-Identifier: GPL-2.0-or-later
"""A page of small files under a cap: the rate of the capped path, and the duration of the page.

Batches of parallel downloads use the real proxy, Apache and throttler, over Ethernet, which is capped, and Wi-Fi. The
variants alternate, each with the same number of batches: no policy; our throttler, freshly started, so that it does not
know the client yet, and then when it does; no throttler, but one static HTB class for the client's address on the
proxy. A client with only one path is measured in the same way.

*× cap* is the mean rate of the capped path during the batch, as a multiple of the cap; *worst* is the same for its
worst 2 s. *s* is the batch's duration in seconds, *p50* and *p95* are percentiles of a file's duration, *× static* is
the duration as a multiple of that with the static class. *joins* is the number of connections with a second subflow,
*plain* those of plain TCP.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from mptcp_lab.agent.counters import fallbacks
from mptcp_lab.testbed import LiveNode, Testbed, TestbedError, paths, services
from mptcp_lab.testbed.commands import undone_on_error
from mptcp_lab.testbed.plan import ETHERNET_HEADER
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.recorder import Recorder
from mptcp_lab.testbed.services import PROXY_PORT, Origin, Throttler, wait_until
from mptcp_lab.testbed.transfer import Added
from mptcp_throttler.policy.model import Throttle
from mptcp_throttler.shaping.model import class_spec

from ..statistics import fmean
from .columns import RUNS, Column, Row, Table, Turn, columns_of
from .devices import DEVICES, policy
from .pages_judging import CAP, NEW, OURS, RATES, RTTS, Batch, Cell, Download, Settings, cells, judge, known, ours
from .scenario import Scenario
from .two_paths import one_subflow, two_paths

PAUSE_SECONDS = 1.0
"""Seconds between the end of a batch's last connection and the next batch."""
FILE_TIMEOUT, CLOSE_TIMEOUT = 120.0, 60.0
"""Maximum seconds for a file, and seconds within which all connections of a batch must have ended."""
_SKIPPED_COUNTERS = ("MPTcpExtMPCapableSYNTXDisabled", "MPTcpExtMPCapableSYNTXDrop")
_FORGET = "sysctl -qw net.mptcp.blackhole_timeout=$(sysctl -n net.mptcp.blackhole_timeout)"
"""Reset the client's blackhole detection. If handshakes of MPTCP were lost, but not those of plain TCP,
it makes the client open only plain TCP connections for an hour (Linux 6.12). Older kernels do not have it."""


MAX_FIRST_DELAY, MAX_LATER_RATIO = 0.25, 1.05
"""For a client with one path: maximum increase in the duration of the first downloads in seconds, and maximum duration
of the later downloads, as a multiple of their duration without a policy, which allows for noise."""
PageRow = Row[Cell, Batch]


class IpRecorder(Recorder):
    """Record the bytes of IP packets that *node* receives, without Ethernet headers."""

    def __init__(self, node: LiveNode, devices: Sequence[str]) -> None:
        def read() -> dict[str, int]:
            counters = node.counters()
            return {name: counters[name].received - ETHERNET_HEADER * counters[name].packets for name in devices}

        super().__init__(node, devices, interval=0.02, read=read)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        super().__exit__(kind, error, traceback)
        # Take one more sample, because the last byte may have arrived after the last sample.
        self._take()


@dataclass(slots=True)
class Bed:
    """A testbed with all services. It runs one batch at a time."""

    testbed: Testbed
    origin: Origin
    proxy_address: str
    throttler: Throttler | None = None
    known: bool = False
    """Whether the throttler has seen the client."""
    _orders: int = 0

    @classmethod
    def start(cls, testbed: Testbed, sizes: Sequence[int]) -> Bed:
        """Start all services except the throttler on *testbed*. Files are named after their *sizes*."""
        origin = services.start_origin(testbed["origin"], {str(size): size for size in sizes})
        services.start_proxy(testbed["proxy"])
        return cls(testbed, origin, testbed["proxy"].service_address())

    def check_emulation(self) -> None:
        self.testbed.check_emulation()

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    def stop_throttler(self) -> None:
        if self.throttler is not None:
            self.throttler.process.stop()
        self.throttler, self.known = None, False

    def start_throttler(self, rule: str) -> None:
        """Start a throttler that has never seen the client, with *rule* for Ethernet."""
        self.stop_throttler()
        proxy = self.testbed["proxy"]
        file = proxy.write("policy.yaml", policy(f"[{{name: cap, paths: [ethernet], {rule}}}]"))
        self.throttler = services.start_throttler(proxy, services.write_throttler_config(proxy, file))

    def static_class(self, cap: float, subflows: int) -> AbstractContextManager[None]:
        """Add a class of *cap* Mbit/s for the client's address, as an administrator would, during the scope.

        Its parameters, including the queue length, are those that the throttler computes for the same number of
        subflows.
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
        return self.testbed["proxy"].changed(["sh", "-ec", "; ".join(commands)], undo)

    def fetch(self, cell: Cell) -> Batch:
        """Download the files of *cell*. Raises TestbedError if a file is incomplete."""
        self.wait_until_quiet()
        self.client.run(["sh", "-c", _FORGET], check=False)
        added = Added(self.client, self.testbed["proxy"])
        with IpRecorder(self.client, DEVICES) as recorder:
            answers = self._run_agent(cell)
        self.known = self.throttler is not None
        # An answer without a time means that the download did not begin.
        broken = [each for each in answers if not each or each["error"] or str(each["octets"]) != each["name"]]
        if broken:
            raise TestbedError(f"{len(broken)} of {len(answers)} downloads are incomplete, first {broken[0]}")
        downloads = [Download(each["began"] - recorder.started, each["end"] - recorder.started) for each in answers]
        client, proxy = added.read()
        plain = fallbacks(client) + sum(client.get(name, 0) for name in _SKIPPED_COUNTERS)
        return judge(recorder.samples, cell, downloads, Protocol.of(client, proxy).joins, plain)

    def _run_agent(self, cell: Cell) -> list[dict[str, Any]]:
        order = {
            "proxy": [self.proxy_address, PROXY_PORT],
            "target": [self.origin.host.service_address(), 443 if cell.kind == "connect" else 80],
            "kind": cell.kind,
            "at_once": cell.at_once,
            "files": [(str(size), size) for size in cell.sizes],
            "timeout": FILE_TIMEOUT,
        }
        self._orders += 1
        file = self.client.write(f"order-{self._orders}.json", json.dumps(order))
        process = self.client.popen(self.client.agent("fetch", str(file)), name="fetch")
        # After an error or timeout, stop the client, so that it does not download during the next batch.
        with undone_on_error(process.kill):
            process.wait(FILE_TIMEOUT * 5)
        if process.returncode != 0:
            raise TestbedError(f"the client ended with {process.returncode}{process.tail()}")
        answers: list[dict[str, Any]] = json.loads(process.output())
        return answers

    def wait_until_quiet(self) -> None:
        """Wait until all connections of the last batch have ended, then wait for ``PAUSE_SECONDS``."""
        wait_until(
            lambda: not self._has_connections(), "the last batch's connections are closed", timeout=CLOSE_TIMEOUT
        )
        time.sleep(PAUSE_SECONDS)

    def _has_connections(self) -> bool:
        listing = self.testbed["proxy"].run(["ss", "-tanH", "sport", "=", f":{PROXY_PORT}"]).stdout
        if any(not line.startswith(("LISTEN", "TIME-WAIT")) for line in listing.splitlines()):
            return True
        return self.throttler is not None and bool(self.throttler.status()["connections"])


@contextmanager
def start_bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Bed]:
    with Testbed(paths(two_paths(RATES, RTTS)), seed=seed) as testbed:
        yield Bed.start(testbed, sorted({size for cell in cells for size in cell.sizes}))


def variants(chosen: Settings, cell: Cell) -> list[str]:
    """Return the variants of *cell*. A client with one path is not compared with a static class."""
    by_option = {"none": ["none"], "ours": [NEW, OURS], "static": [] if cell.lone else ["static"]}
    return [variant for option in chosen.variant for variant in by_option[option]]


def measure(bed: Bed, turn: Turn[Cell]) -> Batch:
    """Download one batch. Raises TestbedError if a file is incomplete, or the client had other paths than intended."""
    cell = turn.cell
    if turn.variant not in (NEW, OURS):
        bed.stop_throttler()
    elif turn.variant == NEW or not bed.known:
        bed.start_throttler(f"throttle: {{rate: {CAP} Mbit/s}}")
        if turn.variant == OURS:
            _fetch(bed, cell, OURS)
    return _fetch(bed, cell, turn.variant)


def _fetch(bed: Bed, cell: Cell, variant: str) -> Batch:
    with (
        one_subflow(bed.testbed) if cell.lone else nullcontext(),
        bed.static_class(CAP, cell.at_once) if variant == "static" else nullcontext(),
    ):
        batch = bed.fetch(cell)
    if not batch.plain and (batch.joins == 0) is not cell.lone:
        raise TestbedError(f"{batch.joins} second subflows of a client with the option {cell.client}")
    return batch


def _without_policy(row: PageRow, name: str) -> list[float]:
    return [float(getattr(batch, name)) for batch in row.beside("none")]


def _static_ratios(row: PageRow) -> list[float]:
    static = row.beside("static")
    return [seconds / fmean(each.seconds for each in static) for seconds in row.values("seconds")] if static else []


def _first_delay(name: str, statistic: Callable[[list[float]], float], text: str) -> Column[Cell, Batch]:
    """Return the column that limits how much longer the first downloads of a client with one path may take."""

    def values(row: PageRow) -> list[float]:
        without = _without_policy(row, name)
        return [statistic(row.values(name)) - statistic(without)] if row.measured and without else []

    aim = f"first downloads of a lone client longer, {text}"
    return Column("", values, aim=aim, unit=" s", most=MAX_FIRST_DELAY, judged=lambda row: row.variant == NEW)


def _later_ratio(row: PageRow) -> list[float]:
    """Return the durations for a client that the throttler knows, as a multiple of the durations without a policy."""
    without = [fmean(values) for name in ("later", "first") if (values := _without_policy(row, name))]
    if not row.measured or not without:
        return []
    known = [fmean(row.values(name)) for name in ("later", *["first"] * (row.variant == OURS))]
    return [fmean(known) / fmean(without)]


LABELS = (("downloads", lambda row: str(row.cell)), ("variant", lambda row: row.variant))
OF_FIRST_FILES = ("first", "later")
"""Columns for a client with one path."""
TABLES: tuple[Table[Cell, Batch], ...] = (
    Table(
        "Many downloads under a cap",
        (
            RUNS,
            *(column for column in columns_of(Batch) if column.of not in OF_FIRST_FILES),
            Column(
                "× static", _static_ratios, by="median", aim="time, × that with a static class", most=1.02, judged=known
            ),
        ),
        LABELS,
        of=lambda row: not row.cell.lone,
        wrapped=("downloads",),
    ),
    Table(
        "Many downloads of a client with one path",
        (
            RUNS,
            *(column for column in columns_of(Batch) if column.of in OF_FIRST_FILES),
            _first_delay("first", fmean, "mean"),
            _first_delay("first_longest", max, "the longest"),
            Column(
                "", _later_ratio, aim="later downloads of a lone client, × without a policy", most=MAX_LATER_RATIO,
                judged=ours,
            ),
        ),
        LABELS,
        of=lambda row: row.cell.lone,
        wrapped=("downloads",),
    ),
)  # fmt: skip
SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "ss"),
    cells=cells,
    together=lambda cell: None,
    variants=variants,
    bed=start_bed,
    measure=measure,
    tables=TABLES,
    counted=lambda row: "batches measured",
)
