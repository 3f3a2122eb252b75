# SPDX-License-Identifier: GPL-2.0-or-later
"""Values with which all of the paper's claims hold, mutants that break each claim, and values of a machine of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mutants import constant, series, simulated_results

from mptcp_bench.experiments.columns import Results, Turn
from mptcp_bench.paper import PAPER
from mptcp_bench.paper.conversion_claims import (
    DOWNLOAD,
    KINDS,
    REQUEST,
    RESPONSE,
    SYN,
    SYN_AFTER_REQUEST,
    UPLOAD,
    Delays,
)
from mptcp_bench.paper.measurements import Download
from mptcp_bench.result_file import Judgement

Values = Mapping[str, Mapping[str, float]]
"""The values of each download, or the delays of each kind of segment, in SI units."""
NOISE = (0.998, 1.002, 0.999, 1.001)
"""Factor of the values in each of the runs."""


def _delays(least_idle: float, *seconds: float) -> Values:
    """Return the delays of each kind of segment, in the order of ``KINDS``."""
    return {kind: {"seconds": each, "least_idle": least_idle} for kind, each in zip(KINDS, seconds, strict=True)}


ALONE = {
    "tcp-ethernet": {"fell_back": 1, "goodput": 93e6, "rate_ethernet": 99e6},
    "tcp-wifi": {"fell_back": 1, "goodput": 18.6e6, "rate_wifi": 19.8e6},
}
LOSSY = {"retransmission_share": 0.02}
LOSSLESS = {"retransmission_share": 0}
CAPPED = {"capped": 1, "joined": 0.01, "before_cap": 99e6, "goodput": 23e6, "share_ethernet": 0.2, "share_wifi": 0.8,
          "rate_ethernet": 4.9e6, "rate_wifi": 18.8e6}  # fmt: skip
FREE = {"goodput": 93e6, "share_ethernet": 0.98, "share_wifi": 0.02, "rate_ethernet": 99e6, "rate_wifi": 0.4e6}
SOUND: dict[str, Values] = {
    "fig2": ALONE,
    "fig3": ALONE | {"mptcp": FREE},
    "fig4": {
        "small": {"goodput": 50e6, **LOSSY},
        "large": {"goodput": 110e6, "rate_ethernet": 99e6, "rate_wifi": 19e6, **LOSSLESS},
        "ample": {"goodput": 110e6, "rate_ethernet": 99e6, "rate_wifi": 19e6},
        "needed": {"goodput": 109e6},
    },
    "fig5": {
        "mtu-1500": {"goodput": 100e6, "retransmission_share": 0, "least_idle": 0},
        "mtu-1000": {"goodput": 80e6, "retransmission_share": 0.02, "least_idle": 0},
    },
    "fig6": {
        "tcp-wifi": ALONE["tcp-wifi"],
        "free": {**FREE, "duration": 0.43},
        "first": {**CAPPED, "duration": 0.8, "time_to_throttle": 0.3},
        "repeated": {**CAPPED, "duration": 1.7, "time_to_throttle": 0.02},
    },
    "fig7": {"tcp-wifi": ALONE["tcp-wifi"], "free": FREE, "throttled": CAPPED},
    "table1": _delays(0.01, 0.0085, 0.009, 0.0075, 0.0005, 0.02, 0.0234, 0.015, 0.015, 0.05),
}  # fmt: skip
"""The paper's setup: Linux 3.14 with MPTCP 0.89 on a Raspberry Pi, and a guest of ESXi with little processor time."""
FULL = {"goodput": 111e6, "share_ethernet": 0.83, "share_wifi": 0.17, "rate_wifi": 19.6e6}
CAPPED_SOFTLY = {"duration": 1.5, "time_to_throttle": 0.2, "rate_wifi": 19.6e6}
TODAY: dict[str, Values] = {
    "fig5": {"mtu-1000": {"goodput": 96.5e6, "retransmission_share": 0, "least_idle": 0.4}},
    "fig6": {"free": {**FULL, "duration": 0.36}, "first": CAPPED_SOFTLY, "repeated": CAPPED_SOFTLY},
    "fig7": {"free": FULL, "throttled": {"rate_wifi": 19.6e6}},
    "table1": _delays(0.5, 340e-6, 355e-6, 280e-6, 15e-6, 310e-6, 210e-6, 40e-6, 40e-6, 0.022),
}  # fmt: skip
"""The values of a current kernel, machine and throttler that differ from the paper's."""
NOT_CAPPED = {"capped": 0}
BREAKS: tuple[tuple[str, int, Values, Judgement], ...] = (
    ("fig2", 0, {"tcp-wifi": {"fell_back": 0}}, "fails"),
    ("fig2", 1, {"tcp-ethernet": {"goodput": 18.6e6}}, "fails"),
    ("fig2", 1, {"tcp-wifi": {"goodput": 16e6}}, "fails"),
    ("fig2", 1, {"tcp-ethernet": {"goodput": 110e6}}, "fails"),
    ("fig3", 0, {"mptcp": {"goodput": 80e6}}, "fails"),
    ("fig3", 1, {"mptcp": {"share_ethernet": 0.4, "share_wifi": 0.6}}, "fails"),
    ("fig3", 1, {"tcp-ethernet": {"goodput": 18e6}}, "not judged"),
    ("fig3", 2, {"mptcp": {"share_wifi": 0.17}}, "fails"),
    ("fig4", 0, {"small": {"goodput": 110e6}}, "fails"),
    ("fig4", 1, {"small": LOSSLESS}, "fails"),
    ("fig4", 1, {"large": {"retransmission_share": 0.04}}, "fails"),
    ("fig4", 2, {"large": {"rate_ethernet": 80e6}}, "fails"),
    ("fig4", 2, {"large": {"rate_wifi": 14e6}}, "fails"),
    ("fig4", 3, {"needed": {"goodput": 92e6}}, "fails"),
    ("fig4", 3, {"needed": {"goodput": 104.5e6}}, "not judged"),
    ("fig4", 3, {"small": {"goodput": 110e6}}, "not judged"),
    ("fig5", 0, {"mtu-1000": {"goodput": 100e6}}, "fails"),
    ("fig5", 1, {"mtu-1000": {"goodput": 96.5e6}}, "fails"),
    ("fig5", 1, {"mtu-1000": {"retransmission_share": 0}}, "fails"),
    ("fig5", 1, {"mtu-1500": {"retransmission_share": 0.04}}, "fails"),
    ("fig6", 0, {"first": {"time_to_throttle": 0.06}}, "differs"),
    ("fig6", 0, {"first": {"time_to_throttle": 1.4}, "repeated": {"time_to_throttle": 1.2}}, "fails"),
    ("fig6", 0, {"repeated": NOT_CAPPED}, "fails"),
    ("fig6", 1, {"first": {"duration": 1.5, "rate_wifi": 8e6}}, "fails"),
    ("fig6", 1, {"repeated": NOT_CAPPED}, "fails"),
    ("fig6", 2, {"first": {"time_to_throttle": 0.06}}, "differs"),
    ("fig6", 2, {"repeated": {"share_ethernet": 0.97}}, "fails"),
    ("fig6", 2, {"repeated": NOT_CAPPED}, "fails"),
    ("fig6", 3, {"repeated": {"goodput": 16e6}}, "fails"),
    ("fig6", 3, {"repeated": {"rate_wifi": 8e6}}, "fails"),
    ("fig6", 3, {"repeated": NOT_CAPPED}, "fails"),
    ("fig7", 0, {"throttled": {"rate_ethernet": 6e6}}, "fails"),
    ("fig7", 0, {"throttled": {"rate_ethernet": 2.5e6}}, "fails"),
    ("fig7", 0, {"throttled": NOT_CAPPED}, "fails"),
    ("fig7", 1, {"throttled": {"share_wifi": 0.01}}, "fails"),
    ("fig7", 1, {"free": {"rate_wifi": 19.6e6}, "throttled": {"rate_wifi": 19.6e6}}, "differs"),
    ("fig7", 2, {"throttled": {"goodput": 93e6}}, "fails"),
    ("fig7", 2, {"free": {"rate_wifi": 19.8e6}, "throttled": {"rate_wifi": 17.8e6}}, "fails"),
    ("fig7", 3, {"throttled": {"goodput": 18.6e6}}, "fails"),
    ("table1", 0, {SYN: {"seconds": 0.0008}}, "fails"),
    ("table1", 0, {SYN: {"seconds": 0.08}}, "fails"),
    ("table1", 1, {REQUEST: {"seconds": 0.002}, RESPONSE: {"seconds": 0.002}}, "fails"),
    ("table1", 1, {REQUEST: {"seconds": 0.2}}, "fails"),
    ("table1", 2, {REQUEST: {"seconds": 0.004}, SYN_AFTER_REQUEST: {"seconds": 0.0001}}, "fails"),
    ("table1", 2, {RESPONSE: {"seconds": 0.004}, UPLOAD: {"seconds": 0.001}}, "differs"),
    ("table1", 3, {DOWNLOAD: {"seconds": 0.0004}}, "fails"),
)
"""Scenario, number of the claim, values that differ from ``SOUND``, and the verdict that they must have."""
UNEXPLAINED: tuple[tuple[str, int, Values], ...] = (
    # Squid is single-threaded, so an idle second processor does not help it.
    ("fig5", 1, {"mtu-1000": {"least_idle": 0}}),
    ("fig6", 0, {"first": {"time_to_throttle": 1.2}, "repeated": {"time_to_throttle": 1.2}}),
    ("fig6", 1, {"first": {"rate_wifi": 10e6}}),
    ("fig6", 2, {"repeated": {"before_cap": 30e6}}),
    ("fig7", 1, {"free": {"rate_wifi": 15e6}, "throttled": {"rate_wifi": 15e6}}),
    ("table1", 0, {SYN: {"least_idle": 0.01}}),
    ("table1", 1, {SYN: {"least_idle": 0.01}}),
    ("table1", 2, {SYN_AFTER_REQUEST: {"seconds": 30e-6}}),
)
"""Values that differ from ``TODAY`` such that a claim's reason is not shown; it must then fail without a reason."""


def results(key: str, *changes: Values) -> Results[Any, Any]:
    """Return the results of the scenario *key* with the values of ``SOUND`` and these *changes*."""
    values = {name: dict(each) for name, each in SOUND[key].items()}
    for change in changes:
        for name, changed in change.items():
            values[name] |= changed

    def values_of_run(name: str, number: int) -> dict[str, Any]:
        varied = {each: value * NOISE[number - 1] for each, value in values[name].items()}
        return varied | {each: values[name][each] for each in ("capped", "fell_back") if each in varied}

    def measure(turn: Turn[Any]) -> Download | dict[str, Delays]:
        if key == "table1":
            kinds = ((kind, values_of_run(kind, turn.number)) for kind in values)
            return {kind: Delays((each["seconds"],) * 3, each["least_idle"]) for kind, each in kinds}
        numbers = {"fell_back": False, "duration": 1.5, "joined": 0.01} | values_of_run(turn.cell.key, turn.number)
        loads = {path: constant(numbers.get(f"rate_{path}", 0.0) / 1e6) for path in ("ethernet", "wifi")}
        return Download(**numbers, samples=series(loads, numbers["duration"] + 0.3))

    return simulated_results(PAPER[key].load(), {"repetitions": str(len(NOISE))}, measure)
