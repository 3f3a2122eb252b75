# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a path or client starves because of a low cap: the rate of each path, also after other clients have vanished.

A download runs under a policy that gives one of its paths a low cap. The experiment shows the rate of each path in the
steady state, as a share of its link or cap. Rates are on the wire, as links and caps count. In the layouts
``vanished-N``, N other downloads share the cap, and then their client is cut off on both paths.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.model import Topology
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.topologies import MBIT, PATH_NETWORKS, SECOND_CLIENT_NETWORKS, with_second_client

from .columns import RUNS, Row, Table, Turn, columns_of, figure
from .parameters import choices, parameter, whole
from .scenario import Scenario
from .setup import Setup
from .two_paths import client_ends, dropping

OTHERS = "others"
"""The node of the other clients."""
MIN_UNCAPPED, MIN_CAPPED = 0.95, 0.97
"""Minimum rate of an uncapped path, as a share of its link, and of a capped path, as a share of its cap."""
IDLE_RATIO = 16
"""A capped path may be idle if the uncapped paths carry at least this multiple of its cap."""
MAX_SHARE = 1.05
"""Maximum rate of any path, as a share of its link or cap. A link with a higher rate was not emulated."""
WARM_UP_SECONDS, MEASURE_SECONDS = 4.0, 8.0
"""Seconds from the start of a download to the measurement, and length of the measurement in seconds."""
VANISH_SECONDS = 2.0
"""Seconds from the vanishing of the other clients to the measurement."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths with their rates and caps in Mbit/s and their RTTs in ms."""

    name: str
    rates: tuple[int, ...]
    caps: tuple[float | None, ...]
    rtts: tuple[int, ...]
    vanishing: int = 0
    """Number of other clients that share the paths and their caps, and are then cut off."""

    def __str__(self) -> str:
        return self.name

    @property
    def paths(self) -> str:
        """The paths' names, each one letter."""
        return "abc"[: len(self.rates)]

    @property
    def addresses(self) -> list[str]:
        """The client's address on each path."""
        return [f"10.77.{network}.2" for network in PATH_NETWORKS[: len(self.rates)]]

    def cap(self, path: str) -> float | None:
        return self.caps[self.paths.index(path)]

    def expected(self, path: str) -> float:
        """Return the rate in Mbit/s that *path* must carry."""
        rate, cap = self.rates[self.paths.index(path)], self.cap(path)
        return rate if cap is None else min(rate, cap)

    def policy(self) -> str:
        """Return the text of the policy with the caps."""
        # With the guard, the caps would be lifted two seconds after the clients vanish.
        lines, rules = ["version: 1", f"guard: {{enabled: {str(not self.vanishing).lower()}}}", "paths:"], ["rules:"]
        for index, (path, cap) in enumerate(zip(self.paths, self.caps, strict=True)):
            others = SECOND_CLIENT_NETWORKS[index : index + 1] if self.vanishing else ()
            networks = ", ".join(f"10.77.{each}.0/24" for each in (PATH_NETWORKS[index], *others))
            lines.append(f"  {path}: {{clients: [{networks}]}}")
            if cap is not None:
                rules.append(f"- {{name: {path}, paths: [{path}], throttle: {{rate: {round(cap * MBIT)} bit/s}}}}")
        return "\n".join([*lines, *rules, ""])

    def topology(self) -> Topology:
        rates = [rate * MBIT for rate in self.rates]
        directions = [Direction(rate, rtt * 500) for rate, rtt in zip(rates, self.rtts, strict=True)]
        found = paths([EmulatedPath(path, each, each) for path, each in zip(self.paths, directions, strict=True)])
        return with_second_client(found, OTHERS, rates) if self.vanishing else found


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("three", (20, 20, 20), (None, 1, None), (10, 40, 60)),
        # DSL, and LTE after its data volume is used up.
        *(Layout(f"low-{cap * 1000:g}k", (50, 20), (None, cap), (20, 60)) for cap in (2, 0.512, 0.128, 0.064)),
        *(Layout(f"vanished-{count}", (50, 20), (5, None), (20, 20), count) for count in (4, 9)),
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
    client, layout, addresses = setup.client, turn.cell, set(turn.cell.addresses)

    def subflows() -> set[str]:
        return set(client_ends(setup.proxy, addresses))

    wait_until(lambda: not subflows(), "the last download's subflows are closed", timeout=30)
    with ExitStack() as stack:
        for _ in range(layout.vanishing):
            stack.enter_context(setup.testbed[OTHERS].running(setup.download, name="other"))
        time.sleep(WARM_UP_SECONDS if layout.vanishing else 0)
        recorder = stack.enter_context(Recorder(client, layout.topology().devices("client"), interval=0.25))
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
        for path, device in zip(layout.paths, layout.topology().devices("client"), strict=True)
    }


def _min_share(row: Row[Layout, PathRate]) -> float:
    """Return the minimum rate of the row's path, as a share of its link or cap."""
    layout, cap = row.cell, row.cell.cap(row.part)
    if cap is None:
        return MIN_UNCAPPED
    others = sum(layout.expected(path) for path in layout.paths if layout.cap(path) is None)
    return 0.0 if others >= IDLE_RATIO * cap else MIN_CAPPED


def _path(row: Row[Layout, PathRate]) -> str:
    """Return a text with the row's path and the link or cap with which its rate is compared."""
    return f"rate of path {row.part} / its {'link' if row.cell.cap(row.part) is None else 'cap'}"


@dataclass(frozen=True, slots=True)
class PathRate:
    """The rate of one path, as a share of its link or cap."""

    share: float = figure("rate / link or cap", aim=_path, digits=3, least=_min_share, most=MAX_SHARE)


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize"),
    cells=lambda chosen: [LAYOUTS[name] for name in chosen.layout],
    parts=lambda layout: layout.paths,
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
