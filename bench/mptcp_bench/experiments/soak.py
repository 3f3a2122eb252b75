# SPDX-License-Identifier: GPL-2.0-or-later
"""An hour, or another chosen time, of tunnels that come and go under a cap: nothing grows, no subflow is missed.

The crowd of the experiment ``scale`` holds tunnels with two subflows and replaces some of them every second. The
subflows that the throttler knows are compared with the kernel's list of subflows, and its caps with the kernel's
entries. Memory, descriptors, classes, entries and BPF maps of the throttler and Squid are recorded over time.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from mptcp_common.units import parse_rate
from mptcp_lab.agent.processes import descendants
from mptcp_lab.agent.processors import tree_seconds
from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.services import Throttler, start_throttler
from mptcp_lab.testbed.system_state import State, differences
from mptcp_lab.testbed.topologies import ETHERNET_RATE, SECOND_CLIENT_NETWORKS, WIFI_RATE

from .aims import aims_table
from .findings import Findings
from .options import count, positive
from .scale_crowd import TRICKLE, Crowd, two_subflows, with_crowd
from .scale_policy import FULL, settings_file
from .soak_judging import CAP, CHECKED, EXAMPLES, ProcessSize, Reading, Soak, judge, misplaced

SAMPLES = 120
LEAST_INTERVAL = 5.0
"""Least seconds between two samples."""
SHORTEST = 3 * LEAST_INTERVAL / 60
"""Minutes that the experiment takes at least. Fewer than three samples cannot show growth."""
OPTIONS = {
    "minutes": f"that it takes, more than {SHORTEST:g}, default 60",
    "n": "tunnels held, default 1000",
    "churn": "tunnels replaced a second, default 50",
    "trickle": f"bytes a second that each receives, default {TRICKLE}; 0: none",
    "squid": "0: connections end at a listener in Squid's place, with no origin behind it and no trickle; default 1",
}
SETTLED = 1.0
"""If a connection has existed for these seconds, the throttler must know it and have set its entries."""
CLOSING = 10
"""Seconds that a closed tunnel needs to end everywhere."""
STOPPED = 60.0
"""Seconds after SIGTERM at which the throttler is killed if it still runs."""
CAPPED = f"10.77.{SECOND_CLIENT_NETWORKS[0]}."
"""Prefix of the addresses on the capped path."""
CROWD = tuple(f"10.77.{network}." for network in SECOND_CLIENT_NETWORKS)
_ENTRY = re.compile(r"^add \S+ ([\d.]+),tcp:(\d+),\S+ .*skbprio (\S+)", re.MULTILINE)
_CLASS = re.compile(r"^class htb (\S+) .* ceil (\d+[KMG]?bit)\b", re.MULTILINE)
_MEMLOCK = re.compile(r"^memlock:\s*(\d+)", re.MULTILINE)


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Hold tunnels for the time in *options*. *seed* draws the connections whose caps are checked."""
    seconds = 60 * positive(options, "minutes", 1 if quick else 60, above=SHORTEST)
    tunnels = count(options, "n", 50 if quick else 1000)
    churn = count(options, "churn", 5 if quick else 50, least=0)
    trickle = count(options, "trickle", TRICKLE, least=0)
    squid = count(options, "squid", 1, least=0)
    need("root", "mptcp", "mptcp-pm", "htb", "tbf", "ipset", "iptables-legacy", "squid", "ss", "gcc")
    with Testbed(with_crowd(paths((ETHERNET_RATE, WIFI_RATE)))) as testbed:
        rate = max(300, 3 * churn)
        crowd = (
            Crowd.built(testbed, tunnels + CLOSING * churn, rate=rate, trickle=trickle)
            if squid
            else Crowd.without_squid(testbed, rate)
        )
        before = crowd.state()
        policy = testbed["proxy"].write("policy.yaml", FULL.text())
        throttler = start_throttler(testbed["proxy"], settings_file(testbed, policy))
        interval = max(seconds / SAMPLES, LEAST_INTERVAL)
        took = crowd.hold(tunnels)
        console.print(f"{tunnels:,} tunnels stand after {took:.1f} s", style="dim", highlight=False)
        ended, used, begin = crowd.client.read().ended, tree_seconds(throttler.process.pid), time.monotonic()
        crowd.churn(churn)
        samples = tuple(_samples(testbed, crowd, throttler, seconds, interval, Random(seed), console))
        cores = (tree_seconds(throttler.process.pid) - used) / (time.monotonic() - begin)
        crowd.churn(0)
        ended = crowd.client.read().ended - ended
        soak = Soak(
            seconds, interval, tunnels, churn, samples, ended, cores, _stopped(testbed, crowd, throttler, before)
        )
    aims = judge(soak)
    return Findings((aims_table("Soak", aims),), asdict(soak), aims=tuple(aims))


