# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound downloads of the demo, and mutants in which something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mptcp_bench.demo.judging import Measured
from mptcp_bench.demo.parts import Part, parts
from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed.protocol import Protocol

CAP = 5_000_000
PARTS = {part.key: part for part in parts(CAP)}
FREE, POLICY = PARTS["mptcp"], PARTS["mptcp-policy"]
MPTCP = Protocol(requested=1, fallbacks=0, joins=1, proxy_requested=0)
TCP = Protocol(requested=0, fallbacks=0, joins=0, proxy_requested=0)
PLAIN = {"eth0": 98.5e6, "wlan0": 29.6e6}
"""Bits/s that plain TCP got over each link."""
IDLE = Usage(stolen=0.0, idle=0.6, waiting=0.3, others=0.05)
BUSY = Usage(stolen=0.0, idle=0.0, waiting=1.0, others=0.7)
"""Processor usage with two busy loops beside the demo, on two processors."""
BURNT = Usage(stolen=0.0, idle=0.0, waiting=1.0, others=0.02)
"""Processor usage if the proxy itself keeps both processors busy."""


def good(part: Part) -> Measured:
    """Return the measurement of a machine with enough processor time."""
    steady = {"eth0": 0.0, "wlan0": 0.0}
    steady |= {device: min(float(rate), PLAIN[device]) for device, rate in part.allowed.items()}
    protocol = MPTCP if part.multipath else TCP
    return Measured(part, 0.0, part.seconds, part.size, True, protocol, steady, part.seconds - part.settle - 0.3, IDLE)


def with_rates(measured: Measured, **rates: float) -> Measured:
    return replace(measured, steady={**measured.steady, **rates})


