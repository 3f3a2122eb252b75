# SPDX-License-Identifier: GPL-2.0-or-later
"""Simulated worlds for the paper's claims: in some all claims hold, in mutants one mechanism is broken.

A world draws the observations of a figure's downloads from a seed, a proxy the exchanges of Table 1. They are checked,
measured and judged in the same way as observations of real packets. In the paper's world and proxy every claim holds.
Each mutant changes one mechanism of them; ``BREAKS`` names the mutants under which a claim must no longer hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from mutants import rehearsed

from mptcp_bench.experiments.columns import Results, Turn
from mptcp_bench.paper import PAPER as EXPERIMENTS
from mptcp_bench.paper.conversion import BULKY, SLOW_ORIGIN, SMALL, UPLOADS, delays
from mptcp_bench.paper.conversion_claims import MPTCP, Delays
from mptcp_bench.paper.downloads import check
from mptcp_bench.paper.measurements import Download, Trial, measured
from mptcp_bench.result_file import Judgement
from mptcp_bench.wire.exchanges import Exchange
from mptcp_bench.wire.workload import Conversions, check_protocol
from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.recorder import Sample
from mptcp_lab.testbed.transfer import Observation

DIGEST = "as it should be"
HEADERS = 0.94
"""Ratio of payload bytes to bytes on the wire, with an MTU of 1500."""
JOINED = 0.01
"""Seconds from the start of a download until the second subflow has joined."""
LEAD = 0.3
"""Seconds sampled before and after a download."""


@dataclass(frozen=True)
class World:
    """Simulated hosts, paths and throttler. Rates are bits per second on the wire, times are seconds."""

    links: dict[str, float] = field(default_factory=lambda: {"ethernet": 100e6, "wifi": 20e6})
    rtts: dict[str, float] = field(default_factory=lambda: {"ethernet": 0.002, "wifi": 0.014})
    server_is_multipath: bool = False
    falls_back: bool = False
    """Whether the client's connections to the proxy fall back to plain TCP."""
    joins: bool = True
    """Whether the proxy accepts a second subflow. If not, the client has nevertheless received the SYN/ACK."""
    wifi_free: float = 0.02
    wifi_beside_cap: float = 0.95
    """Share of its link rate that Wi-Fi carries while Ethernet is capped."""
    ethernet: float = 0.99
    """Share of its link rate that Ethernet carries when it is not capped."""
    needed: float = 400_000
    """Bytes of receive buffer that a download needs. With a smaller buffer all paths slow down in proportion."""
    lost_by_small: float = 0.02
    lost_by_mtu: float = 0.02
    """Share of segments that are sent twice: if the buffer is too small, and if the MTU is 1000."""
    memory: float = 0.1
    """Share of the receive buffer that is in use at most."""
    mtu: float = 0.8
    """Rate with an MTU of 1000, relative to the rate with 1500."""
    least_idle: float = 0.0
    """Idle share of the busiest processor."""
    cap_first: float | None = 0.3
    cap_repeated: float | None = 0.0
    """Seconds from the join until the cap is in force, for first and repeated downloads; None if it never is."""
    before_cap: float = 1.0
    """Share of its rate that Ethernet carries before its cap is in force."""
    capped: str = "ethernet"
    cap_is: float = 0.98
    """Rate of a capped path, relative to the cap."""
    spread: float = 0.002
    """Relative standard deviation of the rates between runs."""

    def observe(self, trial: Trial, draw: random.Random, interval: float) -> Observation:
        """Return what the client's agent would have observed of one download."""
        lossy = trial.receive_buffer is not None and trial.receive_buffer < self.needed / 2
        retransmitted = self.lost_by_small if lossy else self.lost_by_mtu if trial.mtu == 1000 else 0.0
        strength = max(0.05, draw.gauss(1, self.spread))
        rates = {path: rate * strength for path, rate in self._rates(trial).items()}
        landed = None
        if trial.throttled:
            rates["ethernet"] *= self.before_cap
            cap_after = self.cap_first if trial.fresh_throttler else self.cap_repeated
            landed = None if cap_after is None else JOINED + cap_after
        octets, samples, time = dict.fromkeys(rates, 0.0), [], -LEAD
        received, ended = 0.0, 0.0
        while time < ended + LEAD:
            samples.append(Sample(time, {path: round(value) for path, value in octets.items()}))
            time += interval
            if time <= interval / 2 or received >= trial.size:
                continue
            if landed is not None and time > landed:
                rates = self._beside_cap(trial, rates, strength)
            step = {path: rate * interval / 8 for path, rate in rates.items()}
            octets = {path: value + step[path] for path, value in octets.items()}
            received += HEADERS * sum(step.values())
            ended = time
        fallback = self.falls_back if trial.path is None else not self.server_is_multipath
        counters = {"MPTcpExtMPCapableSYNTX": 1, "MPTcpExtMPJoinSynAckRx": 1}
        counters |= {"MPTcpExtMPCapableFallbackSYNACK": 1} if fallback else {}
        sender = {"TcpRetransSegs": round(1e5 * retransmitted), "TcpOutSegs": 100_000}
        return Observation(
            ended=ended, status=0, timed_out=False, octets=trial.size, sha256=DIGEST, said="", samples=tuple(samples),
            memory=tuple((s.time, round(self.memory * (trial.receive_buffer or 0))) for s in samples),
            joined=None if trial.path else JOINED, counters=counters,
            proxy_counters={**sender, "MPTcpExtMPJoinAckRx": int(self.joins)}, origin_counters=sender,
        )  # fmt: skip

    def _rates(self, trial: Trial) -> dict[str, float]:
        if trial.path is not None:
            return {path: 0.99 * rate if path == trial.path else 0.0 for path, rate in self.links.items()}
        rates = {"ethernet": self.ethernet * self.links["ethernet"], "wifi": self.wifi_free * self.links["wifi"]}
        slower = self.mtu if trial.mtu == 1000 else 1.0
        if trial.receive_buffer is not None:
            slower *= min(1.0, trial.receive_buffer / self.needed)
        return {path: slower * rate for path, rate in rates.items()}

    def _beside_cap(self, trial: Trial, rates: dict[str, float], strength: float) -> dict[str, float]:
        capped = min(self.links[self.capped], self.cap_is * trial.cap)
        if self.capped == "wifi":
            return {**rates, "wifi": min(rates["wifi"], capped)}
        return {"ethernet": capped, "wifi": self.wifi_beside_cap * self.links["wifi"] * strength}