def _samples(
    testbed: Testbed,
    crowd: Crowd,
    throttler: Throttler,
    seconds: float,
    interval: float,
    draw: Random,
    console: Console,
) -> Iterator[Reading]:
    begin = time.monotonic()
    due = interval
    while due <= seconds:
        time.sleep(max(0.0, begin + due - time.monotonic()))
        try:
            yield _sample(testbed, crowd, throttler, time.monotonic() - begin, draw)
        except (TestbedError, ValueError) as error:
            console.print(f"{due:.0f} s: {error}", style="dim", highlight=False)
            if not throttler.process.running:
                return
        due += interval


def _sample(testbed: Testbed, crowd: Crowd, throttler: Throttler, now: float, draw: Random) -> Reading:
    """Take a sample. Raises TestbedError or ValueError if the throttler does not answer."""
    proxy = testbed["proxy"]
    before = two_subflows(crowd.listed())
    time.sleep(SETTLED)
    status = throttler.status()
    saved = proxy.run(["ipset", "save"], timeout=60).stdout
    listed = crowd.listed()
    after, somewhere = two_subflows(listed), before | set(re.findall(r"/([0-9a-f]+)\(id:", listed))
    classes = proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout
    cap = ceilings(classes)
    subflows = shown(status)
    entries = {f"{address}:{port}": classid for address, port, classid in _ENTRY.findall(saved)}
    there = before & after & subflows.keys()
    checked = set(draw.sample(sorted(there), min(CHECKED, len(there))))
    counters = crowd.client.read()
    squid = crowd.proxy.process.pid
    wrong = misplaced(checked, subflows, entries, "capped", next(iter(cap), ""))
    return Reading(
        time=now,
        standing=counters.standing,
        opened=counters.opened,
        daemon=process(throttler.process.pid),
        proxy=process(squid, *descendants(squid)),
        bpf=bpf_bytes(throttler.process.pid),
        entries=len(entries),
        classes=len(classes.splitlines()),
        shown=len(status["connections"]),
        missed=len((before & after) - subflows.keys()),
        invented=len(subflows.keys() - somewhere),
        checked=len(checked),
        wrong=len(wrong),
        examples=tuple(wrong[:EXAMPLES]),
        ceil=next(iter(cap.values()), math.nan),
    )


def ceilings(classes: str) -> dict[str, float]:
    """Return the classes in tc(8)'s output that may be the crowd's cap, with their ceilings in bits/s.

    That class has less than the cap while it repays an overshoot. The others have more, or 5 Mbit/s.
    """
    found = {name: float(parse_rate(rate)) for name, rate in _CLASS.findall(classes)}
    return {name: ceil for name, ceil in found.items() if 0.1 * CAP <= ceil <= CAP}


def shown(status: Mapping[str, Any]) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Return, by token, the crowd's connections with two subflows: remote ends, each ``capped`` or ``other``."""
    found = {}
    for connection in status["connections"]:
        remotes = [each["remote"] for each in connection["subflows"]]
        if len(remotes) >= 2 and remotes[0].startswith(CROWD):
            # The key is the token as ss(8) prints it.
            found[f"{int(connection['token'], 16):04x}"] = [
                (remote, "capped" if remote.startswith(CAPPED) else "other") for remote in remotes
            ]
    return found


def process(*pids: int) -> ProcessSize:
    """Return the sum over the processes *pids* that still run; NaN if the first one has ended."""
    resident = descriptors = 0
    for number, pid in enumerate(pids):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            if number == 0:
                return ProcessSize()
            continue
        resident += pages * os.sysconf("SC_PAGESIZE")
    return ProcessSize(resident / 1e6, descriptors)


def bpf_bytes(pid: int) -> float:
    """Return the bytes of all BPF maps and programs that process *pid* holds, by /proc/PID/fdinfo; proc(5)."""
    total = 0
    try:
        found = os.listdir(f"/proc/{pid}/fdinfo")
    except OSError:
        return math.nan
    for number in found:
        # The process may have closed the descriptor meanwhile.
        with suppress(OSError):
            total += sum(map(int, _MEMLOCK.findall(Path(f"/proc/{pid}/fdinfo/{number}").read_text())))
    return total


def _stopped(testbed: Testbed, crowd: Crowd, throttler: Throttler, before: State) -> tuple[str, ...]:
    """End the throttler. Return what it has left behind."""
    code = throttler.process.stop(STOPPED)
    found = tuple(differences(before, crowd.state()))
    return found if code == 0 else (*found, f"exit code {code}")
