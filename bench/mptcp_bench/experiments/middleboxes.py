# SPDX-License-Identifier: GPL-2.0-or-later
"""What middleboxes do to Multipath TCP, and whether the throttler's status remains correct.

This repeats Table 1 of Hesmans et al., "Are TCP Extensions Middlebox-proof?" (HotMiddlebox 2013), with today's kernel
and more behaviours. Each behaviour is measured on the path on which connections open, on the path that joins, and on
both paths. A client downloads one file through the real proxy. The policy caps the first path while the connection has
two paths. Four times a second, the kernel's list of subflows is compared with the throttler's status.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from mptcp_lab.emulation.model import BEHAVIOURS, COALESCED_MTU, LONG_ADDRESS, SHORT_ADDRESS, Direction, EmulatedPath
from mptcp_lab.testbed import Testbed, paths, services
from mptcp_lab.testbed.build import lab_of
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.services import Throttler, wait_until
from mptcp_lab.testbed.transfer import observe

from .columns import Column, Row, Table, Turn
from .devices import POLICY_PATHS
from .parameters import choices
from .scenario import Scenario
from .setup import ProxySite

RATE = 20_000_000
"""Rate of each direction in bits/s."""
DELAY = 5_000
"""Delay of each direction in microseconds."""
FILE_BYTES = 8_000_000
TIMEOUT = 40.0
"""Maximum seconds of a download."""
CHECK_INTERVAL = 0.25
"""Minimum time between two comparisons of kernel and status."""
POLICY = POLICY_PATHS + "rules: [{name: spare-ethernet, paths: [ethernet], throttle: {rate: 5 Mbit/s}}]\n"
PLACES = {"ethernet": ("ethernet",), "wifi": ("wifi",), "both": ("ethernet", "wifi")}
"""Places of the middlebox, and their paths. Connections open on Ethernet; the subflow on Wi-Fi joins."""
REQUEST_BEHAVIOURS = ("alg-longer", "alg-shorter")
"""Behaviours that change only the request, which contains an address and uses the path on which connections open."""
SURVIVED = ("nothing", "nat", "sequence", "split-both", "split-first", "duplicate", "reorder")
"""Behaviours that MPTCP was designed to survive (RFC 8684, 3.7): both subflows carry data."""
STUCK_IN_KERNEL = ("split-second-later", "coalesce")
"""Behaviours with which downloads stop, even without a throttler (Linux 6.18): data without a mapping arrive after data
with a mapping, when MPTCP may no longer fall back. The paper's kernel also failed with the first behaviour."""
PAPER = {
    "nat": "Y, N", "remove-syn": "Y, Y", "remove-data": "Y, Y", "sequence": "Y, N", "split-both": "Y, N",
    "split-first": "Y, N", "split-second": "Y, Y", "split-second-later": "N, -", "coalesce": "Y, Y",
}  # fmt: skip
"""Table 1 of Hesmans et al., "successful, fallback": the results of Linux MPTCP 0.87 in 2013."""
MAX_WRONG_SECONDS = 2.0
"""Maximum time for which the status may differ from the kernel."""


class StatusCheck(NamedTuple):
    """The subflows of the proxy's port at one moment of a download, according to kernel and status."""

    time: float
    """Seconds since the download began."""
    kernel: int
    """Number of established MPTCP subflows in the proxy's kernel."""
    status: int
    """Number of subflows that the status lists as active."""
    capped: int
    """Number of these subflows that have a cap."""


@dataclass(frozen=True, slots=True)
class Download:
    """One download through a middlebox."""

    whole: bool
    """Whether the download ended and the received bytes equal the file."""
    seconds: float
    fallbacks: int
    """Number of connections that became plain TCP, from the kernels' counters of client and proxy together."""
    carried: Mapping[str, int]
    """Number of bytes that the client received, by path."""
    checks: Sequence[StatusCheck]
    changed: int
    """Number of packets that the middlebox changed."""

    @property
    def outcome(self) -> str:
        """Result for the connection, in words."""
        if not self.whole:
            return "failed"
        if max((each.kernel for each in self.checks), default=0) == 0:
            return "plain TCP"
        if self.fallbacks:
            return "fell back"
        # Two subflows are used if each path carried more than 5 % of the bytes.
        uses_both = min(self.carried.values(), default=0) > 0.05 * max(1, sum(self.carried.values()))
        return "two subflows" if uses_both else "one subflow"

    @property
    def seconds_wrong(self) -> float:
        """Seconds in which status and kernel showed different numbers of subflows."""
        return self._seconds(lambda each: each.status != each.kernel)

    @property
    def seconds_only_capped(self) -> float:
        """Seconds in which a connection's only subflow had a cap."""
        return self._seconds(lambda each: each.capped > 0 and each.kernel < 2)

    def _seconds(self, applies: Callable[[StatusCheck], bool]) -> float:
        return sum(after.time - before.time for before, after in pairwise(self.checks) if applies(before))


@dataclass(frozen=True, slots=True)
class Settings:
    behaviour: tuple[str, ...] = choices(
        "behaviours of the middlebox", BEHAVIOURS, quick="nothing,remove-data,sequence"
    )


@dataclass(frozen=True, slots=True)
class Bed(ProxySite):
    """A testbed with all services and with a middlebox on each path, which at first changes no packets."""

    throttler: Throttler