PAPER = World()
"""The paper's setup: Linux 3.14 with MPTCP 0.89 on a Raspberry Pi."""
TODAY = World(
    wifi_free=0.98, wifi_beside_cap=0.98, lost_by_small=0.0, lost_by_mtu=0.0, memory=0.47, mtu=0.965,
    least_idle=0.4,
    cap_first=0.2, cap_repeated=0.2,
)  # fmt: skip
"""A current kernel and throttler. Where a claim differs, the named mechanism is the reason."""

EXCHANGES = 20
"""Number of exchanges of a workload."""


@dataclass(frozen=True)
class Proxy:
    """Median durations of a proxy's steps, in seconds."""

    answer: float = 0.0005
    """From a SYN to its SYN/ACK, which only the kernel handles."""
    wait: float = 0.001
    """From the client's third ACK to its request."""
    connect: float = 0.0075
    """From the request to the SYN towards the origin."""
    request: float = 0.02
    response: float = 0.0234
    stream: float = 0.015
    """Duration for a segment that passes through user space without waiting."""
    bulk: float = 0.05
    least_idle: float = 0.01
    """Idle share of the busiest processor."""
    spread: float = 0.05
    falls_back: bool = False
    """Whether the client's connections fall back to plain TCP."""
    subflows: int = 2

    def exchange(self, draw: random.Random, *, multipath: bool = True) -> Exchange:
        def about(seconds: float) -> float:
            return seconds * draw.lognormvariate(0, self.spread)

        connect, wait, answer = about(self.connect), about(self.wait), about(self.answer)
        multipath = multipath and not self.falls_back
        return Exchange(
            "/x", multipath, False, self.subflows if multipath else 1, answer, syn=wait + connect,
            syn_whole=answer + wait + connect, syn_own=connect, request=about(self.request), up=(),
            down=(about(self.response),),
        )  # fmt: skip

    def conversions(self, draw: random.Random, *, multipath: bool) -> dict[str, Conversions]:
        """Return what a capture would show of each workload. Raise TestbedError if the run is not a data point."""
        few = [self.exchange(draw, multipath=multipath) for _ in range(EXCHANGES)]
        check_protocol(few, multipath=multipath)
        stream = [replace(e, up=(self.stream,) * 3, down=(self.stream,) * 3) for e in few]
        bulk = [replace(e, down=(self.bulk,) * 9) for e in few]
        return {
            workload.key: Conversions(tuple(each), Usage(0.0, self.least_idle, None, least_idle=self.least_idle))
            for workload, each in ((SMALL, few), (SLOW_ORIGIN, stream), (UPLOADS, stream), (BULKY, bulk))
        }


