"""Goodput over both paths through the proxy.

- without a policy, HTTP GET and CONNECT, IPv4 and IPv6: at least 95 % of what both links can carry of payload;
- with conf/policy.yaml: the capped path within 5 % of its rate, the other at least 95 % of its link's;
- with the policy in force, untouched: a connection of one subflow, and a client that speaks plain TCP.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import product, starmap
from typing import Any

from rich.console import Console

from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError, lab_of
from mptcp_lab.testbed.recorder import mean_rate
from mptcp_lab.testbed.services import (
    Origin,
    Proxy,
    mptcp_command,
    start_origin,
    start_proxy,
    start_throttler,
    write_throttler_config,
)
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE
from mptcp_lab.testbed.transfer import Observation, Protocol, download

from ..shipped import POLICY, ethernet_cap
from ..statistics import median
from . import Result
from .scene import Aim, aims_table, need, payload_share

SETTLE = 5.0
"""Seconds from the start of a capped download to its steady state."""
FILES = {"both": 120_000_000, "capped": 60_000_000, "ethernet": 75_000_000}
"""Bytes; each download takes 6 to 15 seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of download."""

    name: str
    file: str
    family: int = 4
    connect: bool = False
    policy: bool = False
    multipath: bool = True
    subflows: int = 2


def _two_subflows(policy: bool, connect: bool, family: int) -> Case:
    name = f"{'CONNECT' if connect else 'GET'}, IPv{family}"
    file = "capped" if policy else "both"
    return Case(f"policy, {name}" if policy else name, file, family, connect, policy)


CASES = (
    *starmap(_two_subflows, product((False, True), (False, True), (4, 6))),
    Case("policy, one subflow", "ethernet", policy=True, subflows=1),
    Case("policy, plain TCP client", "ethernet", policy=True, multipath=False),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One download: payload rate over the whole of it, and each path's rate on the wire once it was steady."""

    case: Case
    goodput: float
    steady: dict[str, float]
    digest_ok: bool
    protocol: Protocol


def run(console: Console, seed: int, quick: bool) -> Result:
    """Measure every case, in an order drawn anew for each round."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "curl", "mptcpize")
    rounds = 1 if quick else 3
    cap = ethernet_cap()
    draw = random.Random(seed)
    measured: list[Measurement] = []
    with Testbed(TWO_PATHS) as testbed:
        origin = start_origin(testbed["origin"], FILES)
        proxy = start_proxy(testbed["proxy"])
        for number in range(rounds):
            cases = draw.sample(CASES, len(CASES))
            # One start and stop of the throttler for each round, and both orders of with and without.
            for policy in (number % 2 == 1, number % 2 == 0):
                with throttled(testbed) if policy else ExitStack():
                    for case in cases:
                        if case.policy is policy:
                            measured.append(measure(testbed, origin, proxy, case))
                            show(console, number + 1, measured[-1])
    aims = [aim for case in CASES for aim in judge(case, [m for m in measured if m.case == case], cap)]
    data: dict[str, Any] = {
        "rounds": rounds,
        "measurements": [asdict(m) for m in measured],
    }
    return Result((aims_table(f"Goodput, median of {rounds}", aims),), data, aims=tuple(aims))


@contextmanager
def throttled(testbed: Testbed) -> Iterator[None]:
    """Have the throttler run with conf/policy.yaml."""
    throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], POLICY))
    try:
        yield
    finally:
        throttler.process.stop()


@contextmanager
def one_subflow(testbed: Testbed) -> Iterator[None]:
    """Let the client join no second subflow."""
    limits = ["ip", "mptcp", "limits", "set", "add_addr_accepted", "8", "subflow"]
    with testbed["client"].changed([*limits, "0"], [*limits, "8"]):
        yield


def measure(testbed: Testbed, origin: Origin, proxy: Proxy, case: Case) -> Measurement:
    """Run one download."""
    url = origin.url(case.file, family=case.family, port=443 if case.connect else 80)
    argv = ["curl", "-sSf", "-x", proxy.url(case.family), *(["--proxytunnel"] if case.connect else []), url]
    if case.multipath:
        argv = mptcp_command(argv)
    with ExitStack() as stack:
        if case.subflows == 1:
            stack.enter_context(one_subflow(testbed))
        lab = lab_of(testbed)
        seen = download(lab, argv, timeout=120)
    check(case, seen)
    start = SETTLE if case.policy else 1.0
    steady = {path.device: mean_rate(seen.samples, path.name, start, seen.ended - 0.3) for path in lab.paths}
    return Measurement(case, seen.goodput, steady, seen.sha256 == origin.digests[case.file], seen.protocol)


def check(case: Case, observed: Observation) -> None:
    """Raise where the download was not of the kind it should be: its rate would say nothing."""
    seen = observed.protocol
    if seen.proxy_requested or seen.fallbacks:
        raise TestbedError(f"{case.name}: {seen.complaint(multipath=True)}")
    if seen.requested != (1 if case.multipath else 0):
        raise TestbedError(f"{case.name}: the client asked for {seen.requested} MPTCP connections")
    if case.multipath and seen.joins != case.subflows - 1:
        raise TestbedError(f"{case.name}: {1 + seen.joins} subflows instead of {case.subflows}")


def judge(case: Case, measured: list[Measurement], cap: int) -> list[Aim]:
    """Return the aims of *case* with the medians of *measured*; *cap* is Ethernet's."""
    share = payload_share(case.family, multipath=case.multipath)
    goodput = median([m.goodput for m in measured])
    equal = Aim(f"{case.name}: SHA-256 equal", float(all(m.digest_ok for m in measured)), least=1)
    if case.policy and case.subflows == 2 and case.multipath:
        # Rates of the worst round, not the median: a cap holds or it does not.
        eth0 = max((m.steady["eth0"] / cap for m in measured), key=lambda ratio: abs(ratio - 1))
        wlan0 = min(m.steady["wlan0"] / WIFI_RATE for m in measured)
        return [
            Aim(f"{case.name}: Ethernet / its cap", eth0, least=0.95, most=1.05),
            Aim(f"{case.name}: Wi-Fi / its link", wlan0, least=0.95),
            equal,
        ]
    links = ETHERNET_RATE + (WIFI_RATE if case.subflows == 2 and case.multipath else 0)
    return [Aim(f"{case.name}: goodput / payload of the links", goodput / (links * share), least=0.95), equal]


def show(console: Console, number: int, m: Measurement) -> None:
    rates = ", ".join(f"{device} {rate / 1e6:.2f}" for device, rate in m.steady.items())
    console.print(f"round {number}: {m.case.name}: {m.goodput / 1e6:.1f} Mbit/s ({rates})", highlight=False)