@contextmanager
def middlebox_bed(chosen: Settings, behaviours: Sequence[str], seed: int) -> Iterator[Bed]:
    down = Direction(RATE, DELAY, mtu=COALESCED_MTU)
    emulated = [EmulatedPath(name, down, Direction(RATE, DELAY), middlebox="nothing") for name in PLACES["both"]]
    with Testbed(paths(emulated), seed=seed) as testbed:
        host = testbed["proxy"]
        config = services.write_throttler_config(host, host.write("policy.yaml", POLICY))
        throttler, proxy = services.start_throttler(host, config), services.start_proxy(host)
        yield Bed(testbed, proxy, services.start_origin(testbed["origin"], {"file": FILE_BYTES}), throttler)


def download(bed: Bed, turn: Turn[str]) -> Download:
    """Download a file with a behaviour at a place, while kernel and status are compared."""
    testbed, throttler, behaviour, place = bed.testbed, bed.throttler, turn.cell, PLACES[turn.variant]
    lab, change = lab_of(testbed), testbed.emulation.change_middlebox
    ended = "the last connection has ended"
    wait_until(lambda: subflows(lab) == 0 and active_and_capped(throttler) == (0, 0), ended, timeout=90)
    for path in PLACES["both"]:
        change(path, behaviour if path in place else "nothing")
    checks: list[StatusCheck] = []

    def check(elapsed: float) -> None:
        if checks and elapsed < checks[-1].time + CHECK_INTERVAL:
            return
        before, (active, capped), after = subflows(lab), active_and_capped(throttler), subflows(lab)
        # If the kernel's list changes during the check, the status agrees if it equals the old or the new list.
        checks.append(StatusCheck(elapsed, active if active in (before, after) else after, active, capped))

    address = LONG_ADDRESS if behaviour == "alg-shorter" else SHORT_ADDRESS
    header = f"X-Port: PORT {address}7,8"
    argv = ["curl", "-s", "-m", str(round(TIMEOUT)), "-H", header, "-x", bed.proxy.url(), bed.origin.url("file")]
    try:
        observation = observe(lab, services.mptcp_command(argv), timeout=TIMEOUT + 5, watch=check)
    finally:
        # Do this also after a failure: the next download waits until the connection has ended over unchanged paths.
        changed = {path: change(path, "nothing") for path in PLACES["both"]}
    whole = observation.status == 0 and observation.sha256 == bed.origin.digests["file"]
    first, last = observation.samples[0].octets, observation.samples[-1].octets
    carried = {path: last[path] - first[path] for path in PLACES["both"]}
    changes = sum(changed[path] for path in place)
    return Download(whole, observation.ended, observation.protocol.fallbacks, carried, tuple(checks), changes)


def subflows(lab: Lab) -> int:
    """Return the number of established MPTCP subflows on the proxy's port, according to the proxy's kernel."""
    sockets = lab.proxy.run(["ss", "-HtniO", "state", "established", "( sport = :3128 )"])
    return sum("tcp-ulp-mptcp" in line for line in sockets.stdout.splitlines())


def active_and_capped(throttler: Throttler) -> tuple[int, int]:
    """Return the number of subflows in the throttler's status, and how many of them have a cap."""
    active = [subflow for connection in throttler.status()["connections"] for subflow in connection["subflows"]]
    return len(active), sum(subflow["rate"] is not None for subflow in active)


BehaviourRow = Row[str, Download]


def at_all_places(
    value: Callable[[Download], float], places: Iterable[str] = PLACES
) -> Callable[[BehaviourRow], list[float]]:
    """Return a function that returns *value* of the downloads at *places*; NaN for downloads without checks."""
    return lambda row: [value(each) if each.checks else math.nan for place in places for each in row.other_runs(place)]


def _changed(row: BehaviourRow) -> list[float]:
    """Return the number of packets that the middlebox changed at each place at which it must change some."""
    places = [place for place in PLACES if row.cell not in REQUEST_BEHAVIOURS or "ethernet" in PLACES[place]]
    return at_all_places(lambda each: each.changed, places)(row)


def _place_column(name: str) -> Column[str, Download]:
    """Return the column with the result for the connection with the middlebox at one place."""

    def text(row: BehaviourRow) -> str:
        return "".join(f"{each.outcome}, {each.seconds:.1f} s" for each in row.other_runs(name)) or "not measured"

    return Column(name, lambda row: [], text=text)


TABLE: Table[str, Download] = Table(
    "What became of the connection",
    (
        *map(_place_column, PLACES),
        Column("paper: successful, fallback", lambda row: [], text=lambda row: PAPER.get(row.cell, "")),
        Column("", at_all_places(lambda each: each.whole), aim="share of complete downloads",
               least=lambda row: None if row.cell in STUCK_IN_KERNEL else 1),
        Column("", at_all_places(lambda each: each.seconds_wrong), "most", "time with a wrong status", " s",
               most=MAX_WRONG_SECONDS),
        Column("", at_all_places(lambda each: each.seconds_only_capped), "most",
               "time with a cap on the only subflow", " s", most=MAX_WRONG_SECONDS),
        Column("", _changed, "least", "packets that the middlebox changed, minimum of the places", least=1,
               judged=lambda row: row.cell != "nothing"),
        Column("", at_all_places(lambda each: each.outcome == "two subflows"),
               aim="share of downloads over both subflows", least=1, judged=lambda row: row.cell in SURVIVED),
    ),
    (("behaviour", lambda row: BEHAVIOURS[row.cell]),),
    # A row shows a behaviour at all places.
    of=lambda row: row.variant == next(iter(PLACES)),
)  # fmt: skip
SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nfqueue", "gcc", "apache2", "squid", "curl", "mptcpize", "ss"),
    cells=lambda chosen: chosen.behaviour,
    variants=lambda chosen, behaviour: tuple(PLACES),
    bed=middlebox_bed,
    measure=download,
    tables=(TABLE,),
    shared_bed=lambda behaviour: "middleboxes",
    name=lambda row: row.cell,
)