PAPER_PROXY = Proxy()
"""The paper's setup: a guest of ESXi with little memory and processor time."""
TODAY_PROXY = Proxy(
    answer=15e-6, wait=60e-6, connect=280e-6, request=310e-6, response=210e-6, stream=40e-6, bulk=0.022,
    least_idle=0.5,
)  # fmt: skip
"""Durations measured on a current machine."""

Change = Callable[[Any], Any]
"""Changes a world or a proxy."""


def _with(**changes: Any) -> Change:
    return lambda world: replace(world, **changes)


THROTTLER_DEAD = _with(cap_first=None, cap_repeated=None)
MUTANTS: dict[str, Change] = {
    "throttler dead": THROTTLER_DEAD,
    "throttler caps the wrong path": _with(capped="wifi"),
    "cap never comes": _with(cap_first=60.0, cap_repeated=60.0),
    "cap comes late every time": _with(cap_first=0.3, cap_repeated=0.4),
    "cap too high": _with(cap_is=1.2),
    "cap too low": _with(cap_is=0.5),
    "cap strangles both": _with(wifi_beside_cap=0.4),
    # Wi-Fi was in use before the cap, and the cap is set softly: judged only by goodput, these transfers look good.
    "cap strangles both, late": _with(wifi_free=0.98, wifi_beside_cap=0.4, cap_first=0.4, cap_repeated=0.2),
    "cap costs the other a tenth, late": _with(wifi_free=0.98, wifi_beside_cap=0.9, cap_first=0.8, cap_repeated=0.8),
    "cap comes late, first later": _with(cap_first=0.45, cap_repeated=0.2),
    "cap at once, first too": _with(cap_first=0.0),
    "first hardly later": _with(cap_first=0.15, cap_repeated=0.1),
    "second path unused": _with(wifi_free=0.0, wifi_beside_cap=0.0),
    "second path used": _with(wifi_free=0.98),
    "wrong rate": _with(links={"ethernet": 20e6, "wifi": 20e6}),
    "fallback": _with(falls_back=True),
    "second path not joined": _with(joins=False, wifi_free=0.0, wifi_beside_cap=0.0),
    "server is multipath": _with(server_is_multipath=True),
    "one path slows the other": _with(ethernet=0.8),
    "Ethernet congested": _with(ethernet=0.1, wifi_free=0.9),
    "buffer has no effect": _with(needed=20_000.0),
    "buffer always too small": _with(needed=5_760_000.0),
    "nothing lost": _with(lost_by_small=0.0, lost_by_mtu=0.0),
    "MTU has no effect": _with(mtu=1.0, lost_by_mtu=0.0),
    "MTU costs headers alone": _with(mtu=0.965),
}

PROXY_MUTANTS: dict[str, Change] = {
    "ten times as fast": _with(
        answer=5e-5, wait=1e-4, connect=75e-5, request=2e-3, response=2.34e-3, stream=1.5e-3, bulk=5e-3
    ),
    "ten times as slow": _with(answer=5e-3, wait=1e-2, connect=75e-3, request=0.2, response=0.234, stream=0.15),
    "SYN sent at once": _with(connect=0.0001),
    "SYN waits for the application": _with(connect=0.05),
    "content spliced in the kernel": _with(request=0.0004, response=0.0004, stream=0.0004),
    "busy, differently each time": _with(spread=3.0),
    "fallback to TCP": _with(falls_back=True),
    "proxy without second path": _with(subflows=1),
}

Verdicts = dict[str, Judgement]


def _all(verdict: Judgement) -> Callable[..., Verdicts]:
    return lambda *mutants: dict.fromkeys(mutants, verdict)


fail, differ, undecided = _all("fails"), _all("differs"), _all("not judged")