def broken_off(measured: Measured) -> Measured:
    """Return *measured* as a download that was aborted with some bytes missing."""
    limit = 4 * measured.part.seconds + 10
    return replace(measured, broken_off=limit, end=limit, octets=measured.octets // 2, digest_ok=False)


@dataclass(frozen=True)
class Mutant:
    """A fault in the product or the testbed in one part of the demo, and the words that must report it."""

    part: Part
    broken: Callable[[Measured], Measured]
    said: str


MUTANTS: Mapping[str, Mutant] = {
    "throttler dead": Mutant(
        POLICY,
        lambda m: replace(with_rates(m, eth0=97e6), throttler=-9),
        "the throttler ended .exit status -9.",
    ),
    "throttler dead, caps still there": Mutant(POLICY, lambda m: replace(m, throttler=1), "the throttler ended"),
    "cap on the wrong path": Mutant(
        POLICY,
        lambda m: with_rates(m, eth0=97e6, wlan0=5e6),
        "Ethernet carried 97.0 Mbit/s in the steady state and its cap allows 5",
    ),
    "cap never set": Mutant(POLICY, lambda m: with_rates(m, eth0=97e6), "its cap allows 5"),
    "cap never set, on a machine that does not fill the links": Mutant(
        POLICY, lambda m: with_rates(m, eth0=20e6, wlan0=10e6), "its cap allows 5"
    ),
    "cap exceeded": Mutant(POLICY, lambda m: with_rates(m, eth0=1.11 * CAP), "its cap allows 5"),
    "cap never comes": Mutant(
        POLICY, lambda m: replace(with_rates(m, eth0=60e6), closing=60e6), "60.0 Mbit/s .* its cap allows 5$"
    ),
    "cap never comes, and the path runs dry": Mutant(
        POLICY, lambda m: replace(with_rates(m, eth0=60e6), closing=3e6), "60.0 Mbit/s .* its cap allows 5$"
    ),
    "cap lifted again": Mutant(
        POLICY, lambda m: replace(with_rates(m, eth0=12e6), closing=5.6e6), "12.0 Mbit/s .* its cap allows 5$"
    ),
    "throttler dead, its cap late": Mutant(
        POLICY, lambda m: replace(with_rates(m, eth0=12e6), closing=5e6, throttler=-9), "the throttler ended"
    ),
    "fallback, cap late": Mutant(
        POLICY,
        lambda m: replace(with_rates(m, eth0=12e6), closing=5e6, protocol=replace(MPTCP, fallbacks=1)),
        "fell back to plain TCP",
    ),
    "other path unused, cap late": Mutant(
        POLICY,
        lambda m: replace(with_rates(m, eth0=12e6, wlan0=0.1e6), closing=5e6),
        "Wi-Fi carried 0.1 .* should have been used",
    ),
    "capped path unused nearly to the end": Mutant(
        POLICY, lambda m: replace(with_rates(m, eth0=0.0), closing=5e6), "should have been used$"
    ),
    "broken off, no cap": Mutant(
        POLICY, lambda m: broken_off(replace(with_rates(m, eth0=6e6), closing=6e6)), "its cap allows 5$"
    ),
    "broken off, throttler dead": Mutant(
        POLICY, lambda m: broken_off(replace(m, throttler=-9, closing=5e6)), "the throttler ended"
    ),
    "broken off, fallback to TCP": Mutant(
        FREE, lambda m: broken_off(replace(m, protocol=replace(MPTCP, fallbacks=1))), "fell back to plain TCP"
    ),
    "broken off, second path unused": Mutant(
        FREE, lambda m: broken_off(with_rates(m, wlan0=0.0)), "Wi-Fi carried 0.0 .* should have been used"
    ),
    "broken off, nothing came": Mutant(
        PARTS["tcp-wifi"], lambda m: broken_off(with_rates(m, wlan0=0.0)), "Wi-Fi carried 0.0 .* should have been used"
    ),
    "over before the cap could show": Mutant(POLICY, lambda m: replace(m, steady_seconds=0.2), "before a steady state"),
    "second path unused": Mutant(
        FREE, lambda m: with_rates(m, wlan0=0.0), "Wi-Fi carried 0.0 .* should have been used"
    ),
    "first path unused": Mutant(
        FREE, lambda m: with_rates(m, eth0=1e6), "Ethernet carried 1.0 .* should have been used"
    ),
    "capped path unused": Mutant(POLICY, lambda m: with_rates(m, eth0=0.0), "should have been used"),
    "no second subflow": Mutant(
        FREE, lambda m: replace(m, protocol=replace(MPTCP, joins=0)), "no second subflow was established"
    ),
    "fallback to TCP": Mutant(
        FREE, lambda m: replace(m, protocol=replace(MPTCP, fallbacks=1)), "fell back to plain TCP"
    ),
    "no Multipath TCP": Mutant(FREE, lambda m: replace(m, protocol=TCP), "opened no MPTCP connection"),
    "Multipath TCP to the origin": Mutant(
        FREE, lambda m: replace(m, protocol=replace(MPTCP, proxy_requested=1)), "towards the origin"
    ),
    "other bytes": Mutant(FREE, lambda m: replace(m, digest_ok=False), "SHA-256"),
    "other bytes, capped": Mutant(POLICY, lambda m: replace(m, digest_ok=False), "SHA-256"),
    "plain TCP over the other path too": Mutant(
        PARTS["tcp-ethernet"], lambda m: with_rates(m, wlan0=3e6), "Wi-Fi carried 3.0 .* should have been idle"
    ),
    "plain TCP that is not plain": Mutant(
        PARTS["tcp-wifi"], lambda m: replace(m, protocol=MPTCP), "where plain TCP was wanted"
    ),
    "link without its rate": Mutant(
        PARTS["tcp-ethernet"], lambda m: with_rates(m, eth0=900e6), "and its link allows 100"
    ),
}

SLOW: Mapping[str, Mutant] = {
    "plain TCP": Mutant(
        PARTS["tcp-ethernet"], lambda m: with_rates(m, eth0=75e6), "less than 80% of the 100 of its link"
    ),
    "first path": Mutant(
        FREE, lambda m: with_rates(m, eth0=78e6), "less than 80% of the 98.5 that plain TCP got over it"
    ),
    "second path": Mutant(FREE, lambda m: with_rates(m, wlan0=23e6), "Wi-Fi carried 23.0 .* less than 80% of the 29.6"),
    "other path": Mutant(
        POLICY, lambda m: with_rates(m, wlan0=20e6), "Wi-Fi carried 20.0 .* less than 80% of the 29.6"
    ),
    "capped path": Mutant(
        POLICY, lambda m: with_rates(m, eth0=3.9e6), "Ethernet carried 3.9 .* less than 80% of the 5 of its cap"
    ),
    "late cap": Mutant(
        POLICY,
        lambda m: replace(with_rates(m, eth0=12e6), closing=5e6),
        "Ethernet carried 12.0 .* its cap allows 5: it came late, and was kept to in the last 2 s",
    ),
    "no end": Mutant(FREE, broken_off, "no end after 46 s"),
    "no end, capped": Mutant(POLICY, lambda m: broken_off(replace(m, closing=5e6)), "no end after 74 s"),
    "no end of plain TCP": Mutant(PARTS["tcp-wifi"], broken_off, "no end after 34 s"),
}
"""Faults that a busy machine may also cause."""
