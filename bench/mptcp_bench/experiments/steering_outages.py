"""Outages under the steering modes: one path fails in mid-transfer, in three ways, and comes back.

Through the real proxy and throttler, 30 Mbit/s on the path that fails, which is the one that the modes by order use
first, 20 on the other, RTT 20 ms. Recorded are what the application has, what each path carries and which subflows the
proxy has made backup, every 0.1 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from mptcp_lab.testbed import LiveNode, Testbed, TestbedError, paths
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.recorder import Recorder, Sample
from mptcp_lab.testbed.services import PROXY_PORT, mptcp_command, start_sink, wait_until
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics

from .findings import Findings
from .steering_cells import NONE, PATHS, POLICY, Cell
from .steering_outages_judging import APPLICATION, Outcome, Watched, aims, outcome, table_of
from .two_paths import DEVICES, FILE_SIZE, DownloadScene, slow_origin, two_paths

LOST, OTHER, PACE, RTT = 30, 20, 12, 20
"""Mbit/s, Mbit/s, Mbit/s, ms."""
FAST, WARM = 4.0, 8.0
"""Seconds at full speed, and before the failure."""
BACK_AT_LEAST, BACK_AT_MOST = 8.0, 20.0
"""Seconds watched afterwards; in between as long as the outage was."""
DEVICE = dict(zip(("ethernet", "wifi"), DEVICES, strict=True))
SILENCE = "table inet fault { chain forward { type filter hook forward priority -10; drop; }; }"
PROBE = "net.ipv4.tcp_rto_max_ms"
"""From Linux 6.15 on."""
NETWORKS = {bytes((10, 77, 1)): "ethernet", bytes((10, 77, 2)): "wifi"}


@contextmanager
def failing(testbed: Testbed, cell: Cell) -> Iterator[None]:
    """Let the path of *cell* fail as it says."""
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
            with router.changed(["nft", SILENCE], ["nft", "delete", "table", "inet", "fault"]):
                yield


class OutageRecorder(Recorder):
    """Samples what each path carries, what the application has and which subflows the proxy made backup."""

    def __init__(self, client: LiveNode, proxy: LiveNode, done: Callable[[], int], sent: bool) -> None:
        super().__init__(client, DEVICES, direction="sent" if sent else "received")
        self._client, self._done = client, done
        self.flags: list[tuple[float, dict[str, bool]]] = []
        with proxy.entered():
            self._diagnostics = SocketDiagnostics((PROXY_PORT,))

    def _take(self) -> None:
        counters = self._client.counters()
        octets = {device: getattr(counters[device], self._direction) for device in self.devices}
        self._samples.append(Sample(self.now, {**octets, APPLICATION: self._done()}))
        found = {
            NETWORKS[each.four_tuple.remote[:3]]: each.made_backup
            for each in self._diagnostics.subflows()
            if each.four_tuple.remote[:3] in NETWORKS
        }
        self.flags.append((self.now, found))


@dataclass(frozen=True, slots=True)
class Scene(DownloadScene):
    """Downloads and uploads under a mode, with an outage."""

    upload: Sequence[str] = ()

    def run(self, cell: Cell) -> Watched:
        """Transfer under a mode, fail, heal, watch."""
        self.load(POLICY % cell.rule)
        names = [] if cell.mode == NONE else ["steered"]
        wait_until(lambda: self.throttler.status()["policy"]["rules"] == names, "the policy is in force")
        with ExitStack() as stack:
            if cell.stale:
                key = "net.mptcp.stale_loss_cnt"
                stack.enter_context(self.testbed["proxy"].sysctl(key, str(cell.stale)))
            process = self.client.popen(self.upload if cell.load == "upload" else self.download)
            stack.callback(process.kill)
            recorder = OutageRecorder(
                self.client, self.testbed["proxy"], self._progress(cell, process), cell.load == "upload"
            )
            with recorder:
                if cell.load == "paced":
                    time.sleep(FAST)
                    stack.enter_context(slow_origin(self.testbed, PACE))
                time.sleep(max(0.0, WARM - recorder.now))
                if len(recorder.flags[-1][1]) != 2:
                    raise TestbedError("the transfer has not two subflows")
                failed = recorder.now
                with failing(self.testbed, cell):
                    time.sleep(max(0.0, failed + cell.outage - recorder.now))
                healed = recorder.now
                time.sleep(min(BACK_AT_MOST, max(BACK_AT_LEAST, 1.5 * cell.outage)))
                if not process.running:
                    raise TestbedError(f"the transfer ended with {process.returncode}")
            return Watched(recorder.samples, tuple(recorder.flags), failed, healed, DEVICE[PATHS[cell.lost][0]])

    def _progress(self, cell: Cell, process: Process) -> Callable[[], int]:
        """Return what says how many bytes the application has."""
        if cell.load == "upload":
            origin = self.testbed["origin"]
            return lambda: origin.interface_bytes("eth0").received
        io = Path(f"/proc/{process.pid}/io")
        return lambda: int(io.read_text().split("wchar: ")[1].split()[0])


def with_upload(scene: Scene) -> Scene:
    """Return *scene* with what an upload takes."""
    body = scene.testbed.directory / "body"
    with open(body, "wb") as file:
        file.truncate(FILE_SIZE)
    proxy = scene.download[scene.download.index("-x") + 1]
    upload = ["curl", "-s", "-m", "100", "-o", "/dev/null", "-x", proxy, "-H", "Expect:", "-T", str(body)]
    url = start_sink(scene.testbed["origin"]).url()
    return Scene(scene.testbed, scene.throttler, scene.policy, scene.download, mptcp_command([*upload, url]))


def run(console: Console, seed: int, cells: Sequence[Cell], runs: int) -> Findings:
    """Run *cells*, each *runs* times."""
    measured: list[tuple[Cell, Outcome]] = []
    void: list[str] = []
    for lost, probe in dict.fromkeys((each.lost, each.probe) for each in cells):
        there = [each for each in cells if (each.lost, each.probe) == (lost, probe) for _ in range(runs)]
        rates = (LOST, OTHER) if lost == "initial" else (OTHER, LOST)
        try:
            with Testbed(paths(two_paths(rates, (RTT, RTT))), seed=seed) as testbed, ExitStack() as stack:
                if probe:
                    # Before the proxy: connections have it from the socket that listens.
                    stack.enter_context(testbed["proxy"].sysctl(PROBE, str(probe)))
                scene = with_upload(Scene.built(testbed, POLICY % "[]"))
                for number, cell in enumerate(there, 1):
                    console.print(f"{number} of {len(there)}: {cell}", style="dim", highlight=False)
                    try:
                        measured.append((cell, outcome(scene.run(cell))))
                    except TestbedError as error:
                        void.append(f"{cell}: {error}")
        except TestbedError as error:
            # What was measured must not be lost; the verdicts say that this host was too busy for it.
            void.append(str(error))
    data = {"outages": [{"cell": str(cell), **asdict(each)} for cell, each in measured]}
    return Findings((table_of(measured),), data, tuple(void), aims=tuple(aims(measured, cells, runs)))
