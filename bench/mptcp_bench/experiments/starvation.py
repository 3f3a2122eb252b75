# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a path or client starves because of a low cap: the rate of each path, also after other clients have vanished.

A download runs under a policy that gives one of its two paths a low cap. The experiment shows the rate of each path in
the steady state, as a share of its link or cap. Rates are on the wire, as links and caps count. In the layouts
``vanished-N``, N other downloads share the cap, and then their client is cut off on both paths.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.model import Topology
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.topologies import MBIT, with_second_client

from .columns import RUNS, Row, Table, Turn, columns_of, figure
from .devices import DEVICES
from .parameters import choices, parameter, whole
from .scenario import Scenario
from .setup import Setup
from .two_paths import client_ends, dropping, two_paths

OTHERS = "others"
"""The node of the other clients."""
RATES = {"a": 50, "b": 20}
"""Rates of the paths in Mbit/s, by name."""
POLICY = """\
version: 1
guard: {{enabled: {guard}}}
paths:
  a: {{clients: [10.77.1.0/24, 10.77.3.0/24]}}
  b: {{clients: [10.77.2.0/24, 10.77.4.0/24]}}
rules: [{{name: cap, paths: [{path}], throttle: {{rate: {rate} bit/s}}}}]
"""
"""A policy with one cap. The second network of each path belongs to the other clients."""
MIN_UNCAPPED, MIN_CAPPED = 0.95, 0.97
"""Minimum rate of the uncapped path, as a share of its link, and of the capped path, as a share of its cap."""
IDLE_RATIO = 16
"""The capped path may be idle if the link of the other path has at least this multiple of the cap."""
MAX_SHARE = 1.05
"""Maximum rate of a path, as a share of its link or cap."""
WARM_UP_SECONDS, MEASURE_SECONDS = 4.0, 8.0
"""Seconds from the start of a download to the measurement, and length of the measurement in seconds."""
VANISH_SECONDS = 2.0
"""Seconds from the moment at which the other clients vanish to the measurement."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Two paths with their RTTs in ms, one of which has a cap in Mbit/s."""

    name: str
    capped: str
    cap: float
    rtts: tuple[int, int]
    vanishing: int = 0
    """Number of other clients that share the paths and their caps, and are then cut off."""

    def __str__(self) -> str:
        return self.name

    def expected(self, path: str) -> float:
        """Return the rate in Mbit/s that *path* must carry."""
        return self.cap if path == self.capped else RATES[path]

    def policy(self) -> str:
        # With the guard, the cap would be lifted two seconds after the clients vanish.
        guard = "false" if self.vanishing else "true"
        return POLICY.format(guard=guard, path=self.capped, rate=round(self.cap * MBIT))

    def topology(self) -> Topology:
        found = paths(two_paths(list(RATES.values()), self.rtts))
        rates = [rate * MBIT for rate in RATES.values()]
        return with_second_client(found, OTHERS, rates) if self.vanishing else found


LAYOUTS = {
    layout.name: layout
    for layout in (
        # DSL, and LTE after its data volume is used up.
        *(Layout(f"low-{cap * 1000:g}k", "b", cap, (20, 60)) for cap in (2, 0.512, 0.128, 0.064)),
        *(Layout(f"vanished-{count}", "a", 5, (20, 20), count) for count in (4, 9)),
    )
}


@dataclass(frozen=True, slots=True)
class Settings:
    layout: tuple[str, ...] = choices("layouts of the paths", LAYOUTS)
    runs: int = parameter("number of runs per layout", "3", whole(), quick="1")


@contextmanager
def bed(chosen: Settings, cells: Sequence[Layout], seed: int) -> Iterator[Setup]:
    with Testbed(cells[0].topology(), seed=seed) as testbed:
        yield Setup.start(testbed, cells[0].policy(), control="bbr")


def measure(setup: Setup, turn: Turn[Layout]) -> Mapping[str, PathRate]:
    """Run one download. Return each path's rate by its name. Raises TestbedError if a subflow is missing."""
    client, layout = setup.client, turn.cell
    addresses = {client.address(device) for device in DEVICES}

    def subflows() -> set[str]:
        return set(client_ends(setup.proxy, addresses))

    wait_until(lambda: not subflows(), "the last download's subflows are closed", timeout=30)
    with ExitStack() as stack:
        for _ in range(layout.vanishing):
            stack.enter_context(setup.testbed[OTHERS].running(setup.download, name="other"))
        time.sleep(WARM_UP_SECONDS if layout.vanishing else 0)
        recorder = stack.enter_context(Recorder(client, DEVICES, interval=0.25))
        stack.enter_context(client.running(setup.download))
        recorder.wait(WARM_UP_SECONDS)
        if missing := addresses - subflows():
            raise TestbedError(f"{layout}: there is no subflow from {', '.join(missing)}")
        silent = f'iifname "to-{OTHERS}*" drop; oifname "to-{OTHERS}*" drop'
        with dropping(setup.testbed["core"], silent) if layout.vanishing else nullcontext():
            begin = recorder.now + (VANISH_SECONDS if layout.vanishing else 0)
            recorder.wait(begin + MEASURE_SECONDS + 0.5)
    return judge(recorder.samples, layout, begin)


def judge(samples: Sequence[Sample], layout: Layout, begin: float) -> dict[str, PathRate]:
    """Return the rate of each path from *begin* on. Raises ValueError if there are too few samples."""
    return {
        path: PathRate(mean_rate(samples, device, begin, begin + MEASURE_SECONDS) / MBIT / layout.expected(path))
        for path, device in zip(RATES, DEVICES, strict=True)
    }


def _min_share(row: Row[Layout, PathRate]) -> float:
    """Return the minimum rate of the row's path, as a share of its link or cap."""
    layout = row.cell
    if row.part != layout.capped:
        return MIN_UNCAPPED
    [other] = (rate for path, rate in RATES.items() if path != layout.capped)
    return 0.0 if other >= IDLE_RATIO * layout.cap else MIN_CAPPED


def _path(row: Row[Layout, PathRate]) -> str:
    """Return the name of the row's aim: its path, and whether the rate is compared with a link or a cap."""
    return f"rate of path {row.part} / its {'cap' if row.part == row.cell.capped else 'link'}"


@dataclass(frozen=True, slots=True)
class PathRate:
    """The rate of one path, as a share of its link or cap."""

    share: float = figure("rate / link or cap", aim=_path, digits=3, least=_min_share, most=MAX_SHARE)


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize"),
    cells=lambda chosen: [LAYOUTS[name] for name in chosen.layout],
    parts=lambda layout: tuple(RATES),
    bed=bed,
    measure=measure,
    tables=(
        Table(
            "Paths while one has a low cap",
            (RUNS, *columns_of(PathRate)),
            (("layout", lambda row: str(row.cell)), ("path", _path)),
        ),
    ),
)
