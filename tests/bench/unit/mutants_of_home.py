# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment home, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mutants import VerdictCases, simulated_results

from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.findings import Aim
from mptcp_bench.experiments.home import DEVICES, PARTS, SCENARIO, Values

RUNS = 5
SOUND: Mapping[str, Mapping[str, float]] = {
    "goodput": {"eth0": 38.0, "wlan0": 19.0, "forwarder": 55.0, "squid": 55.0},
    "first byte": {"nat": 5.0, "forwarder": 8.0, "squid": 8.0},
    "banner": {"nat": 1.0, "forwarder": 3.0, "squid": 3000.0},
    "outage": {"pause": 0.7, "request": 3.1, "later": 0.1, "back": 1.2},
    "crowd": {"answered": DEVICES, "direct": 0, "seconds": 8.0},
    "cost": {"forwarder": 3.0, "squid": 3.0},
}


def judged(part: str = "goodput", count: int = RUNS, **changes: float) -> Callable[[], Sequence[Aim]]:
    """Return a function that judges the sound result with *changes* in one part, of which *count* runs exist."""

    def measure(turn: Turn[str]) -> Values | None:
        if turn.cell != part:
            return Values(SOUND[turn.cell])
        return Values({**SOUND[part], **changes}) if turn.number <= count else None

    return lambda: SCENARIO.aims(simulated_results(SCENARIO, {}, measure))


HOME = VerdictCases(
    judged(),
    {
        **{f"{part} was not measured": judged(part, count=0) for part in PARTS},
        **{f"a run of {part} is missing": judged(part, count=RUNS - 1) for part in PARTS},
        "second path unused": judged(forwarder=38.0),
        "links are not shaped": judged(forwarder=900.0),
        "the forwarder waits for the device's first bytes": judged("banner", forwarder=3000.0),
        "the forwarder is slow": judged("first byte", forwarder=11.0),
        "a running download stops": judged("outage", pause=8.0),
        "the first new request uses the silent uplink": judged("outage", request=6.0),
        "all new requests use the silent uplink": judged("outage", later=3.1),
        "a running download does not return": judged("outage", back=60.0),
        "a device has no answer": judged("crowd", answered=DEVICES - 1),
        "a device is answered twice": judged("crowd", answered=DEVICES + 1),
        "a connection bypasses the parent": judged("crowd", direct=1),
        "the forwarder costs more than Squid": judged("cost", forwarder=4.0),
    },
)
