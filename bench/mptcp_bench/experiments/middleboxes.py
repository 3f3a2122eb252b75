# SPDX-License-Identifier: GPL-2.0-or-later
"""What middleboxes do to Multipath TCP, and whether the throttler's status is true meanwhile.

This repeats Table 1 of Hesmans et al., "Are TCP Extensions Middlebox-proof?" (HotMiddlebox 2013), with today's kernel.
It adds the paper's ALG that changes the length of the payload, options replaced by NOPs, and duplicated and reordered
segments. Each behaviour is tried on the path on which connections open, on the path that joins, and on both. A client
downloads one file through the real proxy. The policy caps the first path while the connection has two. Four times a
second, the kernel's list of subflows is compared with the throttler's status.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mptcp_lab.emulation.behaviours import BEHAVIOURS, COALESCED_MTU, LONG_ADDRESS, SHORT_ADDRESS
from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.build import lab_of
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.services import (
    Origin,
    Proxy,
    Throttler,
    mptcp_command,
    start_origin,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)
from mptcp_lab.testbed.topologies import paths
from mptcp_lab.testbed.transfer import observe

from .columns import Turn
from .devices import POLICY_PATHS
from .middleboxes_judging import PLACES, TABLE, Download, Look
from .parameters import parameter, words
from .scenario import Scenario

RATE = 20_000_000
DELAY = 5_000
"""Delay of each direction in microseconds."""
SIZE = 8_000_000
TIMEOUT = 40.0
POLICY = POLICY_PATHS + "rules: [{name: spare-ethernet, paths: [ethernet], throttle: {rate: 5 Mbit/s}}]\n"


@dataclass(frozen=True, slots=True)
class Settings:
    behaviour: tuple[str, ...] = parameter(
        f"which of {', '.join(BEHAVIOURS)}",
        ",".join(BEHAVIOURS),
        words(*BEHAVIOURS),
        quick="nothing,remove-data,sequence",
    )


@dataclass(frozen=True, slots=True)
class Bed:
    """A testbed with a middlebox on each path, which at first changes nothing, and all services."""

    testbed: Testbed
    throttler: Throttler
    proxy: Proxy
    origin: Origin

    def check_emulation(self) -> None:
        self.testbed.check_emulation()


@contextmanager
def built(chosen: Settings, behaviours: Sequence[str], seed: int) -> Iterator[Bed]:
    down = Direction(RATE, DELAY, mtu=COALESCED_MTU)
    emulated = [EmulatedPath(name, down, Direction(RATE, DELAY), middlebox="nothing") for name in PLACES["both"]]
    with Testbed(paths(emulated), seed=seed) as testbed:
        host = testbed["proxy"]
        throttler = start_throttler(host, write_throttler_config(host, host.write("policy.yaml", POLICY)))
        yield Bed(testbed, throttler, start_proxy(host), start_origin(testbed["origin"], {"file": SIZE}))


def download(bed: Bed, turn: Turn[str]) -> Download:
    """Download a file with a behaviour at a place; compare kernel and status meanwhile. Raises EmulationError."""
    testbed, throttler, proxy, origin = bed.testbed, bed.throttler, bed.proxy, bed.origin
    behaviour, place = turn.cell, turn.variant
    lab, change = lab_of(testbed), testbed.emulation.change_middlebox
    wait_until(
        lambda: subflows(lab) == 0 and active_and_capped(throttler) == (0, 0), "the last connection is gone", timeout=90
    )
    for path in PLACES["both"]:
        change(path, behaviour if path in PLACES[place] else "nothing")
    looks: list[Look] = []

    def look(elapsed: float) -> None:
        if looks and elapsed < looks[-1].time + 0.25:
            return
        before, status, after = subflows(lab), active_and_capped(throttler), subflows(lab)
        # If the kernel's list changes during the look, the status agrees if it equals either version.
        looks.append(Look(elapsed, status[0] if status[0] in (before, after) else after, *status))

    address = LONG_ADDRESS if behaviour == "alg-shorter" else SHORT_ADDRESS
    header = f"X-Port: PORT {address}7,8"
    argv = ["curl", "-s", "-m", str(round(TIMEOUT)), "-H", header, "-x", proxy.url(), origin.url("file")]
    try:
        seen = observe(lab, mptcp_command(argv), timeout=TIMEOUT + 5, watch=look)
    finally:
        # Also after a failure: behind a middlebox the connection may never end, and the next download waits for that.
        changed = {path: change(path, "nothing") for path in PLACES["both"]}
    whole = seen.status == 0 and seen.octets == SIZE and seen.sha256 == origin.digests["file"]
    carried = {name: seen.samples[-1].octets[name] - seen.samples[0].octets[name] for name in PLACES["both"]}
    protocol = seen.protocol
    return Download(
        behaviour, place, whole, seen.ended, protocol.fallbacks, protocol.joins, carried, tuple(looks), changed
    )


def subflows(lab: Lab) -> int:
    """Return the number of established MPTCP subflows on the proxy's port, by the proxy's kernel."""
    shown = lab.proxy.run(["ss", "-HtniO", "state", "established", "( sport = :3128 )"])
    return sum("tcp-ulp-mptcp" in line for line in shown.stdout.splitlines())


def active_and_capped(throttler: Throttler) -> tuple[int, int]:
    """Return the number of subflows in the throttler's status, and how many of them have a cap."""
    active = [subflow for connection in throttler.status()["connections"] for subflow in connection["subflows"]]
    return len(active), sum(subflow["rate"] is not None for subflow in active)


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nfqueue", "gcc", "apache2", "squid", "curl", "mptcpize", "ss"),
    cells=lambda chosen: chosen.behaviour,
    variants=lambda chosen, behaviour: tuple(PLACES),
    runs=lambda chosen, behaviour, place: 1,
    bed=built,
    measure=download,
    tables=(TABLE,),
    together=lambda behaviour: "middleboxes",
    # A download that failed each time is a failure of its own.
    counted=lambda row: "",
    name=lambda row: row.cell,
)