_THROTTLER = fail("throttler dead", "throttler caps the wrong path", "cap never comes")
_LATE = differ("cap at once, first too") | fail("cap comes late every time")
_STRANGLED = fail("cap strangles both", "cap strangles both, late")
# Transfers that are not of the requested kind are not data points.
_PROXY = undecided("fallback", "second path not joined")
_NO_RUN = undecided("fallback to TCP", "proxy without second path")
_SPEED = fail("ten times as fast", "ten times as slow")
BREAKS: dict[tuple[str, str], Verdicts] = {
    ("fig2", "fallback"): fail("server is multipath"),
    ("fig2", "alone"): fail("wrong rate") | undecided("server is multipath"),
    ("fig3", "capacity"): fail("one path slows the other") | _PROXY,
    ("fig3", "ethernet-first"): fail("Ethernet congested") | undecided("wrong rate") | _PROXY,
    ("fig3", "wifi-unused"): fail("second path used", "Ethernet congested") | _PROXY,
    ("fig4", "small-degrades"): fail("buffer has no effect") | _PROXY,
    ("fig4", "small-loses"): fail("nothing lost", "buffer has no effect") | _PROXY,
    ("fig4", "large-suffices"): fail("buffer always too small") | undecided("second path unused") | _PROXY,
    ("fig4", "required"): fail("buffer always too small") | undecided("buffer has no effect") | _PROXY,
    ("fig5", "lower"): fail("MTU has no effect") | _PROXY,
    ("fig5", "unstable"): fail("MTU has no effect", "MTU costs headers alone", "nothing lost") | _PROXY,
    ("fig6", "first-escapes"): _LATE | fail("cap comes late, first later") | _THROTTLER | _PROXY,
    ("fig6", "small-impact"): fail("cap strangles both") | _THROTTLER | _PROXY,
    ("fig6", "repeated-throttled"): _LATE | fail("first hardly later") | _THROTTLER | _PROXY,
    ("fig6", "no-less"): _STRANGLED | fail("second path unused") | _THROTTLER | _PROXY,
    ("fig7", "cap"): fail("cap too high", "cap too low") | _THROTTLER | _PROXY,
    # If the second path is unused, the offloaded share is 0/0 and the comparison of two all-zero series is undecided.
    ("fig7", "offload"): differ("second path used") | undecided("second path unused") | _THROTTLER | _PROXY,
    ("fig7", "inferior"): fail("cap strangles both, late", "cap costs the other a tenth, late") | _THROTTLER | _PROXY,
    ("fig7", "outperforms"): fail("second path unused", "cap strangles both") | _THROTTLER | _PROXY,
    ("table1", "syn"): _SPEED | fail("SYN sent at once") | undecided("busy, differently each time") | _NO_RUN,
    ("table1", "data"): _SPEED | fail("content spliced in the kernel") | _NO_RUN,
    ("table1", "data-slower"): differ("SYN waits for the application", "content spliced in the kernel") | _NO_RUN,
    ("table1", "user-space"): fail("content spliced in the kernel") | _NO_RUN,
}
"""The verdict that each mutant must produce, by scenario and claim, in the order of the claims."""
UNEXPLAINED: dict[tuple[str, str], Change] = {
    ("fig3", "wifi-unused"): _with(ethernet=0.8),
    ("fig4", "small-loses"): _with(memory=0.1),
    # Squid is single-threaded, so an idle second processor does not help it.
    ("fig5", "unstable"): _with(least_idle=0.0),
    ("fig6", "first-escapes"): _with(cap_first=1.2, cap_repeated=1.2, links={"ethernet": 20e6, "wifi": 8e6}),
    ("fig6", "small-impact"): THROTTLER_DEAD,
    ("fig6", "repeated-throttled"): _with(before_cap=0.3),
    ("fig7", "offload"): _with(wifi_beside_cap=0.5),
    ("table1", "syn"): _with(least_idle=0.01),
    ("table1", "data"): _with(least_idle=0.01),
    ("table1", "data-slower"): _with(connect=30e-6, wait=300e-6),
}
"""Changes of ``TODAY`` that remove the reason why a claim does not hold; the claim must then fail without a reason."""


def experiment(world: World | Proxy, key: str, *, repetitions: int = 4, seed: int = 1) -> Results[Any, Any]:
    """Run scenario *key* in *world*. A run that is not a data point is left out."""
    draw = random.Random(seed)
    used = [Usage(0.0, world.least_idle, None, least_idle=world.least_idle)]

    def measure(turn: Turn[Any]) -> Download | dict[str, Delays] | None:
        try:
            if isinstance(world, Proxy):
                multipath = turn.cell == MPTCP
                return delays(world.conversions(draw, multipath=multipath), multipath=multipath)
            seen = world.observe(turn.cell, draw, 0.01 if key == "fig6" else 0.1)
            check(turn.cell, seen, DIGEST)
            return measured(turn.cell, seen, used, world.rtts)
        except TestbedError:
            return None

    return rehearsed(EXPERIMENTS[key].load(), {"repetitions": str(repetitions)}, measure)


@cache
def found(name: str, key: str) -> Results[Any, Any]:
    """Return what scenario *key* measures in the world *name*: the paper's, today's, or a mutant of the paper's."""
    paper, today = (PAPER_PROXY, TODAY_PROXY) if key == "table1" else (PAPER, TODAY)
    if name in ("paper", "today"):
        return experiment(paper if name == "paper" else today, key)
    return experiment((MUTANTS | PROXY_MUTANTS)[name](paper), key)
