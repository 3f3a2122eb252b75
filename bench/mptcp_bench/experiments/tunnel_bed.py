# SPDX-License-Identifier: GPL-2.0-or-later
"""The testbeds of the experiment ``tunnel``: OpenVPN in each variant, and downloads through it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import nan
from pathlib import Path

from mptcp_lab.testbed import UNSHAPED, LiveNode, Process, Testbed, TestbedError, paths
from mptcp_lab.testbed.openvpn import OpenVpn, over_tcp, over_udp
from mptcp_lab.testbed.services import start_origin, wait_until
from mptcp_lab.testbed.tunnel import PORT, Tunnel, tunnel

from .devices import DEVICES
from .tunnel_cells import DOWNLOADS, PATHS, Cell, Settings

PORTS = {"a": 1195, "b": 1196, "mptcp": 1197}
NUMBERS = {"a": 1, "b": 2, "tunnel": 3, "mptcp": 4}
"""Number of each OpenVPN pair. The packets of the pair *tunnel* are split by our daemons."""
LIMIT = 1.3
"""A download is stopped after this multiple of the time that it would take at the sum of its paths' rates."""
LEARNING = 4.0
"""Seconds of the download from which the daemons learn the paths' rates. Real tunnels run for days."""
LONGEST = 16.0
"""Seconds that the files suffice for in parts other than downloads."""
CHECK = 1.5
"""Seconds after a download's start at which its congestion control is checked."""
SPLIT = ("ours", "weights")
MODE: Mapping[str, Mapping[str, object]] = {"ours": {}, "weights": {"mode": "weights", "weights": [50] * len(PATHS)}}
EVEN = 0.45
"""Least share of the packets on each path if they are split 50/50."""
JOINED = "MPTcpExtMPJoinSynAckRx"


@dataclass(slots=True)
class Download:
    """A download that runs."""

    process: Process
    limit: float

    def rate(self) -> float:
        """Wait for the download's end. Return its payload rate in bits/s. Raises TestbedError if it failed."""
        # Exit code 28 means that the time was over before the download was complete. Its rate is valid.
        status = self.process.wait(self.limit + 30)
        words = self.process.output().split()
        if status not in (0, 28) or len(words) != 2:
            raise TestbedError(f"the download ended with {status}{self.process.tail()}")
        return 8 * float(words[0]) / float(words[1])


@dataclass(slots=True)
class Bed:
    """One testbed. *control* is the congestion control of the downloads inside its tunnels."""

    testbed: Testbed
    control: str
    pairs: dict[str, OpenVpn] = field(default_factory=dict)

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    @property
    def proxy(self) -> LiveNode:
        """The node at which the tunnels end, and that serves the files."""
        return self.testbed["proxy"]

    def start_pairs(self, scope: ExitStack, *, multipath: bool) -> None:
        """Start the OpenVPN pairs, without waiting until they are connected; one over MPTCP only if *multipath*."""
        ends, address = (self.client, self.proxy), self.proxy.service_address()
        for path, device in zip(PATHS, DEVICES, strict=True):
            local, number = self.client.address(device), NUMBERS[path]
            pair = over_udp(*ends, address, number=number, port=PORTS[path], local=local, wait=False)
            self.pairs[path] = scope.enter_context(pair)
        number = NUMBERS["tunnel"]
        self.pairs["tunnel"] = scope.enter_context(over_udp(*ends, address, number=number, port=PORT, wait=False))
        if multipath:
            pair = over_tcp(*ends, address, number=NUMBERS["mptcp"], port=PORTS["mptcp"], wait=False)
            self.pairs["mptcp"] = scope.enter_context(pair)

    def settle(self) -> None:
        """Wait until the pairs are connected, and set the congestion control of their traffic. Raises TestbedError."""
        for pair in self.pairs.values():
            pair.wait()
            route = [pair.client_address, "dev", pair.device, "src", pair.server_address, "congctl", self.control]
            # Set it for a route, because a namespace can select as default only what the host allows.
            self.proxy.run(["ip", "route", "replace", *route])
        if "mptcp" in self.pairs:
            wait_until(lambda: self.client.mib().get(JOINED, 0) > 0, "OpenVPN over Multipath TCP has a second subflow")

    def pairs_of(self, variant: str) -> list[tuple[OpenVpn, str]]:
        """Return the pairs through which *variant* downloads, each with the name of its file."""
        if variant == "alone":
            return [(self.pairs[path], path) for path in PATHS]
        return [(self.pairs["tunnel" if variant in SPLIT else variant], "sum")]

    def download(self, pair: OpenVpn, file: str, limit: float, into: Path | None = None) -> Download:
        """Start a download into the file *into*, if any. It ends after *limit* seconds at the latest."""
        url = f"http://{pair.server_address}/{file}"
        argv = ["curl", "-sSN", "-m", f"{limit:g}", "-o", str(into or "/dev/null"), url]
        # Drop curl's standard error, because it reports the time limit as an error.
        argv = ["sh", "-c", '"$@" 2>/dev/null', "sh", *argv[:-1], "-w", "%{size_download} %{time_total}", url]
        return Download(self.client.popen(argv, name="curl"), limit)

    def check_control(self, pair: OpenVpn) -> None:
        """Raise TestbedError if no traffic to the client uses the bed's congestion control."""
        shown = self.proxy.run(["ss", "-Htin", "state", "established", "dst", pair.client_address]).stdout
        words = set(shown.split())
        if self.control not in words:
            raise TestbedError(f"no download through {pair.device} is sent by {self.control}: {shown.strip()}")


