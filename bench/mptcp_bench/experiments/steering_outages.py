# SPDX-License-Identifier: GPL-2.0-or-later
"""Outages in the steering modes: one path fails in mid-transfer, in one of three ways, and comes back.

The transfers use the real proxy and throttler. The failing path has 30 Mbit/s, and is the first one for the modes with
an order. The other path has 20 Mbit/s. The RTT is 20 ms. Every 0.1 s the experiment records how much the application
has got, what each path carries, and which subflows the proxy has made a backup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console

from mptcp_lab.testbed import LiveNode, Testbed, TestbedError, paths
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.recorder import Recorder, Sample
from mptcp_lab.testbed.services import PROXY_PORT
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics

from .attempts import Attempts
from .devices import DEVICE, DEVICES
from .findings import Findings
from .setup import Setup
from .steering_cells import LOST_RATE, NONE, OTHER_RATE, PATHS, POLICY, Cell
from .steering_outages_judging import APPLICATION, Outcome, Watched, aims, beside_each_other, outcome, table_of
from .two_paths import dropping, slow_origin, two_paths

PACE, RTT = 12, 20
"""Rate of the slow origin in Mbit/s, and RTT of both paths in ms."""
FAST, WARM = 4.0, 8.0
"""Seconds at full speed before a paced load, and seconds before the failure."""
BACK_AT_LEAST, BACK_AT_MOST = 8.0, 20.0
"""Least and most seconds that are recorded after the outage; between them, 1.5 times the outage."""
PROBE = "net.ipv4.tcp_rto_max_ms"
"""The sysctl that limits the retransmission timeout, since Linux 6.15."""
NETWORKS = {bytes((10, 77, 1)): "ethernet", bytes((10, 77, 2)): "wifi"}


@contextmanager
def failing(testbed: Testbed, cell: Cell) -> Iterator[None]:
    """Let the path of *cell* fail, in the cell's way, until the context ends."""
    lost = PATHS[cell.lost][0]
    router = testbed["hop1" if lost == "ethernet" else "hop2"]
    match cell.fault:
        case "link":
            with testbed["client"].link_down(DEVICE[lost]):
                yield
        case "router":
            with router.link_down("wan"):
                yield
        case _:
            with dropping(router):
                yield


class OutageRecorder(Recorder):
    """Record what each path carries, what the application has got, and which subflows the proxy made a backup."""

    def __init__(self, client: LiveNode, proxy: LiveNode, done: Callable[[], int], sent: bool) -> None:
        super().__init__(client, DEVICES, direction="sent" if sent else "received")
        self._client, self._done = client, done
        self.flags: list[tuple[float, dict[str, bool]]] = []
        self._proxy = proxy
        with proxy.entered():
            self._diagnostics = SocketDiagnostics((PROXY_PORT,))

    def _take(self) -> None:
        counters = self._client.counters()
        octets = {device: getattr(counters[device], self._direction) for device in self.devices}
        self._samples.append(Sample(self.now, {**octets, APPLICATION: self._done()}))
        with self._proxy.entered():
            found = {
                NETWORKS[each.four_tuple.remote[:3]]: each.made_backup
                for each in self._diagnostics.subflows()
                if each.four_tuple.remote[:3] in NETWORKS
            }
        self.flags.append((self.now, found))


def measure(setup: Setup, cell: Cell) -> Watched:
    """Transfer in a mode while a path fails and comes back. Raises EmulationError if the paths were not as asked."""
    setup.load_between(POLICY % cell.rule, [] if cell.mode == NONE else ["steered"])
    uploading = cell.load == "upload"
    with ExitStack() as stack:
        if cell.stale:
            stack.enter_context(setup.proxy.sysctl("net.mptcp.stale_loss_cnt", str(cell.stale)))
        process = stack.enter_context(setup.client.running(setup.upload if uploading else setup.download))
        done = _received_by(setup.testbed["origin"]) if uploading else _written_by(process)
        with OutageRecorder(setup.client, setup.proxy, done, uploading) as recorder:
            if cell.load == "paced":
                time.sleep(FAST)
                stack.enter_context(slow_origin(setup.testbed, PACE))
            time.sleep(max(0.0, WARM - recorder.now))
            if len(recorder.flags[-1][1]) != 2:
                raise TestbedError("the transfer has not two subflows")
            failed = recorder.now
            with failing(setup.testbed, cell):
                time.sleep(max(0.0, failed + cell.outage - recorder.now))
            restored = recorder.now
            time.sleep(min(BACK_AT_MOST, max(BACK_AT_LEAST, 1.5 * cell.outage)))
            if not process.running:
                raise TestbedError(f"the transfer ended with {process.returncode}")
    setup.testbed.check_emulation()
    return Watched(recorder.samples, tuple(recorder.flags), failed, restored, DEVICE[PATHS[cell.lost][0]])


def _received_by(origin: LiveNode) -> Callable[[], int]:
    return lambda: origin.interface_bytes("eth0").received


def _written_by(process: Process) -> Callable[[], int]:
    """Return a function that reads how many bytes *process* has written, which is what a downloader has got."""
    io = Path(f"/proc/{process.pid}/io")
    return lambda: int(io.read_text().split("wchar: ")[1].split()[0])


def run(console: Console, seed: int, cells: Sequence[Cell], runs: int, attempts: Attempts) -> Findings:
    """Run each of *cells* *runs* times."""

    def once(setup: Setup, cell: Cell) -> tuple[Cell, Outcome]:
        return cell, outcome(measure(setup, cell))

    measured: list[tuple[Cell, Outcome]] = []
    void: list[str] = []
    for lost, probe in dict.fromkeys((each.lost, each.probe) for each in cells):
        there = [each for each in cells if (each.lost, each.probe) == (lost, probe) for _ in range(runs)]
        rates = (LOST_RATE, OTHER_RATE) if lost == "initial" else (OTHER_RATE, LOST_RATE)
        try:
            with Testbed(paths(two_paths(rates, (RTT, RTT))), seed=seed) as testbed, ExitStack() as stack:
                if probe:
                    # Set it before the proxy starts, because connections inherit the value from the listening socket.
                    stack.enter_context(testbed["proxy"].sysctl(PROBE, str(probe)))
                setup = Setup.built(testbed, POLICY % "[]", up=True)
                for number, cell in enumerate(there, 1):
                    console.print(f"{number} of {len(there)}: {cell}", style="dim", highlight=False)
                    one = attempts.of(partial(once, setup, cell), str(cell), check=testbed.check_emulation)
                    measured += [one] if one else []
        except TestbedError as error:
            # Keep the measurements of other testbeds. The missing runs show that this host was too busy.
            void.append(str(error))
    data = {"outages": [{"cell": str(cell), **asdict(each)} for cell, each in measured]}
    return Findings(
        (table_of(measured), beside_each_other(measured)), data, tuple(void), aims=tuple(aims(measured, cells, runs))
    )
