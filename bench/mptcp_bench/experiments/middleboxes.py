# SPDX-License-Identifier: GPL-2.0-or-later
"""What middleboxes do to Multipath TCP, and whether the throttler's status is true meanwhile.

This repeats Table 1 of Hesmans et al., "Are TCP Extensions Middlebox-proof?" (HotMiddlebox 2013), with today's kernel.
It adds the paper's ALG that changes the length of the payload, options replaced by NOPs, and duplicated and reordered
segments. Each behaviour is tried on the path on which connections open, on the path that joins, and on both. A client
downloads one file through the real proxy. The policy caps the first path while the connection has two. Four times a
second, the kernel's list of subflows is compared with the throttler's status.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from mptcp_lab.emulation.behaviours import BEHAVIOURS, COALESCED_MTU, LONG_ADDRESS, SHORT_ADDRESS
from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.build import lab_of
from mptcp_lab.testbed.features import need
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

from .aims import aims_table
from .attempts import Attempts
from .devices import POLICY_PATHS
from .findings import Findings
from .middleboxes_judging import PAPER, PLACES, Download, Look, judge
from .options import choice
from .tables import new_table

RATE = 20_000_000
DELAY = 5_000
"""Delay of each direction in microseconds."""
SIZE = 8_000_000
TIMEOUT = 40.0
OPTIONS = {"behaviour": f"which of {', '.join(BEHAVIOURS)}; default all"}
QUICK = ("nothing", "remove-data", "sequence")
POLICY = POLICY_PATHS + "rules: [{name: spare-ethernet, paths: [ethernet], throttle: {rate: 5 Mbit/s}}]\n"


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Try the behaviours that *options* choose at all places; *quick* tries only three."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "nfqueue", "gcc", "apache2", "squid", "curl", "mptcpize", "ss")
    behaviours = choice(options, "behaviour", BEHAVIOURS, QUICK if quick else None)
    down = Direction(RATE, DELAY, mtu=COALESCED_MTU)
    emulated = [EmulatedPath(name, down, Direction(RATE, DELAY), middlebox="nothing") for name in PLACES["both"]]
    downloads: list[Download] = []
    attempts = Attempts(console)
    with attempts.keeping("middleboxes", downloads), Testbed(paths(emulated), seed=seed) as testbed:
        host = testbed["proxy"]
        throttler = start_throttler(host, write_throttler_config(host, host.write("policy.yaml", POLICY)))
        proxy, origin = start_proxy(host), start_origin(testbed["origin"], {"file": SIZE})
        for behaviour in behaviours:
            for place in PLACES:
                name = f"{behaviour} on {place}"
                console.print(name, style="dim")
                once = partial(download, testbed, throttler, proxy, origin, behaviour, place)
                one = attempts.of(once, name, check=testbed.check_emulation)
                downloads += [one] if one else []
    # If a download failed each time, that is a failure, and its behaviour gets no verdict. Other behaviours do.
    there = {(each.behaviour, each.place) for each in downloads}
    whole = [behaviour for behaviour in behaviours if {(behaviour, place) for place in PLACES} <= there]
    aims = judge(downloads, whole, PLACES) if whole else []
    data = {"downloads": [as_json(each) for each in downloads]}
    tables = (outcomes(downloads), aims_table("Middleboxes", aims))
    return attempts.judged(Findings(tables, data, aims=tuple(aims)))


def download(
    testbed: Testbed, throttler: Throttler, proxy: Proxy, origin: Origin, behaviour: str, place: str
) -> Download:
    """Download a file with *behaviour* at *place*; compare kernel and status meanwhile. Raises EmulationError."""
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
    testbed.check_emulation()
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


def outcomes(downloads: list[Download]) -> Table:
    """Return the table of each download's outcome, beside the paper's Table 1."""
    columns = ("behaviour", *PLACES, "paper: successful, fallback")
    table = new_table("What became of the connection", columns, left=columns)
    for behaviour in dict.fromkeys(each.behaviour for each in downloads):
        found = {each.place: each for each in downloads if each.behaviour == behaviour}
        words = [
            f"{found[place].outcome}, {found[place].seconds:.1f} s" if place in found else "void" for place in PLACES
        ]
        table.add_row(BEHAVIOURS[behaviour], *words, PAPER.get(behaviour, ""))
    return table


def as_json(seen: Download) -> dict[str, Any]:
    return {
        "behaviour": seen.behaviour,
        "place": seen.place,
        "outcome": seen.outcome,
        "seconds": seen.seconds,
        "fallbacks": seen.fallbacks,
        "joins": seen.joins,
        "carried": dict(seen.carried),
        "changed": dict(seen.changed),
        "status wrong": seen.wrong,
        "capped alone": seen.capped_alone,
        "looks": [[look.time, look.kernel, look.status, look.capped] for look in seen.looks],
    }