@dataclass(frozen=True, slots=True)
class Beds:
    """The testbeds of one cell, one for each congestion control; for the cost of a packet one without pairs."""

    testbeds: Sequence[Testbed]
    each: Sequence[Bed]
    settings: Settings
    seed: int

    def check_emulation(self) -> None:
        for testbed in self.testbeds:
            testbed.check_emulation()


@contextmanager
def built(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Beds]:
    [cell] = cells
    with ExitStack() as scope:
        if cell.part == "cost":
            yield Beds([scope.enter_context(Testbed(UNSHAPED, seed=seed))], (), chosen, seed)
            return
        found = []
        for control in cell.controls:
            testbed = scope.enter_context(Testbed(paths(cell.over.paths()), seed=seed))
            files = cell.over.octets(chosen.seconds if cell.part in DOWNLOADS else LONGEST)
            start_origin(testbed["proxy"], files, ports=(80,))
            found.append(Bed(testbed, control))
        # Run our daemons meanwhile, because the pair ``tunnel`` needs them to connect.
        with running(found, "ours"):
            for bed in found:
                bed.start_pairs(scope, multipath=cell.part in DOWNLOADS)
            for bed in found:
                bed.settle()
        yield Beds([bed.testbed for bed in found], found, chosen, seed)


@contextmanager
def running(found: Sequence[Bed], variant: str) -> Iterator[list[Tunnel]]:
    """Run the daemons of *variant*, if it has any, freshly started, so that they know nothing of the paths."""
    with ExitStack() as scope:
        tunnels = []
        if variant in SPLIT:
            mode, over = MODE[variant], dict(zip(PATHS, DEVICES, strict=True))
            for bed in found:
                one = tunnel(bed.client, bed.proxy, over, settings=mode, wait=False)
                tunnels.append(scope.enter_context(one))
            for each in tunnels:
                each.wait()
        yield tunnels


def _check_even(each: Tunnel) -> None:
    sent = [path["packets_sent"] for path in each.proxy.paths()]
    if min(sent) < EVEN * sum(sent):
        raise TestbedError(f"packets were not split 50/50: {sent}")


@dataclass(frozen=True, slots=True)
class Goodput:
    """The rate of a download in bits/s; in the variant ``alone`` of two at the same time, one over each path."""

    rate: float
    a: float = nan
    b: float = nan


def download(beds: Beds, cell: Cell, variant: str) -> dict[str, Goodput]:
    """Download once in each testbed, all at the same time. Raises TestbedError.

    If the paths' rates differ, another download comes first, from which the daemons learn the rates.
    """
    found, limit = beds.each, LIMIT * beds.settings.seconds
    with running(found, variant) as tunnels:
        if tunnels and cell.part == "rates":
            before = [bed.download(*bed.pairs_of(variant)[0], LEARNING) for bed in found]
            for one in before:
                one.rate()
        begun = [[(pair, bed.download(pair, file, limit)) for pair, file in bed.pairs_of(variant)] for bed in found]
        time.sleep(CHECK)
        for bed, downloads in zip(found, begun, strict=True):
            for pair, _ in downloads:
                bed.check_control(pair)
        rates = [[one.rate() for _, one in downloads] for downloads in begun]
        if variant == "weights":
            for each in tunnels:
                _check_even(each)
    return {
        bed.control: Goodput(sum(each), *(each if variant == "alone" else ()))
        for bed, each in zip(found, rates, strict=True)
    }
